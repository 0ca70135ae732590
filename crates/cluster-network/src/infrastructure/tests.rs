use serde_json::{Value, json};

use super::{Changes, changes};

fn infrastructure(platform: &str, key: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "spec": { "platformSpec": { "type": platform, key: spec } },
        "status": { "platform": platform, "platformStatus": { "type": platform, key: status } },
    })
}

/// The changed fields of `BareMetal` in spec and status, as `None` without a change.
fn bare_metal(spec: &Value, status: &Value) -> Result<(Value, Value), String> {
    let Changes { spec, status } = changes(&infrastructure("BareMetal", "baremetal", spec, status))?;
    let fields = |patch: Option<Value>, key: &str| {
        let fields = patch.map(|patch| patch[key]["baremetal"].clone());
        fields.unwrap_or_default()
    };
    Ok((fields(spec, "platformSpec"), fields(status, "platformStatus")))
}

/// A document with addresses of the API and of the ingress, and networks of machines.
fn addresses(api: &[&str], ingress: &[&str], networks: &[&str]) -> Value {
    json!({ "apiServerInternalIPs": api, "ingressIPs": ingress, "machineNetworks": networks })
}

/// The same in a status, with the deprecated fields.
fn status(api: &[&str], ingress: &[&str], networks: &[&str]) -> Value {
    let mut status = addresses(api, ingress, networks);
    status["apiServerInternalIP"] = json!(api[0]);
    status["ingressIP"] = json!(ingress[0]);
    status
}

