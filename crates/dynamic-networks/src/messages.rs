//! Texts of events (multus.md §13.4).

use crate::plan::PlanError;
use cni::json::{Node, Object};
use cni::selection::NetworkSelection;
use kube_kit::client::chain;

/// The common form of the texts. `pod` is `namespace/name`.
fn about(pod: &str, what: &str) -> String {
    format!("pod [{pod}]: {what}")
}

/// An interface was added.
pub(crate) fn added(pod: &str, ifname: &str, element: &NetworkSelection) -> String {
    let (network, suffix) = (&element.name, suffix(element));
    about(
        pod,
        &format!("added interface {ifname} to network: {network}{suffix}"),
    )
}

/// An interface could not be added.
pub(crate) fn failed_adding(pod: &str, ifname: &str, element: &NetworkSelection) -> String {
    let (network, suffix) = (&element.name, suffix(element));
    about(
        pod,
        &format!("failed adding interface {ifname} to network: {network}{suffix}"),
    )
}

/// An interface was removed. `network` is the name of the definition, without its namespace.
pub(crate) fn removed(pod: &str, ifname: &str, network: &str) -> String {
    about(
        pod,
        &format!("removed interface {ifname} from network: {network}"),
    )
}

/// An interface could not be removed.
pub(crate) fn failed_removing(pod: &str, ifname: &str, network: &str) -> String {
    about(
        pod,
        &format!("failed removing interface {ifname} from network: {network}"),
    )
}

/// A pod on the host network requests a network.
pub(crate) fn host_networked(pod: &str) -> String {
    about(pod, "will not add interface to host networked pod")
}

/// An annotation is malformed or impossible.
pub(crate) fn impossible(pod: &str, cause: &PlanError) -> String {
    about(pod, &format!("will not change interfaces: {}", chain(cause)))
}

/// The requested addresses and arguments, if any.
fn suffix(element: &NetworkSelection) -> String {
    let NetworkSelection {
        ips, mac, cni_args, ..
    } = element;
    if ips.is_empty() && mac.is_none() && cni_args.is_none() {
        return String::new();
    }
    let args = cni_args.as_ref().map(map).unwrap_or_default();
    let mac = mac.as_deref().unwrap_or_default();
    format!("(ips: [{}], mac: {mac}, cni-args: map[{args}])", ips.join(" "))
}

/// Keys and values in upstream's format.
fn map(args: &Object) -> String {
    let text = |value: &str| match serde_json::from_str(value) {
        Ok(Node::Text(text)) => text,
        _ => value.to_owned(),
    };
    let mut pairs: Vec<_> = args
        .iter()
        .map(|(key, value)| format!("{key}:{}", text(value.get())))
        .collect();
    pairs.sort();
    pairs.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use cni::selection::parse_networks;

    #[test]
    fn rejection_contains_all_causes() {
        let error = plan("a@net1", r#"[{"name":7}]"#, "ns").unwrap_err();
        assert_eq!(
            impossible("ns/web", &error),
            "pod [ns/web]: will not change interfaces: entry 0 of the network-status annotation is invalid: name: \
             invalid type: integer `7`, expected a string"
        );
    }

    #[test]
    fn added_event_lists_attributes() {
        // multus#81 (the events' texts)
        let annotation = r#"[{"name":"tenant","ips":["10.1.1.7/24","fd00::7/64"],"mac":"02:00:00:00:00:07",
            "cni-args":{"b":"x","a":1}},{"name":"plain"},{"name":"one","mac":"02:00:00:00:00:07"}]"#;
        let elements = parse_networks(annotation, "ns").unwrap();
        assert_eq!(
            added("ns/web", "net1", &elements[0]),
            "pod [ns/web]: added interface net1 to network: tenant(ips: [10.1.1.7/24 fd00::7/64], mac: \
             02:00:00:00:00:07, cni-args: map[a:1 b:x])"
        );
        assert_eq!(
            failed_adding("ns/web", "net1", &elements[1]),
            "pod [ns/web]: failed adding interface net1 to network: plain"
        );
        assert_eq!(
            added("ns/web", "net1", &elements[2]),
            "pod [ns/web]: added interface net1 to network: one(ips: [], mac: 02:00:00:00:00:07, cni-args: map[])"
        );
        assert_eq!(
            removed("ns/web", "net1", "plain"),
            "pod [ns/web]: removed interface net1 from network: plain"
        );
        assert_eq!(
            failed_removing("ns/web", "net1", "plain"),
            "pod [ns/web]: failed removing interface net1 from network: plain"
        );
        assert_eq!(
            host_networked("ns/web"),
            "pod [ns/web]: will not add interface to host networked pod"
        );
    }
}
