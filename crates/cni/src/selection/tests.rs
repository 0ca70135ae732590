use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse(annotation: &str) -> Vec<NetworkSelection> {
    parse_networks(annotation, "ns1").unwrap_or_else(|error| panic!("{annotation}: {error}"))
}

fn error(annotation: &str) -> String {
    parse_networks(annotation, "ns1")
        .expect_err(annotation)
        .to_string()
}

fn triple(network: &NetworkSelection) -> (&str, &str, Option<&str>) {
    (&network.namespace, &network.name, network.interface.as_deref())
}

const JSON: &str =
    "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ";
const LABEL: &str = "parsePodNetworkObjectName: Failed to parse: one or more items did not match comma-delimited \
                     format (must consist of lower case alphanumeric characters). Must start and end with an \
                     alphanumeric character), mismatch @ ";
const INTERFACE: &str = "parsePodNetworkObjectName: Failed to parse interface name: must be less than 15 chars and \
                         not contain '/' or spaces. interface name ";

#[test]
fn comma_list_items() {
    // multus#1, multus#2
    for (item, expected) in [
        ("net1", ("ns1", "net1", None)),
        ("default/net1", ("default", "net1", None)),
        ("net1@my_interface", ("ns1", "net1", Some("my_interface"))),
        (
            "default/net1@my_interface",
            ("default", "net1", Some("my_interface")),
        ),
        ("default / net1 @ Eth.7 ", ("default", "net1", Some("Eth.7"))),
        ("net1@exactly15bytes0", ("ns1", "net1", Some("exactly15bytes0"))),
        ("net1@", ("ns1", "net1", None)),
        ("/net1", ("ns1", "net1", None)),
        ("9", ("ns1", "9", None)),
    ] {
        let networks = parse(item);
        assert_eq!(
            networks.iter().map(triple).collect::<Vec<_>>(),
            [expected],
            "{item}"
        );
    }
}

