use api::cluster_network::egress_router::EgressRouterSpec;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::render::{EgressRouterOwner, egress_router};
use crate::settings::Settings;

/// The example of upstream's documentation.
fn example() -> Value {
    json!({
        "addresses": [{ "ip": "192.168.3.10/24", "gateway": "192.168.3.1" }],
        "mode": "Redirect",
        "networkInterface": { "macvlan": { "mode": "Bridge" } },
        "redirect": { "redirectRules": [
            { "destinationIP": "10.100.3.0", "port": 80, "protocol": "UDP" },
            { "destinationIP": "203.0.113.26", "port": 8080, "protocol": "TCP", "targetPort": 80 },
            { "destinationIP": "203.0.113.27", "port": 8443, "protocol": "TCP", "targetPort": 443 },
        ] },
    })
}

fn checked(change: &Value) -> Result<Router, Vec<String>> {
    let mut spec = example();
    for (pointer, value) in change.as_object().expect("changes") {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        spec.pointer_mut(parent).expect("a parent")[key] = value.clone();
    }
    let spec: EgressRouterSpec = serde_json::from_value(spec).expect("a spec");
    check(&spec)
}

fn objects(router: &Router, image: Option<&str>) -> Vec<Value> {
    let variable = |name: &str| match name {
        "NETWORK_OPERATOR_IMAGE" => Some("registry.example/weft:v1".to_owned()),
        "EGRESS_ROUTER_CNI_IMAGE" => image.map(str::to_owned),
        "RELEASE_VERSION" => Some("1.2.3".to_owned()),
        _ => None,
    };
    let settings = Settings::read("openshift-network-operator", variable).expect("settings");
    let owner = EgressRouterOwner {
        namespace: "shop",
        name: "out",
        uid: "u1",
    };
    egress_router(router, &owner, &settings).expect("objects")
}

// cluster-network#110
#[rstest]
#[case::rules_alone(
    json!({}),
    concat!(
        r#"{ "cniVersion": "0.4.0", "type": "egress-router", "name": "egress-router-cni-nad", "ip": { "#,
        r#""addresses": [ "192.168.3.10/24" ], "destinations": ["80 UDP 10.100.3.0","8080 TCP 203.0.113.26 80","#,
        r#""8443 TCP 203.0.113.27 443"],"#, "\n",
        r#""gateway": "192.168.3.1" }, "log_file": "/tmp/egress-router-log", "log_level": "debug" }"#,
    )
)]
#[case::fallback_alone(
    json!({ "/redirect": { "fallbackIP": "203.0.113.9" } }),
    concat!(
        r#"{ "cniVersion": "0.4.0", "type": "egress-router", "name": "egress-router-cni-nad", "ip": { "#,
        r#""addresses": [ "192.168.3.10/24" ], "destinations": [],"#, "\n", r#""fallbackIP": "203.0.113.9","#, "\n",
        r#""gateway": "192.168.3.1" }, "log_file": "/tmp/egress-router-log", "log_level": "debug" }"#,
    )
)]
#[case::other_interface(
    json!({
        "/addresses": [{ "ip": "2001:db8::10/64", "gateway": "2001:db8::1" }, { "ip": "ignored" }],
        "/redirect": { "redirectRules": [{ "destinationIP": "2001:db8:1::1", "port": 53, "protocol": "SCTP" }] },
        "/networkInterface/macvlan": { "mode": "VEPA", "master": "eth1" },
    }),
    concat!(
        r#"{ "cniVersion": "0.4.0", "type": "egress-router", "name": "egress-router-cni-nad", "#,
        r#""interfaceArgs": {"master":"eth1","mode":"vepa"}, "ip": { "addresses": [ "2001:db8::10/64" ], "#,
        r#""destinations": ["53 SCTP 2001:db8:1::1"],"#, "\n",
        r#""gateway": "2001:db8::1" }, "log_file": "/tmp/egress-router-log", "log_level": "debug" }"#,
    )
)]
fn configuration_is_that_of_upstream(#[case] change: Value, #[case] expected: &str) {
    let router = checked(&change).expect("valid");
    assert_eq!(router.config(), expected);
    serde_json::from_str::<Value>(expected).expect("JSON");
}

