use proptest::prelude::*;

use super::*;
use crate::version::Version;

fn result(text: &str) -> CniResult {
    CniResult::parse(text.as_bytes(), Version::LATEST).unwrap()
}

fn entries(text: &str, is_default: bool) -> Vec<NetworkStatus> {
    entries_for("net", &result(text), is_default, None)
}

/// Interface, addresses and default of each entry.
fn summary(entries: &[NetworkStatus]) -> Vec<(Option<&str>, String, bool)> {
    entries
        .iter()
        .map(|entry| (entry.interface.as_deref(), entry.ips.join(" "), entry.default))
        .collect()
}

#[test]
fn one_interface_gives_one_entry() {
    // multus#14
    let result = result(
        r#"{"interfaces":[{"name":"eth0","mac":"aa:bb:cc:dd:ee:01","sandbox":"/run/netns/x"}],
            "ips":[{"address":"10.244.1.7/24","gateway":"10.244.1.1","interface":0}],
            "routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1"},{"dst":"10.0.0.0/8","gw":"10.244.1.2"}]}"#,
    );
    let mut list = entries_for("kindnet", &result, true, None);
    list.push(NetworkStatus {
        name: "ns/net1".to_owned(),
        ..NetworkStatus::default()
    });
    let expected = r#"[{
    "name": "kindnet",
    "interface": "eth0",
    "ips": [
        "10.244.1.7"
    ],
    "mac": "aa:bb:cc:dd:ee:01",
    "default": true,
    "dns": {},
    "gateway": [
        "10.244.1.1"
    ]
},{
    "name": "ns/net1",
    "dns": {}
}]"#;
    assert_eq!(render(&list), expected);
    assert_eq!(render(&[]), "[]");
}

#[test]
fn every_key_is_in_its_place() {
    let result = result(
        r#"{"interfaces":[{"name":"net1","mac":"aa:bb:cc:dd:ee:01","mtu":1400,"sandbox":"/run/netns/x"}],
            "ips":[{"address":"10.1.1.7/24"},{"address":"fd00::7/64"},{"address":"::ffff:10.9.9.9/128"}],
            "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd00::1"}],
            "dns":{"options":["ndots:5"],"search":["b"],"domain":"a","nameservers":["10.1.1.1"]}}"#,
    );
    let device =
        r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:00:01.0","x":[1,true,null,{}]}}"#;
    let device = RawValue::from_string(device.to_owned()).unwrap();
    let expected = r#"[{
    "name": "net",
    "interface": "net1",
    "ips": [
        "10.1.1.7",
        "fd00::7",
        "10.9.9.9"
    ],
    "mac": "aa:bb:cc:dd:ee:01",
    "mtu": 1400,
    "default": true,
    "dns": {
        "nameservers": [
            "10.1.1.1"
        ],
        "domain": "a",
        "search": [
            "b"
        ],
        "options": [
            "ndots:5"
        ]
    },
    "device-info": {
        "type": "pci",
        "version": "1.1.0",
        "pci": {
            "pci-address": "0000:00:01.0",
            "x": [
                1,
                true,
                null,
                {}
            ]
        }
    },
    "gateway": [
        "fd00::1"
    ]
}]"#;
    let rendered = render(&entries_for("net", &result, true, Some(device)));
    assert_eq!(rendered, expected);
    assert_eq!(render(&parse(&rendered).unwrap()), expected);
}