#[test]
fn comma_list_keeps_the_order_and_drops_spaces() {
    // multus#8
    let networks = parse(" net1,net2 ,\tother/net3 , net1");
    let expected = [
        ("ns1", "net1"),
        ("ns1", "net2"),
        ("other", "net3"),
        ("ns1", "net1"),
    ];
    assert_eq!(
        networks
            .iter()
            .map(|network| (&*network.namespace, &*network.name))
            .collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn an_empty_item_is_an_element_without_name() {
    let networks = parse("net1,");
    assert_eq!(
        networks.iter().map(triple).collect::<Vec<_>>(),
        [("ns1", "net1", None), ("ns1", "", None)]
    );
}

#[test]
fn comma_list_errors() {
    // multus#3-7
    let slash = "parsePodNetworkObjectName: Invalid network object (failed at '/')".to_owned();
    let at = "parsePodNetworkObjectName: Invalid network object (failed at '@')".to_owned();
    for (annotation, expected) in [
        ("root@someIP/root@someOtherIP/root@thirdIP", slash.clone()),
        ("net1,a/b/c", slash),
        ("root@someIP/root@someOtherIP@garbagevalue", at.clone()),
        ("net1@a@b", at),
        ("root@someIP/root@someOtherIP", format!("{LABEL}'root@someIP'")),
        ("Net1", format!("{LABEL}'Net1'")),
        ("ns1/-net", format!("{LABEL}'-net'")),
        ("net-", format!("{LABEL}'net-'")),
        ("net.1", format!("{LABEL}'net.1'")),
        ("default/net1@myIfc Name", format!("{INTERFACE}'myIfc Name'")),
        (
            "default/net1@very_long_interface_name",
            format!("{INTERFACE}'very_long_interface_name'"),
        ),
        ("net1@exactly16bytes00", format!("{INTERFACE}'exactly16bytes00'")),
    ] {
        assert_eq!(error(annotation), expected, "{annotation}");
    }
}

#[test]
fn json_list_elements() {
    // multus#9
    let networks = parse(r#"[{"name":"net1"},{"name":"net2","namespace":"other","interface":"foo"}]"#);
    let expected = [("ns1", "net1", None), ("other", "net2", Some("foo"))];
    assert_eq!(networks.iter().map(triple).collect::<Vec<_>>(), expected);
    // multus#14
    assert_eq!(parse("[]"), []);
    assert_eq!(parse(""), []);
}

#[test]
fn json_list_reads_every_field() {
    let networks = parse(
        r#"[{"name":"net1","namespace":"n","interface":"a","interfaceRequest":"b","ips":["10.1.1.2/24","fd00::2"],
            "mac":"c2:b0:57:49:47:f1","infiniband-guid":"24:8a:07:03:00:8d:ae:2e",
            "portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":1,"hostIP":"10.0.0.1"}],
            "bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":1700},
            "cni-args":{"k":"v","big":9007199254740993,"f":1.50},"deviceID":"0000:00:01.0",
            "default-route":["10.1.1.254","fd00::1"],"ipam-claim-reference":"claim","unknown":[1]}]"#,
    );
    let expected = NetworkSelection {
        name: "net1".to_owned(),
        namespace: "n".to_owned(),
        interface: Some("a".to_owned()),
        ips: vec!["10.1.1.2/24".to_owned(), "fd00::2".to_owned()],
        mac: Some("c2:b0:57:49:47:f1".to_owned()),
        infiniband_guid: Some("24:8a:07:03:00:8d:ae:2e".to_owned()),
        port_mappings: vec![
            PortMapping {
                host_port: 8080,
                container_port: 80,
                protocol: "tcp".to_owned(),
                host_ip: String::new(),
            },
            PortMapping {
                host_port: 1,
                host_ip: "10.0.0.1".to_owned(),
                ..PortMapping::default()
            },
        ],
        bandwidth: Some(Bandwidth {
            ingress_rate: 2048,
            ingress_burst: 1600,
            egress_rate: 4096,
            egress_burst: 1700,
        }),
        cni_args: Some(Object::parse(br#"{"k":"v","big":9007199254740993,"f":1.50}"#).unwrap()),
        device_id: Some("0000:00:01.0".to_owned()),
        default_route: Some(vec!["10.1.1.254".parse().unwrap(), "fd00::1".parse().unwrap()]),
        ipam_claim_reference: Some("claim".to_owned()),
    };
    assert_eq!(networks, [expected]);
    assert_eq!(
        serde_json::to_value(&networks[0].port_mappings).unwrap(),
        json!([{"hostPort":8080,"containerPort":80,"protocol":"tcp"},
            {"hostPort":1,"containerPort":0,"hostIP":"10.0.0.1"}])
    );
    assert_eq!(
        serde_json::to_value(networks[0].bandwidth).unwrap(),
        json!({"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":1700})
    );
}

#[test]
fn json_list_keys_match_in_any_case() {
    // multus#12
    let networks = parse(
        r#"[{"Name":"net1","NAMESPACE":"n","IPS":["10.1.1.2"],"MAC":"c2:b0:57:49:47:f1","Cni-Args":{"Key":1},
            "portmappings":[{"HOSTPORT":1,"hostip":"10.0.0.1"}],"BandWidth":{"INGRESSRATE":5}}]"#,
    );
    let network = &networks[0];
    assert_eq!(triple(network), ("n", "net1", None));
    assert_eq!(network.ips, ["10.1.1.2"]);
    assert_eq!(network.mac.as_deref(), Some("c2:b0:57:49:47:f1"));
    assert_eq!(network.cni_args.as_ref().unwrap().to_json(), r#"{"Key":1}"#);
    assert_eq!(network.port_mappings[0].host_port, 1);
    assert_eq!(network.port_mappings[0].host_ip, "10.0.0.1");
    assert_eq!(network.bandwidth.unwrap().ingress_rate, 5);
}

