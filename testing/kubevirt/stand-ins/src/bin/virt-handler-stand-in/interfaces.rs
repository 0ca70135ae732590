//! The interfaces in an instance's status, written like virt-handler from the devices of a simulated guest.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::names::{DOMAIN, NETWORK_STATUS};

/// Interface of a pod on the cluster's network.
const POD_INTERFACE: &str = "eth0";

/// Adds interfaces that the pod has to the guest, and removes absent ones.
pub(crate) fn update(instance: &mut Value, pod: &Value) {
    let mut entries = instance["status"]["interfaces"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let before = entries.clone();
    for wanted in wanted(instance) {
        let Some(name) = wanted["name"].as_str() else {
            continue;
        };
        let place = entries.iter().position(|entry| entry["name"] == name);
        if wanted["state"] == "absent" {
            if let Some(entry) = place.and_then(|place| entries.get_mut(place)) {
                let sources = sources(entry).filter(|source| *source != DOMAIN);
                entry["infoSource"] = json!(sources.collect::<Vec<_>>().join(", "));
            }
            continue;
        }
        let Some(found) = Plugged::of(instance, wanted, pod) else {
            continue;
        };
        let place = place.unwrap_or_else(|| {
            entries.push(json!({ "name": name }));
            entries.len() - 1
        });
        found.write(&mut entries[place], wanted);
    }
    // Neither the guest nor multus has the interface.
    entries.retain(|entry| sources(entry).next().is_some());
    if entries != before {
        instance["status"]["interfaces"] = entries.into();
    }
}

/// Returns true if the guest would use the address of its pod, and can therefore not migrate.
pub(crate) fn bridges_the_pod_network(instance: &Value) -> bool {
    let bridged = wanted(instance).filter(|interface| interface.get("bridge").is_some());
    bridged
        .filter_map(|interface| network(instance, interface))
        .any(|network| network.get("pod").is_some())
}

fn wanted(instance: &Value) -> impl Iterator<Item = &Value> {
    let interfaces = &instance["spec"]["domain"]["devices"]["interfaces"];
    interfaces.as_array().into_iter().flatten()
}

fn network<'a>(instance: &'a Value, interface: &Value) -> Option<&'a Value> {
    let mut networks = instance["spec"]["networks"].as_array()?.iter();
    networks.find(|network| network["name"] == interface["name"])
}

fn sources(entry: &Value) -> impl Iterator<Item = &str> {
    let sources = entry["infoSource"].as_str().unwrap_or_default().split(", ");
    sources.filter(|source| !source.is_empty())
}

/// An interface of the pod.
struct Plugged {
    addresses: Vec<Value>,
    mac: Option<String>,
}

impl Plugged {
    /// Returns the pod's interface for an interface of the guest, if it exists.
    fn of(instance: &Value, wanted: &Value, pod: &Value) -> Option<Self> {
        let network = network(instance, wanted)?;
        let text = pod["metadata"]["annotations"][NETWORK_STATUS]
            .as_str()
            .unwrap_or("[]");
        let statuses: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let secondary = network.get("multus").is_some() && network["multus"]["default"] != true;
        let own = wanted["macAddress"].as_str().map(str::to_owned);
        let status = |interface: &str| statuses.iter().find(|status| status["interface"] == interface);
        let mac = |status: Option<&Value>| own.clone().or_else(|| Some(status?["mac"].as_str()?.to_owned()));
        if !secondary {
            let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
            return Some(Self {
                addresses: addresses.map(|address| address["ip"].clone()).collect(),
                mac: mac(status(POD_INTERFACE)),
            });
        }
        let status = status(&pod_interface(network["name"].as_str()?))?;
        Some(Self {
            addresses: status["ips"].as_array().cloned().unwrap_or_default(),
            mac: mac(Some(status)),
        })
    }

    /// Writes the entry of the interface, and keeps virt-controller's fields.
    fn write(self, entry: &mut Value, wanted: &Value) {
        let others = sources(entry).filter(|source| *source != DOMAIN);
        let all: Vec<&str> = std::iter::once(DOMAIN).chain(others).collect();
        entry["infoSource"] = json!(all.join(", "));
        if let Some(mac) = self.mac {
            entry["mac"] = json!(mac);
        }
        if let Some(first) = self.addresses.first() {
            entry["ipAddress"] = first.clone();
            entry["ipAddresses"] = self.addresses.into();
        }
        entry["queueCount"] = json!(1);
        entry["linkState"] = json!(if wanted["state"] == "down" { "down" } else { "up" });
    }
}

/// Returns virt-controller's name of the pod's interface for a network.
fn pod_interface(network: &str) -> String {
    let digest: String = Sha256::digest(network)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("pod{}", &digest[..11])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(state: &str) -> Value {
        json!({
            "spec": {
                "domain": { "devices": { "interfaces": [
                    { "name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01" },
                    { "name": "blue", "bridge": {}, "macAddress": "02:00:00:00:00:02", "state": state },
                ] } },
                "networks": [{ "name": "default", "pod": {} }, { "name": "blue", "multus": { "networkName": "blue" } }],
            },
            "status": {},
        })
    }

    fn pod(networks: &Value) -> Value {
        json!({
            "metadata": { "annotations": { NETWORK_STATUS: networks.to_string() } },
            "status": { "podIPs": [{ "ip": "10.244.1.5" }] },
        })
    }

    #[test]
    fn pod_interface_has_the_name_of_virt_controller() {
        assert_eq!(pod_interface("blue"), "pod16477688c0e");
    }

    #[test]
    fn secondary_interface_follows_the_pod_and_the_state_absent() {
        let without = pod(&json!([{ "interface": "eth0", "default": true }]));
        let mut now = instance("");
        update(&mut now, &without);
        let entries = now["status"]["interfaces"].as_array().unwrap();
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert_eq!(entries[0]["ipAddress"], "10.244.1.5");
        assert_eq!(entries[0]["infoSource"], "domain");

        let with = pod(&json!([{ "interface": "pod16477688c0e", "ips": ["192.168.1.2"] }]));
        update(&mut now, &with);
        assert_eq!(now["status"]["interfaces"][1]["infoSource"], "domain");
        // virt-controller adds its source at any position.
        now["status"]["interfaces"][1]["infoSource"] = json!("multus-status, domain");
        update(&mut now, &with);
        let blue = &now["status"]["interfaces"][1];
        assert_eq!(blue["infoSource"], "domain, multus-status");
        assert_eq!(
            (&blue["mac"], &blue["ipAddress"]),
            (&json!("02:00:00:00:00:02"), &json!("192.168.1.2"))
        );
        let settled = now.clone();
        update(&mut now, &with);
        assert_eq!(now, settled);

        now["spec"]["domain"]["devices"]["interfaces"][1]["state"] = json!("absent");
        update(&mut now, &with);
        assert_eq!(now["status"]["interfaces"][1]["infoSource"], "multus-status");
        // virt-controller removes its source after multus unplugged the interface.
        now["status"]["interfaces"][1]["infoSource"] = json!("");
        update(&mut now, &without);
        assert_eq!(now["status"]["interfaces"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn bridge_on_the_pod_network_differs_from_a_secondary_bridge() {
        let mut now = instance("");
        assert!(!bridges_the_pod_network(&now));
        now["spec"]["domain"]["devices"]["interfaces"][0] = json!({ "name": "default", "bridge": {} });
        assert!(bridges_the_pod_network(&now));
    }
}