// cluster-network#110, cluster-network#114
#[test]
fn objects_have_the_names_of_upstream_and_their_owner() {
    let router = checked(&json!({})).expect("valid");
    let ours = objects(&router, None);
    let owners = json!([{
        "apiVersion": "network.operator.openshift.io/v1", "kind": "EgressRouter", "name": "out", "uid": "u1",
        "controller": true,
    }]);
    let named: Vec<_> = ours
        .iter()
        .map(|it| format!("{} {}", it["kind"], it["metadata"]["name"]))
        .collect();
    assert_eq!(
        named,
        [
            r#""NetworkAttachmentDefinition" "egress-router-cni-nad""#,
            r#""Deployment" "egress-router-cni-deployment""#
        ]
    );
    for object in &ours {
        assert_eq!(object["metadata"]["namespace"], "shop");
        assert_eq!(object["metadata"]["ownerReferences"], owners);
        assert_eq!(
            object["metadata"]["annotations"]["release.openshift.io/version"],
            "1.2.3"
        );
    }
    let deployment = &ours[1];
    assert_eq!(
        deployment["metadata"]["labels"],
        json!({ "app": "egress-router-cni" })
    );
    assert_eq!(deployment["spec"]["strategy"], json!({ "type": "Recreate" }));
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(
        annotations["k8s.v1.cni.cncf.io/networks"],
        "[\n  {\n    \"name\":\"egress-router-cni-nad\",\n    \"default-route\": [\"192.168.3.1\"]\n  }\n]\n"
    );
    assert_eq!(
        annotations["target.workload.openshift.io/management"],
        r#"{"effect": "PreferredDuringScheduling"}"#
    );
    let container = |objects: &[Value]| objects[1]["spec"]["template"]["spec"]["containers"][0].clone();
    let own = container(&ours);
    assert_eq!(own["name"], "egress-router-cni-pod");
    assert_eq!(own["image"], "registry.example/weft:v1");
    assert_eq!(
        own["command"],
        json!(["/weft", "cluster-network-operator", "egress-router"])
    );
    assert_eq!(own["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(own["resources"], json!({ "requests": { "cpu": "100m" } }));

    let upstream = objects(&router, Some("registry.example/egress-router-cni:v1"));
    let container = container(&upstream);
    assert_eq!(container["image"], "registry.example/egress-router-cni:v1");
    assert_eq!(container["command"], json!(["/bin/sh", "-c", "sleep infinity"]));
    assert_eq!(container.get("securityContext"), None);
}

// cluster-network#110
#[test]
fn pod_is_replaced_when_its_rules_change() {
    let hash = |change: Value| {
        let objects = objects(&checked(&change).expect("valid"), None);
        let annotations = &objects[1]["spec"]["template"]["metadata"]["annotations"];
        annotations["network.operator.openshift.io/config-hash"].clone()
    };
    assert_eq!(hash(json!({})), hash(json!({})));
    assert_ne!(
        hash(json!({})),
        hash(json!({ "/redirect/fallbackIP": "203.0.113.9" }))
    );
}

// cluster-network#111
#[rstest]
#[case::no_address(json!({ "/addresses": [] }), "router without addresses")]
#[case::no_prefix(
    json!({ "/addresses/0/ip": "192.168.3.10" }),
    "spec.addresses[0].ip \"192.168.3.10\" is not an IP address with a prefix length"
)]
#[case::no_gateway(json!({ "/addresses/0/gateway": "" }), "spec.addresses[0].gateway is missing")]
#[case::bad_gateway(
    json!({ "/addresses/0/gateway": "192.168.3" }),
    "spec.addresses[0].gateway \"192.168.3\" is not an IP address"
)]
#[case::gateway_of_other_family(
    json!({ "/addresses/0/gateway": "2001:db8::1" }),
    "spec.addresses[0].gateway \"2001:db8::1\" is not of the same IP family as the address 192.168.3.10/24 of the router"
)]
#[case::own_gateway(
    json!({ "/addresses/0/gateway": "192.168.3.10" }),
    "spec.addresses[0].gateway \"192.168.3.10\" is the address of the router"
)]
#[case::no_destination(
    json!({ "/redirect/redirectRules": [{ "port": 1, "protocol": "TCP" }] }),
    "spec.redirect.redirectRules[0].destinationIP is missing"
)]
#[case::bad_rule(
    json!({ "/redirect/redirectRules": [{ "destinationIP": "x y", "targetPort": 65536, "protocol": "tcp" }] }),
    "spec.redirect.redirectRules[0].destinationIP \"x y\" is not an IP address; \
     spec.redirect.redirectRules[0].port 0 is not between 1 and 65535; \
     spec.redirect.redirectRules[0].targetPort 65536 is not between 1 and 65535; \
     spec.redirect.redirectRules[0].protocol \"tcp\" is not TCP, UDP or SCTP"
)]
#[case::bad_fallback(
    json!({ "/redirect/fallbackIP": "example.com" }),
    "spec.redirect.fallbackIP \"example.com\" is not an IP address"
)]
#[case::mode(json!({ "/mode": "Proxy" }), "spec.mode \"Proxy\" is not Redirect")]
#[case::interface(
    json!({ "/networkInterface/macvlan": { "mode": "bridge", "master": "eth0/.." } }),
    "spec.networkInterface.macvlan.mode \"bridge\" is not Bridge, Private, VEPA or Passthru; \
     spec.networkInterface.macvlan.master \"eth0/..\" is not the name of a link"
)]
fn error_names_field_and_value(#[case] change: Value, #[case] expected: &str) {
    assert_eq!(checked(&change).expect_err("invalid").join("; "), expected);
}

