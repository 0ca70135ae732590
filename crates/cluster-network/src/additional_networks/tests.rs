use api::cluster_network::operator::{AdditionalNetwork, NetworkSpec};
use rstest::rstest;

use super::{Helpers, render};
use crate::base::{b, spec};

fn config(network: &str) -> String {
    let rendered = render(&spec(network)).expect("a network");
    rendered.object["spec"]["config"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn errors(network: &str) -> Vec<String> {
    render(&spec(network)).expect_err("it is wrong")
}

// cluster-network#48
#[test]
fn raw_network_is_passed_on_as_text() {
    const TEXT: &str =
        "{\"cniVersion\": \"0.3.1\",\n \"type\": \"weird\", \"number\": 12345678901234567890123}";
    let network = |namespace: &str| AdditionalNetwork {
        kind: "Raw".to_owned(),
        name: "net1".to_owned(),
        namespace: namespace.to_owned(),
        raw_cni_config: format!("{TEXT}\n\n"),
        ..AdditionalNetwork::default()
    };
    for (given, namespace) in [("foobar", "foobar"), ("", "default")] {
        let object = render(&network(given)).expect("a network").object;
        assert_eq!(object["metadata"]["namespace"], namespace);
        assert_eq!(object["metadata"]["name"], "net1");
        assert_eq!(object["apiVersion"], "k8s.cni.cncf.io/v1");
        assert_eq!(object["kind"], "NetworkAttachmentDefinition");
        assert_eq!(object["spec"]["config"], TEXT);
    }
    assert_eq!(
        errors("{type: Raw, rawCNIConfig: wrongCNIConfig}"),
        [
            "Additional Network Name cannot be nil",
            "failed to Unmarshal RawCNIConfig: wrongCNIConfig"
        ]
    );
}

// cluster-network#49
#[test]
fn macvlan_network_is_written_byte_for_byte() {
    assert_eq!(
        config("{type: SimpleMacvlan, name: a}"),
        "{ \"cniVersion\": \"0.3.1\", \"type\": \"macvlan\",\n\"ipam\":       { \"type\": \"dhcp\" } }"
    );
    assert_eq!(
        config(
            "{type: SimpleMacvlan, name: a, simpleMacvlanConfig: {master: eth0, mode: Bridge, mtu: 1515}}"
        ),
        "{ \"cniVersion\": \"0.3.1\", \"type\": \"macvlan\",\n\"master\": \"eth0\",\n\"mode\": \"bridge\",\n\
         \"mtu\": 1515,\n\"ipam\":       { \"type\": \"dhcp\" } }"
    );
    let fixed = config(
        "type: SimpleMacvlan
name: test-network-3
simpleMacvlanConfig:
  ipamConfig:
    type: Static
    staticIPAMConfig:
      routes: [{destination: 0.0.0.0/0, gateway: 198.51.100.1}]
      addresses: [{address: 198.51.100.11/24, gateway: 198.51.100.10}]
      dns:
        nameservers: [198.51.100.1, 198.51.100.2]
        domain: testDNS.example
        search: [testdomain1.example, testdomain2.example]",
    );
    assert_eq!(
        fixed,
        "{ \"cniVersion\": \"0.3.1\", \"type\": \"macvlan\",\n\"ipam\":       {\"type\":\"static\",\"routes\":[{\"dst\":\
         \"0.0.0.0/0\",\"gw\":\"198.51.100.1\"}],\"addresses\":[{\"address\":\"198.51.100.11/24\",\"gateway\":\
         \"198.51.100.10\"}],\"dns\":{\"nameservers\":[\"198.51.100.1\",\"198.51.100.2\"],\"domain\":\
         \"testDNS.example\",\"search\":[\"testdomain1.example\",\"testdomain2.example\"]}} }"
    );
    assert_eq!(
        config("{type: SimpleMacvlan, name: a, simpleMacvlanConfig: {ipamConfig: {type: Static}}}"),
        "{ \"cniVersion\": \"0.3.1\", \"type\": \"macvlan\",\n\"ipam\":       \
         {\"type\":\"static\",\"capabilities\":[\"ips\"]} }"
    );
}

#[test]
fn destination_of_a_route_is_its_network() {
    let text = config(
        "{type: SimpleMacvlan, name: a, simpleMacvlanConfig: {ipamConfig: {type: Static, staticIPAMConfig: {
addresses: [{address: 10.1.1.7/24}], routes: [{destination: 10.1.1.7/24}]}}}}",
    );
    let ipam =
        r#"{"type":"static","routes":[{"dst":"10.1.1.0/24"}],"addresses":[{"address":"10.1.1.7/24"}]}"#;
    assert!(text.contains(ipam), "{text}");
}

// cluster-network#50
#[test]
fn invalid_macvlan_network_reports_all_errors() {
    assert_eq!(
        errors(
            "{type: SimpleMacvlan, name: a, simpleMacvlanConfig: {ipamConfig: {type: Static, staticIPAMConfig: {
addresses: [{address: AAA, gateway: BBB}], routes: [{destination: CCC, gateway: DDD}]}}}}"
        ),
        [
            "invalid static address: invalid CIDR address: AAA",
            "invalid gateway: BBB",
            "invalid route destination: invalid CIDR address: CCC",
            "invalid gateway: DDD",
        ]
    );
    assert_eq!(
        errors(
            "{type: SimpleMacvlan, name: a, simpleMacvlanConfig: {mode: garbage, ipamConfig: {type: garbage}}}"
        ),
        ["invalid Macvlan mode: garbage", "invalid IPAM type: garbage"]
    );
    assert_eq!(
        errors("{type: Other, name: a}"),
        ["unknown or unsupported NetworkType: Other"]
    );
}

#[rstest]
#[case(r#"{type: Raw, rawCNIConfig: '{"ipam":{"type":"dhcp"}}'}"#, true, false)]
#[case(
    r#"{type: Raw, rawCNIConfig: '{"ipam":{"type":"whereabouts"}}'}"#,
    false,
    true
)]
#[case(
    r#"{type: Raw, rawCNIConfig: '{"plugins":[{"type":"tuning"},{"ipam":{"type":"whereabouts"}}]}'}"#,
    false,
    true
)]
#[case(r#"{type: Raw, rawCNIConfig: '{"ipam":"dhcp"}'}"#, false, false)]
#[case(r"{type: Raw, rawCNIConfig: 'no JSON'}", false, false)]
#[case("{type: SimpleMacvlan}", true, false)]
#[case(
    "{type: SimpleMacvlan, simpleMacvlanConfig: {ipamConfig: {type: DHCP}}}",
    true,
    false
)]
#[case(
    "{type: SimpleMacvlan, simpleMacvlanConfig: {ipamConfig: {type: Static}}}",
    false,
    false
)]
fn ipam_needs_helpers(#[case] network: &str, #[case] dhcp: bool, #[case] whereabouts: bool) {
    let mut all: NetworkSpec = b();
    all.additional_networks.push(spec(network));
    assert_eq!(Helpers::of(&all), Helpers { dhcp, whereabouts });
    all.disable_multi_network = Some(true);
    assert_eq!(Helpers::of(&all), Helpers::default());
}