#[test]
fn default_route_without_gateway_adds_no_gateway() {
    // multus#112
    let list = |routes: &str| {
        entries(
            &format!(r#"{{"interfaces":[{{"name":"net1","sandbox":"/run/netns/x"}}],"routes":[{routes}]}}"#),
            false,
        )
    };
    let none = list(r#"{"dst":"0.0.0.0/0"},{"dst":"::/0"}"#);
    assert_eq!(none[0].gateway, [""; 0]);
    assert!(!render(&none).contains("gateway"), "{}", render(&none));
    let one = list(r#"{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0","gw":"10.1.1.1"}"#);
    assert_eq!(one[0].gateway, ["10.1.1.1"]);
}

#[test]
fn one_interface_on_the_host_is_not_described() {
    let list = entries(
        r#"{"interfaces":[{"name":"veth1","mac":"m","mtu":9}],"ips":[{"address":"10.1.1.7/24"}]}"#,
        true,
    );
    assert_eq!(summary(&list), [(None, "10.1.1.7".to_owned(), true)]);
    assert_eq!((list[0].mac.as_deref(), list[0].mtu), (None, None));
}

const BRIDGE: &str = r#"{"interfaces":[{"name":"br1","mac":"00:00:00:00:00:01"},{"name":"veth1"},
    {"name":"eth0","mac":"00:00:00:00:00:03","mtu":1500,"sandbox":"/run/netns/x"}],
    "ips":[{"address":"10.1.1.1/24","gateway":"10.1.1.254","interface":0},{"address":"10.1.1.7/24","interface":2},
        {"address":"10.1.1.8/24","interface":7},{"address":"fd00::7/64","interface":2}]}"#;

#[test]
fn interfaces_on_the_host_have_no_entry() {
    // multus#59
    let list = entries(BRIDGE, false);
    assert_eq!(
        summary(&list),
        [(Some("eth0"), "10.1.1.7 fd00::7".to_owned(), false)]
    );
    assert_eq!(
        (list[0].mac.as_deref(), list[0].mtu),
        (Some("00:00:00:00:00:03"), Some(1500))
    );
    // The gateway of the bridge's own address does not take the default away from the pod.
    assert_eq!(
        summary(&entries(BRIDGE, true)),
        [(Some("eth0"), "10.1.1.7 fd00::7".to_owned(), true)]
    );
}

#[test]
fn result_without_sandbox_interfaces_has_no_entry() {
    assert!(entries(r#"{"ips":[{"address":"10.1.1.7/24"}]}"#, true).is_empty());
    let text = r#"{"interfaces":[{"name":"a"},{"name":"b"}],"ips":[{"address":"10.1.1.7/24"}]}"#;
    assert!(entries(text, true).is_empty());
}

#[test]
fn of_two_interfaces_one_is_the_default() {
    // multus#60
    let two = |ips: &str| {
        format!(
            r#"{{"interfaces":[{{"name":"a","sandbox":"/x"}},{{"name":"b","sandbox":"/x"}}],"ips":[{ips}],
                "routes":[{{"dst":"0.0.0.0/0","gw":"10.0.0.1"}}],"dns":{{"domain":"d"}}}}"#
        )
    };
    let a = r#"{"address":"10.1.1.7/24","interface":0}"#;
    let b = r#"{"address":"10.1.1.8/24","gateway":"10.1.1.1","interface":1}"#;
    let no_index = r#"{"address":"10.1.1.9/24","gateway":"10.1.1.1"}"#;
    for (ips, default) in [
        (format!("{a},{b}"), [false, true]),
        (format!("{b},{b}"), [false, true]),
        (a.to_owned(), [true, false]),
        (no_index.to_owned(), [true, false]),
        (String::new(), [true, false]),
    ] {
        let list = entries(&two(&ips), true);
        assert_eq!(
            list.iter().map(|entry| entry.default).collect::<Vec<_>>(),
            default,
            "{ips}"
        );
        assert!(
            list.iter()
                .all(|entry| entry.gateway == ["10.0.0.1"] && entry.dns.domain == "d")
        );
        assert!(entries(&two(&ips), false).iter().all(|entry| !entry.default));
    }
}

#[test]
fn addresses_without_an_index_go_to_the_last_entry() {
    // multus#61
    let text = r#"{"interfaces":[{"name":"a","sandbox":"/x"},{"name":"b","sandbox":"/x"},{"name":"host"}],
        "ips":[{"address":"10.1.1.7/24"},{"address":"10.1.1.8/24","interface":0},{"address":"fd00::7/64"}]}"#;
    let expected = [
        (Some("a"), "10.1.1.8".to_owned(), false),
        (Some("b"), "10.1.1.7 fd00::7".to_owned(), false),
    ];
    assert_eq!(summary(&entries(text, false)), expected);
}

#[test]
fn annotations_are_read_as_go_reads_them() {
    let list = parse(
        r#"[{"Name":"a","INTERFACE":"eth0","IPs":["10.1.1.7"],"default":true,"Mtu":1500,"dns":{"Domain":"d"},
            "Device-Info":{"type":"pci"},"x":1},{"name":"b","ips":null,"dns":null,"device-info":null}]"#,
    )
    .unwrap();
    assert_eq!(
        summary(&list),
        [
            (Some("eth0"), "10.1.1.7".to_owned(), true),
            (None, String::new(), false)
        ]
    );
    assert_eq!((list[0].mtu, list[0].dns.domain.as_str()), (Some(1500), "d"));
    assert_eq!(list[0].device_info.as_ref().unwrap().get(), r#"{"type":"pci"}"#);
    assert!(list[1].device_info.is_none());
    assert!(parse("").unwrap().is_empty());
    assert!(parse("[]").unwrap().is_empty());
}

#[test]
fn wrong_annotations_are_refused() {
    let not_a_list = "the network-status annotation is not a JSON list of objects";
    for (annotation, expected) in [
        ("{}", not_a_list),
        ("[", not_a_list),
        ("[1]", not_a_list),
        (
            r#"[{"name":"a"},null]"#,
            "entry 1 of the network-status annotation is null",
        ),
        (
            r#"[{"name":1}]"#,
            "entry 0 of the network-status annotation is invalid",
        ),
    ] {
        assert_eq!(
            parse(annotation).unwrap_err().to_string(),
            expected,
            "{annotation}"
        );
    }
    let error = parse(r#"[{"mtu":"big"}]"#).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.starts_with("mtu: "), "{source}");
}

#[test]
fn device_info_too_deep_to_be_read_keeps_its_text() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let info = RawValue::from_string(deep.clone()).unwrap();
    let entry = NetworkStatus {
        device_info: Some(info),
        ..NetworkStatus::default()
    };
    assert!(render(&[entry]).contains(&deep));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn written_status_is_read_again(
        name in any::<String>(),
        ips in proptest::collection::vec(any::<IpAddr>(), 0..3),
        interface in proptest::option::of("[a-z0-9]{1,15}"),
        mtu in proptest::option::of(1..9000_u32),
        default in any::<bool>(),
    ) {
        let ips = ips.into_iter().map(address).collect();
        let entry = NetworkStatus { name, interface, ips, mtu, default, ..NetworkStatus::default() };
        let rendered = render(std::slice::from_ref(&entry));
        let read = parse(&rendered).unwrap();
        prop_assert_eq!(read.len(), 1);
        prop_assert_eq!(render(&read), rendered);
        prop_assert_eq!((&read[0].name, read[0].mtu, read[0].default), (&entry.name, entry.mtu, entry.default));
    }
}