const V4: ([&str; 1], [&str; 1]) = (["192.0.2.1"], ["192.0.2.2"]);
const DUAL: ([&str; 2], [&str; 2]) = (["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]);
const NETS: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];

// cluster-network#186
#[test]
fn spec_and_status_agree() {
    let none = Value::Null;
    let installed = status(&V4.0, &V4.1, &[]);
    for (case, spec, before, to_spec, to_status) in [
        (
            "an empty spec takes the addresses of the status",
            json!({}),
            installed.clone(),
            addresses(&V4.0, &V4.1, &[]),
            none.clone(),
        ),
        (
            "so does a missing one",
            Value::Null,
            installed.clone(),
            addresses(&V4.0, &V4.1, &[]),
            none.clone(),
        ),
        (
            "nothing differs",
            addresses(&V4.0, &V4.1, &[]),
            installed.clone(),
            none.clone(),
            none.clone(),
        ),
        (
            "missing lists of networks become empty ones",
            json!({ "apiServerInternalIPs": V4.0, "ingressIPs": V4.1 }),
            json!({
                "apiServerInternalIP": V4.0[0], "ingressIP": V4.1[0],
                "apiServerInternalIPs": V4.0, "ingressIPs": V4.1,
            }),
            json!({ "machineNetworks": [] }),
            json!({ "machineNetworks": [] }),
        ),
        (
            "second addresses and networks are taken over",
            addresses(&DUAL.0, &DUAL.1, &NETS),
            installed.clone(),
            none.clone(),
            addresses(&DUAL.0, &DUAL.1, &NETS),
        ),
        (
            "second addresses are removed, and networks but the first one",
            addresses(&V4.0, &V4.1, &NETS[..1]),
            status(&DUAL.0, &DUAL.1, &NETS),
            none.clone(),
            addresses(&V4.0, &V4.1, &NETS[..1]),
        ),
        (
            "an old installer wrote single addresses alone",
            json!({}),
            json!({ "apiServerInternalIP": V4.0[0], "ingressIP": V4.1[0] }),
            addresses(&V4.0, &V4.1, &[]),
            addresses(&V4.0, &V4.1, &[]),
        ),
        (
            "without any address",
            json!({}),
            json!({}),
            addresses(&[], &[], &[]),
            addresses(&[], &[], &[]),
        ),
    ] {
        assert_eq!(bare_metal(&spec, &before), Ok((to_spec, to_status)), "{case}");
    }
    // Of other fields, the patches have none.
    let mut others = installed.clone();
    others["nodeDNSIP"] = json!("192.0.2.3");
    assert_eq!(
        bare_metal(&addresses(&V4.0, &V4.1, &[]), &others),
        Ok((none.clone(), none))
    );
}

// cluster-network#187
#[test]
fn forbidden_addresses_are_refused() {
    let before = status(&V4.0, &V4.1, &NETS[..1]);
    for (spec, expected) in [
        (
            addresses(&V4.0, &V4.1, &[]),
            "error on syncing machine networks: removing machine networks is forbidden",
        ),
        (
            addresses(&V4.0, &V4.1, &["198.51.100.0/24", "192.0.2.0/24"]),
            "error on syncing machine networks: first machine network cannot be modified, have '192.0.2.0/24' and \
             requested '198.51.100.0/24'",
        ),
        (
            addresses(&["192.0.2.1", "2001:db8::1", "192.0.2.9"], &DUAL.1, &NETS[..1]),
            "error on validating VIPs: number of API VIPs needs to be less or equal to 2, got 3",
        ),
        (
            addresses(&V4.0, &["192.0.2.2", "2001:db8::2", "192.0.2.9"], &NETS[..1]),
            "error on validating VIPs: number of Ingress VIPs needs to be less or equal to 2, got 3",
        ),
        (
            addresses(&DUAL.0, &V4.1, &NETS),
            "error on validating VIPs: number of API VIPs (2) does not match number of Ingress VIPs (1)",
        ),
        (
            addresses(&V4.0, &V4.0, &NETS[..1]),
            "error on validating VIPs: VIPs cannot be equal, got '192.0.2.1' for API and '192.0.2.1' for Ingress",
        ),
        (
            addresses(&["192.0.2.1", "192.0.2.8"], &DUAL.1, &NETS),
            "error on validating VIPs: with more than 1 API VIP at least one from each IP family is required, err: <nil>",
        ),
        (
            addresses(&DUAL.0, &["192.0.2.2", "192.0.2.8"], &NETS),
            "error on validating VIPs: with more than 1 Ingress VIP at least one from each IP family is required, err: \
             <nil>",
        ),
        (
            addresses(&DUAL.0, &DUAL.1, &NETS[..1]),
            "error on validating API VIPs and Machine Networks: VIP '2001:db8::1' cannot be found in any machine network",
        ),
        (
            addresses(&V4.0, &["198.51.100.2"], &NETS[..1]),
            "error on validating Ingress VIPs and Machine Networks: VIP '198.51.100.2' cannot be found in any machine \
             network",
        ),
        (
            addresses(&["192.0.2.7"], &V4.1, &NETS[..1]),
            "error on syncing API VIPs: first VIP cannot be modified, have '192.0.2.1' and requested '192.0.2.7'",
        ),
        (
            addresses(&V4.0, &["192.0.2.7"], &NETS[..1]),
            "error on syncing Ingress VIPs: first VIP cannot be modified, have '192.0.2.2' and requested '192.0.2.7'",
        ),
        (
            addresses(&["no"], &V4.1, &NETS[..1]),
            "error on validating API VIPs and Machine Networks: VIP 'no' is not an IP address",
        ),
        (
            addresses(&V4.0, &V4.1, &["192.0.2.0/24", "no"]),
            "error on validating API VIPs and Machine Networks: invalid CIDR address: no",
        ),
    ] {
        assert_eq!(bare_metal(&spec, &before), Err(expected.to_owned()), "{spec}");
    }
    // Upstream ends with a panic.
    assert_eq!(
        bare_metal(&addresses(&V4.0, &V4.1, &[]), &json!({})),
        Err(
            "error on syncing API VIPs: first VIP cannot be modified, have '' and requested '192.0.2.1'"
                .to_owned()
        )
    );
}

// cluster-network#187
#[test]
fn load_balancer_of_the_user_may_have_one_address() {
    let mut before = status(&V4.0, &V4.0, &[]);
    before["loadBalancer"] = json!({ "type": "UserManaged" });
    let spec = addresses(&V4.0, &V4.0, &[]);
    assert_eq!(bare_metal(&spec, &before), Ok((Value::Null, Value::Null)));
    before["loadBalancer"] = json!({ "type": "OpenShiftManagedDefault" });
    assert!(bare_metal(&spec, &before).is_err());
}

// cluster-network#188
#[test]
fn deprecated_fields_follow_the_lists() {
    let single = |api: &str, ingress: &str| json!({ "apiServerInternalIP": api, "ingressIP": ingress });
    let lists = json!({ "apiServerInternalIPs": ["a", "b"], "ingressIPs": ["i", "j"] });
    let with = |fields: &Value| {
        let mut status = lists.clone();
        status["apiServerInternalIP"] = fields["apiServerInternalIP"].clone();
        status["ingressIP"] = fields["ingressIP"].clone();
        status
    };
    for (case, before, expected) in [
        (
            "lists are completed",
            single("a", "i"),
            json!({ "apiServerInternalIPs": ["a"], "ingressIPs": ["i"] }),
        ),
        ("deprecated fields are completed", lists.clone(), single("a", "i")),
        ("nothing differs", with(&single("a", "i")), Value::Null),
        (
            "the first address counts",
            with(&single("b", "j")),
            single("a", "i"),
        ),
        (
            "the list takes precedence",
            with(&single("c", "k")),
            single("a", "i"),
        ),
        (
            "only what differs",
            with(&single("a", "j")),
            json!({ "ingressIP": "i" }),
        ),
        ("no address", json!({}), Value::Null),
    ] {
        for (platform, key) in [("oVirt", "ovirt"), ("Nutanix", "nutanix")] {
            let status =
                (!expected.is_null()).then(|| json!({ "platformStatus": { key: expected.clone() } }));
            let found = changes(&infrastructure(platform, key, &json!({}), &before));
            assert_eq!(found, Ok(Changes { spec: None, status }), "{case} on {platform}");
        }
    }
}

// cluster-network#188
#[test]
fn other_clusters_stay_as_they_are() {
    let requested = addresses(&V4.0, &V4.1, &[]);
    for (platform, key) in [("VSphere", "vsphere"), ("OpenStack", "openstack")] {
        let found = changes(&infrastructure(
            platform,
            key,
            &json!({}),
            &status(&V4.0, &V4.1, &[]),
        ));
        let spec = Some(json!({ "platformSpec": { key: requested.clone() } }));
        assert_eq!(found, Ok(Changes { spec, status: None }), "{platform}");
    }
    let unchanged = Ok(Changes::default());
    for (platform, key) in [
        ("AWS", "aws"),
        ("None", "none"),
        ("External", "external"),
        ("", "x"),
    ] {
        assert_eq!(
            changes(&infrastructure(platform, key, &requested, &json!({}))),
            unchanged,
            "{platform}"
        );
    }
    // An installation by the user has no fields of the platform.
    for (platform, key) in super::PLATFORMS {
        let object = infrastructure(platform, key, &Value::Null, &Value::Null);
        assert_eq!(changes(&object), unchanged, "{platform}");
    }
    assert_eq!(changes(&json!({ "spec": {} })), unchanged);
    // Old clusters have the deprecated name of the platform alone.
    let mut old = infrastructure("oVirt", "ovirt", &Value::Null, &json!({ "ingressIP": "i" }));
    old["status"]["platformStatus"]["type"] = Value::Null;
    assert!(changes(&old).expect("changes").status.is_some());
}