// cluster-network#110
#[test]
fn gateway_outside_of_the_prefix_is_valid() {
    // The CNI plugin adds a route to the gateway.
    checked(&json!({ "/addresses/0/ip": "192.168.3.10/32" })).expect("valid");
}

fn candidate(name: &str, created: &str, is_valid: bool) -> Candidate {
    let router = checked(&json!({})).expect("valid");
    Candidate {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        created: created.to_owned(),
        router: if is_valid {
            Ok(router)
        } else {
            Err(vec!["wrong".to_owned()])
        },
    }
}

// cluster-network#113
#[rstest]
#[case::oldest(None, [true, true, true], ["taken by b", "apply", "taken by b"])]
#[case::oldest_valid(None, [true, false, true], ["apply", "wrong", "taken by a"])]
#[case::existing_owner(Some("uid-c"), [true, true, true], ["taken by c", "taken by c", "apply"])]
#[case::invalid_owner(Some("uid-c"), [true, true, false], ["taken by c", "taken by c", "wrong"])]
#[case::deleted_owner(Some("uid-d"), [true, true, true], ["taken by b", "apply", "taken by b"])]
#[case::nobody(None, [false, false, false], ["wrong", "wrong", "wrong"])]
fn objects_follow_one_router(
    #[case] owner: Option<&str>,
    #[case] valid: [bool; 3],
    #[case] expected: [&str; 3],
) {
    let created = [
        "2026-01-02T00:00:00Z",
        "2026-01-01T00:00:00Z",
        "2026-01-02T00:00:00Z",
    ];
    let candidates: Vec<Candidate> = ["a", "b", "c"]
        .iter()
        .zip(created)
        .zip(valid)
        .map(|((name, created), is_valid)| candidate(name, created, is_valid))
        .collect();
    let decisions = decide(&candidates, owner).into_iter().map(|it| match it {
        Ok(_) => "apply".to_owned(),
        Err(Refused::Taken(other)) => format!("taken by {other}"),
        Err(refused) => refused.to_string(),
    });
    assert_eq!(decisions.collect::<Vec<_>>(), expected);
}

// cluster-network#115
#[test]
fn conditions_report_pod_and_failure() {
    let at = |second| Timestamp::from_second(second).expect("a time");
    let texts = |conditions: &[Condition]| -> Vec<String> {
        let of = |it: &Condition| {
            let since = it.last_transition_time.as_ref().map(|time| time.0.as_second());
            format!(
                "{} {} {}: {} @{}",
                it.kind,
                it.status,
                it.reason,
                it.message,
                since.unwrap_or_default()
            )
        };
        conditions.iter().map(of).collect()
    };
    let waiting = conditions(None, false, &[], at(1));
    assert_eq!(
        texts(&waiting),
        [
            "Available False NoPodAvailable: Deployment egress-router-cni-deployment has no available pod @1",
            "Degraded False AsExpected:  @1"
        ]
    );
    let available = conditions(None, true, &waiting, at(2));
    assert_eq!(
        texts(&available),
        [
            "Available True PodAvailable:  @2",
            "Degraded False AsExpected:  @1"
        ]
    );
    // The pod still runs with the former spec.
    let invalid = conditions(Some(("InvalidSpec", "wrong")), true, &available, at(3));
    assert_eq!(
        texts(&invalid),
        [
            "Available True PodAvailable:  @2",
            "Degraded True InvalidSpec: wrong @3"
        ]
    );
    let taken = conditions(Some(("NamesTaken", "by a")), false, &[], at(4));
    assert_eq!(
        texts(&taken),
        [
            "Available False NamesTaken: by a @4",
            "Degraded True NamesTaken: by a @4"
        ]
    );
}
