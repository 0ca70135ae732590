//! Networks of type `SimpleMacvlan`, byte for byte as upstream renders them (§8.2): any difference would cause a write
//! when one operator replaces the other.

use api::cluster_network::operator::{IpamConfig, SimpleMacvlanConfig, StaticIpamConfig};
use serde_json::{Map, Value, json};

use crate::cidr;

/// Type of IPAM with static addresses.
pub(super) const STATIC: &str = "Static";

/// Collects the errors of a configuration.
pub(super) fn check(config: &SimpleMacvlanConfig, errors: &mut Vec<String>) {
    let mode = config.mode.as_str();
    if !["", "Bridge", "Private", "VEPA", "Passthru"].contains(&mode) {
        errors.push(format!("invalid Macvlan mode: {mode}"));
    }
    let Some(ipam) = &config.ipam_config else { return };
    match ipam.kind.as_str() {
        "DHCP" => {}
        STATIC => {
            if let Some(fixed) = &ipam.static_ipam_config {
                check_static(fixed, errors);
            }
        }
        kind => errors.push(format!("invalid IPAM type: {kind}")),
    }
}

fn check_static(config: &StaticIpamConfig, errors: &mut Vec<String>) {
    let gateway = |gateway: &str, errors: &mut Vec<String>| {
        if !gateway.is_empty() && !cidr::is_address(gateway) {
            errors.push(format!("invalid gateway: {gateway}"));
        }
    };
    for address in &config.addresses {
        if let Err(error) = cidr::parse(&address.address) {
            errors.push(format!("invalid static address: {error}"));
        }
        gateway(&address.gateway, errors);
    }
    for route in &config.routes {
        if let Err(error) = cidr::parse(&route.destination) {
            errors.push(format!("invalid route destination: {error}"));
        }
        gateway(&route.gateway, errors);
    }
}

/// The CNI configuration, as JSON.
pub(super) fn render(config: &SimpleMacvlanConfig) -> String {
    let mut text = r#"{ "cniVersion": "0.3.1", "type": "macvlan","#.to_owned();
    text.push('\n');
    if !config.master.is_empty() {
        text += &format!("\"master\": {},\n", json!(config.master));
    }
    if !config.mode.is_empty() {
        text += &format!("\"mode\": {},\n", json!(config.mode.to_lowercase()));
    }
    if config.mtu != 0 {
        text += &format!("\"mtu\": {},\n", config.mtu);
    }
    text + &format!("\"ipam\":       {} }}", ipam(config.ipam_config.as_ref()))
}

fn ipam(config: Option<&IpamConfig>) -> String {
    match config {
        Some(config) if config.kind == STATIC => {
            let fixed = config.static_ipam_config.clone().unwrap_or_default();
            fixed_ipam(&fixed).to_string()
        }
        _ => r#"{ "type": "dhcp" }"#.to_owned(),
    }
}

fn fixed_ipam(config: &StaticIpamConfig) -> Value {
    let mut ipam = Map::new();
    ipam.insert("type".into(), json!("static"));
    let routes = config.routes.iter().map(|route| {
        let network = cidr::parse_masked(&route.destination);
        let destination = network.map_or_else(|_| route.destination.clone(), |network| network.to_string());
        object(&[("dst", &destination), ("gw", &route.gateway)])
    });
    add(&mut ipam, "routes", routes.collect());
    let addresses = config.addresses.iter();
    let addresses = addresses.map(|it| object(&[("address", &it.address), ("gateway", &it.gateway)]));
    add(&mut ipam, "addresses", addresses.collect());
    if let Some(dns) = &config.dns {
        let mut members = Map::new();
        add(&mut members, "nameservers", texts(&dns.nameservers));
        if !dns.domain.is_empty() {
            members.insert("domain".into(), json!(dns.domain));
        }
        add(&mut members, "search", texts(&dns.search));
        if !members.is_empty() {
            ipam.insert("dns".into(), Value::Object(members));
        }
    }
    if config.addresses.is_empty() {
        // Pods request their address in their annotation.
        ipam.insert("capabilities".into(), json!(["ips"]));
    }
    Value::Object(ipam)
}

fn texts(texts: &[String]) -> Vec<Value> {
    texts.iter().map(|text| json!(text)).collect()
}

fn add(members: &mut Map<String, Value>, key: &str, values: Vec<Value>) {
    if !values.is_empty() {
        members.insert(key.to_owned(), Value::Array(values));
    }
}

/// An object of texts, without the empty ones.
fn object(members: &[(&str, &str)]) -> Value {
    let present = members.iter().filter(|(_, value)| !value.is_empty());
    Value::Object(
        present
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect(),
    )
}