#[test]
fn empty_texts_and_nulls_count_as_missing() {
    let networks = parse(
        r#"[{"name":"net1","namespace":"","interface":"","interfaceRequest":"old","mac":"","infiniband-guid":"",
            "deviceID":"","ipam-claim-reference":"","ips":null,"bandwidth":null,"portMappings":null,
            "cni-args":null,"default-route":null}]"#,
    );
    let expected = NetworkSelection {
        name: "net1".to_owned(),
        namespace: "ns1".to_owned(),
        interface: Some("old".to_owned()),
        ..NetworkSelection::default()
    };
    assert_eq!(networks, [expected]);
    assert_eq!(
        parse(r#"[{"default-route":[]}]"#)[0].default_route,
        Some(Vec::new())
    );
}

#[test]
fn validation_errors() {
    // multus#10
    for (element, expected) in [
        (
            r#""mac":"foo""#,
            "parsePodNetworkAnnotation: failed to mac: address foo: invalid MAC address",
        ),
        (
            r#""infiniband-guid":"xx""#,
            "parsePodNetworkAnnotation: failed to validate infiniband GUID: address xx: invalid MAC address",
        ),
        (r#""ips":["1.2.3"]"#, r#"failed to parse IP address "1.2.3""#),
        (
            r#""ips":["1.2.3.4","10.01.1.2"]"#,
            r#"failed to parse IP address "10.01.1.2""#,
        ),
        (r#""ips":[""]"#, r#"failed to parse IP address """#),
        (
            r#""ips":["1.2.3.4/33"]"#,
            r#"failed to parse CIDR "1.2.3.4/33": invalid CIDR address: 1.2.3.4/33"#,
        ),
        (
            r#""ips":["10.01.1.2/24"]"#,
            r#"failed to parse CIDR "10.01.1.2/24": invalid CIDR address: 10.01.1.2/24"#,
        ),
        (
            r#""ips":["1.2.3.4/+8"]"#,
            r#"failed to parse CIDR "1.2.3.4/+8": invalid CIDR address: 1.2.3.4/+8"#,
        ),
        (
            r#""ips":["1.2.3.4/"]"#,
            r#"failed to parse CIDR "1.2.3.4/": invalid CIDR address: 1.2.3.4/"#,
        ),
        (
            r#""ips":["fd00::1/129"]"#,
            r#"failed to parse CIDR "fd00::1/129": invalid CIDR address: fd00::1/129"#,
        ),
        // The hardware address is validated first.
        (
            r#""ips":["x"],"mac":"foo""#,
            "parsePodNetworkAnnotation: failed to mac: address foo: invalid MAC address",
        ),
    ] {
        assert_eq!(error(&format!(r#"[{{"name":"net1",{element}}}]"#)), expected);
    }
    for ip in [
        "1.2.3.4",
        "1.2.3.4/0",
        "1.2.3.4/32",
        "fd00::1",
        "fd00::1/128",
        "::ffff:1.2.3.4",
    ] {
        assert_eq!(
            parse(&format!(r#"[{{"name":"net1","ips":["{ip}"]}}]"#))[0].ips,
            [ip]
        );
    }
}

#[test]
fn json_errors() {
    // multus#11, multus#13
    for (annotation, cause) in [
        ("[", "EOF while parsing a list"),
        (r#"{"name":"net1"}"#, "invalid type: map"),
        (r#""net1""#, "invalid type: string"),
        ("net1,[", "expected ident"),
        (r#"[{"name":"net1"}] x"#, "trailing characters"),
        (r#"["net1"]"#, "invalid type: string"),
        ("[null]", "[0]: null is not an object"),
        (r#"[{"name":"net1"},null]"#, "[1]: null is not an object"),
        (r#"[{"name":1}]"#, "[0].name: invalid type: integer"),
        (
            r#"[{"name":"net1"},{"ips":"10.1.1.2"}]"#,
            "[1].ips: invalid type: string",
        ),
        (r#"[{"cni-args":[]}]"#, "[0].cni-args: invalid type: sequence"),
        (
            r#"[{"bandwidth":{"ingressRate":"fast"}}]"#,
            "[0].bandwidth: ingressRate: invalid type: string",
        ),
        (
            r#"[{"default-route":["10.1.1.1/24"]}]"#,
            "[0].default-route: invalid IP address: 10.1.1.1/24",
        ),
    ] {
        let error = error(annotation);
        assert!(
            error.starts_with(&format!("{JSON}{cause}")),
            "{annotation}: {error}"
        );
    }
}

#[test]
fn default_network() {
    // multus#18
    let network = parse_default_network("net1", "kube-system").unwrap();
    assert_eq!(triple(&network), ("kube-system", "net1", None));
    let network = parse_default_network(r#"[{"name":"net1","namespace":"other"}]"#, "kube-system").unwrap();
    assert_eq!(triple(&network), ("other", "net1", None));
    for (annotation, expected) in [
        (
            "",
            r#"parsePodNetworkAnnotation: pod annotation does not have "network" as key"#,
        ),
        (
            "net1,net2",
            "tryLoadK8sPodDefaultNetwork: more than one default network is specified: net1,net2",
        ),
        (
            "[]",
            "tryLoadK8sPodDefaultNetwork: no default network is specified: []",
        ),
        (
            "a/b/c",
            "parsePodNetworkObjectName: Invalid network object (failed at '/')",
        ),
    ] {
        assert_eq!(
            parse_default_network(annotation, "kube-system")
                .unwrap_err()
                .to_string(),
            expected
        );
    }
}

#[test]
fn sizes_are_bounded() {
    let comma = |count| vec!["a"; count].join(",");
    let list = |count| format!("[{}]", vec![r#"{"name":"a"}"#; count].join(","));
    for annotation in [comma(MAX_NETWORKS), list(MAX_NETWORKS)] {
        assert_eq!(parse(&annotation).len(), 256);
    }
    for annotation in [comma(MAX_NETWORKS + 1), list(MAX_NETWORKS + 1)] {
        assert_eq!(
            error(&annotation),
            "parsePodNetworkAnnotation: pod annotation selects 257 networks, at most 256 are allowed"
        );
    }
    assert_eq!(
        error(&"a".repeat(262_145)),
        "parsePodNetworkAnnotation: pod annotation has 262145 bytes, at most 262144 are allowed"
    );
    // Deep nesting exhausts no stack, and errors stay short.
    let deep = "[".repeat(100_000);
    let deep_ips = format!(r#"[{{"ips":{}{}}}]"#, "[".repeat(100_000), "]".repeat(100_000));
    let long = format!("net1@{}", "ä".repeat(100_000));
    let long_mac = format!(r#"[{{"mac":"{}"}}]"#, "ä".repeat(100_000));
    for annotation in [deep, deep_ips, long, long_mac] {
        let error = error(&annotation);
        assert!(error.len() < 1024, "{} bytes", error.len());
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = parse_networks(&text, "ns1");
        let _ = parse_default_network(&text, "ns1");
    }

    #[test]
    fn texts_near_the_grammar_are_read_or_refused(text in r#"[a-z0-9/@, \[\]{}":éA-]{0,60}"#) {
        for network in parse_networks(&text, "ns1").unwrap_or_default() {
            prop_assert!(!network.namespace.is_empty());
        }
    }

    #[test]
    fn any_values_of_the_fields_are_read_or_refused(
        key in "name|ips|mac|infiniband-guid|portMappings|bandwidth|cni-args|default-route",
        value in r#"null|-?[0-9]{1,20}|\[("[0-9a-f:./-]{0,20}")?\]|"[0-9a-f:./é-]{0,20}"|\{"hostPort":1\}"#,
    ) {
        let _ = parse_networks(&format!(r#"[{{"{key}":{value}}}]"#), "ns1");
    }
}
