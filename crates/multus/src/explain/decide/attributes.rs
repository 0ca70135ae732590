//! The attributes that a pod requests of a network, and their comparison with the attachment.

use crate::explain::report::Network;
use cni::mac::Mac;
use cni::selection::NetworkSelection;
use std::collections::BTreeMap;

/// The attributes that a pod requests of a network, except the interface's name.
pub(super) fn asks(selection: &NetworkSelection) -> BTreeMap<&'static str, String> {
    let NetworkSelection {
        name: _,
        namespace: _,
        interface: _,
        ips,
        mac,
        infiniband_guid,
        port_mappings,
        bandwidth,
        cni_args,
        device_id,
        default_route,
        ipam_claim_reference,
    } = selection;
    let json = |value: serde_json::Result<String>| value.ok();
    let list = |texts: Vec<String>| Some(texts.join(", "));
    let all = [
        ("ips", (!ips.is_empty()).then(|| ips.join(", "))),
        ("mac", mac.clone()),
        ("infiniband-guid", infiniband_guid.clone()),
        (
            "portMappings",
            if port_mappings.is_empty() {
                None
            } else {
                json(serde_json::to_string(port_mappings))
            },
        ),
        (
            "bandwidth",
            bandwidth
                .as_ref()
                .and_then(|limits| json(serde_json::to_string(limits))),
        ),
        ("cni-args", cni_args.as_ref().map(cni::json::Object::to_json)),
        ("deviceID", device_id.clone()),
        (
            "default-route",
            default_route
                .as_ref()
                .and_then(|gateways| list(gateways.iter().map(ToString::to_string).collect())),
        ),
        ("ipam-claim-reference", ipam_claim_reference.clone()),
    ];
    all.into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
}

/// Differences between requested and attached attributes.
pub(super) fn differences(network: &Network) -> impl Iterator<Item = String> {
    let mut texts = Vec::new();
    if let Some(attached) = &network.attached {
        if !attached.interface.is_empty() && attached.interface != network.interface {
            texts.push(format!("its interface is {}", attached.interface));
        }
        let same_mac = |one: &str, other: &str| Mac::parse(one).ok() == Mac::parse(other).ok();
        if let Some(mac) = network.asks.get("mac")
            && !attached.mac.is_empty()
            && !same_mac(mac, &attached.mac)
        {
            texts.push(format!("mac {mac} was requested, but it has {}", attached.mac));
        }
        let asked = network.asks.get("ips").map(String::as_str).unwrap_or_default();
        for ip in asked.split(", ").filter(|ip| !ip.is_empty()) {
            let address = ip.split('/').next().unwrap_or(ip);
            let parsed = |text: &str| text.parse::<std::net::IpAddr>().ok();
            if !attached.ips.iter().any(|has| parsed(has) == parsed(address)) {
                let has = if attached.ips.is_empty() {
                    "none".to_owned()
                } else {
                    attached.ips.join(", ")
                };
                texts.push(format!("address {ip} was requested, but it has {has}"));
            }
        }
    }
    texts.into_iter()
}
