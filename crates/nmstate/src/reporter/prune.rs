//! Prunes reports that are too large to be stored: the least needed parts go first (nmstate §17-5).

use serde_json::{Map, Value, json};

use crate::routes;

/// A part to leave out: its name in the condition, and how to remove it.
type Step = (&'static str, fn(&mut Value));

/// The parts in the order in which they are left out, until the rest fits.
const STEPS: [Step; 6] = [
    ("features of drivers", |report| {
        each_interface(report, |interface| without(interface, &["ethtool"]));
    }),
    ("LLDP neighbours and options of bridges and bonds", |report| {
        each_interface(report, |interface| {
            without(interface, &["lldp", "mptcp"]);
            for section in ["bridge", "link-aggregation"] {
                if let Some(section) = interface.get_mut(section).and_then(Value::as_object_mut) {
                    without(section, &["options"]);
                }
            }
        });
    }),
    ("running routes that are not default routes", |report| {
        let running = report
            .pointer_mut("/routes/running")
            .and_then(Value::as_array_mut);
        if let Some(running) = running {
            running.retain(routes::is_default);
        }
    }),
    (
        "all of interfaces but what they are and their addresses",
        |report| {
            keep_of_interfaces(
                report,
                &[
                    "name",
                    "type",
                    "state",
                    "mac-address",
                    "mtu",
                    "ipv4",
                    "ipv6",
                    "controller",
                ],
            );
        },
    ),
    ("all of interfaces but name, type and state", |report| {
        keep_of_interfaces(report, &["name", "type", "state"]);
    }),
    ("all routes and interfaces", |report| {
        report["routes"] = json!({ "config": [], "running": [] });
        report["interfaces"] = json!([]);
    }),
];

/// A report that fits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fitted {
    /// The report.
    pub(crate) report: Value,
    /// Parts that were left out.
    pub(crate) left_out: Vec<&'static str>,
}

/// Removes parts of a report until its size is at most `limit` bytes.
pub(crate) fn fit(mut report: Value, limit: usize) -> Fitted {
    let mut left_out = Vec::new();
    let mut size = size(&report);
    for (what, leave_out) in STEPS {
        if size <= limit {
            break;
        }
        leave_out(&mut report);
        let smaller = self::size(&report);
        if smaller < size {
            left_out.push(what);
        }
        size = smaller;
    }
    Fitted { report, left_out }
}

/// Size of a value as JSON, in bytes.
pub(crate) fn size(value: &Value) -> usize {
    let mut counted = Counted(0);
    // Counting cannot fail.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}

struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn each_interface(report: &mut Value, mut change: impl FnMut(&mut Map<String, Value>)) {
    let interfaces = report.get_mut("interfaces").and_then(Value::as_array_mut);
    for interface in interfaces.into_iter().flatten() {
        if let Some(interface) = interface.as_object_mut() {
            change(interface);
        }
    }
}

fn without(object: &mut Map<String, Value>, keys: &[&str]) {
    object.retain(|key, _| !keys.contains(&key.as_str()));
}

fn keep_of_interfaces(report: &mut Value, keys: &[&str]) {
    each_interface(report, |interface| {
        interface.retain(|key, _| keys.contains(&key.as_str()));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(vlans: u32) -> Value {
        let vlan = |id: u32| {
            json!({
                "name": format!("eth1.{id}"), "type": "vlan", "state": "up", "mtu": 1500,
                "ipv4": { "enabled": true, "address": [{ "ip": "192.0.2.1", "prefix-length": 24 }] },
                "ethtool": { "feature": { "rx-checksum": true, "tx-checksum-ip-generic": true } },
                "lldp": { "enabled": false },
                "vlan": { "base-iface": "eth1", "id": id },
            })
        };
        let route = |to: &str| json!({ "destination": to, "next-hop-interface": "eth1.1" });
        json!({
            "interfaces": (1..=vlans).map(vlan).collect::<Vec<_>>(),
            "routes": { "running": [route("0.0.0.0/0"), route("198.51.100.0/24")], "config": [route("0.0.0.0/0")] },
        })
    }

    #[test]
    fn report_that_fits_is_unchanged() {
        let whole = report(3);
        let size = size(&whole);
        assert_eq!(size, whole.to_string().len());
        let fitted = fit(whole.clone(), size);
        assert_eq!((fitted.report, fitted.left_out.len()), (whole, 0));
    }

    #[test]
    fn least_needed_parts_are_pruned_first() {
        let whole = report(10);
        let fitted = fit(whole.clone(), size(&whole) - 1);
        assert_eq!(fitted.left_out, ["features of drivers"]);
        assert_eq!(fitted.report["interfaces"][9].get("ethtool"), None);
        assert_eq!(fitted.report["interfaces"][9]["vlan"]["id"], 10);

        let fitted = fit(whole.clone(), 1000);
        assert_eq!(
            fitted.left_out,
            [
                "features of drivers",
                "LLDP neighbours and options of bridges and bonds",
                "running routes that are not default routes",
                "all of interfaces but what they are and their addresses",
                "all of interfaces but name, type and state",
            ]
        );
        assert_eq!(
            fitted.report["interfaces"][9],
            json!({ "name": "eth1.10", "type": "vlan", "state": "up" })
        );
        assert_eq!(fitted.report["routes"]["running"][0]["destination"], "0.0.0.0/0");
        assert_eq!(
            fitted.report["routes"]["running"].as_array().map(Vec::len),
            Some(1)
        );

        let fitted = fit(whole, 100);
        assert!(size(&fitted.report) <= 100);
    }
}
