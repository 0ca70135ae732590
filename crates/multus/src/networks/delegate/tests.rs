use super::*;
use crate::sandbox::PodRef;
use serde_json::{Value, json};

fn sandbox() -> Sandbox {
    Sandbox {
        container_id: "c1".into(),
        netns: "/run/netns/a".into(),
        ifname: "eth0".into(),
        args: String::new(),
        pod: PodRef {
            namespace: "ns".into(),
            name: "pod".into(),
            uid: Some("u1".into()),
        },
    }
}

fn delegate(config: &Value) -> Delegate {
    Delegate::new(
        "ns/a".into(),
        Config::parse(config.to_string().as_bytes()).unwrap(),
    )
}

fn value(config: &Config) -> Value {
    serde_json::from_str(&config.object().to_json()).unwrap()
}

#[test]
fn missing_name_defaults_to_nad() {
    // multus#19
    for text in [
        r#"{"type":"bridge"}"#,
        r#"{"type":"bridge","name":""}"#,
        r#"{"plugins":[{"type":"bridge"}]}"#,
    ] {
        assert_eq!(
            Config::parse_named(text.as_bytes(), "net1").unwrap().name(),
            "net1"
        );
    }
    assert_eq!(
        Config::parse_named(br#"{"type":"b","name":"x"}"#, "net1")
            .unwrap()
            .name(),
        "x"
    );
}

#[test]
fn network_with_multus_plugin_is_refused() {
    // multus#104
    for text in [
        r#"{"type":"multus-shim"}"#,
        r#"{"type":"cnv-multus-shim"}"#,
        r#"{"type":"multus","delegates":[{"type":"a"}]}"#,
        r#"{"plugins":[{"type":"a"},{"type":"multus-shim"}]}"#,
        r#"{"type":"a","ipam":{"type":"multus-shim"}}"#,
        r#"{"plugins":[{"type":"a","ipam":{"type":"multus"}}]}"#,
    ] {
        let error = Config::parse_named(text.as_bytes(), "n").unwrap_err();
        assert!(matches!(error, Error::ProcessSettings(_)), "{text}: {error}");
        let inline = serde_json::value::RawValue::from_string(text.into()).unwrap();
        assert!(
            matches!(Delegate::inline(&inline), Err(Error::ProcessSettings(_))),
            "{text}"
        );
        // State of old leads to a DEL, not to an error.
        Config::parse(text.as_bytes()).unwrap();
    }
    for text in [
        r#"{"type":"a","ipam":{}}"#,
        r#"{"type":"a","ipam":7}"#,
        r#"{"type":"a","ipam":{"type":"b"}}"#,
    ] {
        Config::parse_named(text.as_bytes(), "n").unwrap();
    }
}

#[test]
fn invalid_configuration_is_error() {
    let text = |config: &str| Config::parse(config.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        text("{}"),
        "LoadDelegateNetConfList: delegate must have the 'type' or 'plugin' field"
    );
    assert_eq!(
        text(r#"{"plugins":[{"type":""}]}"#),
        "LoadDelegateNetConfList: a plugin delegate must have the 'type' field"
    );
    assert!(text("[]").starts_with("failed to unmarshal Spec.Config: "));
    assert!(text("{").starts_with("failed to unmarshal Spec.Config: "));
}

#[test]
fn cni_args_of_pod_win() {
    // multus#17
    let args = Object::parse(br#"{"k": "v"}"#).unwrap();
    let mut single = delegate(&json!({"type": "a", "args": {"cni": {"k": "old", "x": 1}, "other": 2}}));
    single.set_cni_args(&args).unwrap();
    assert_eq!(
        value(&single.config)["args"],
        json!({"cni": {"k": "v", "x": 1}, "other": 2})
    );

    let mut chain = delegate(&json!({"plugins": [{"type": "a"}, {"type": "b", "args": {"cni": {"x": 1}}}]}));
    chain.set_cni_args(&args).unwrap();
    let config = value(&chain.config);
    assert_eq!(config["plugins"][0]["args"]["cni"], json!({"k": "v"}));
    assert_eq!(config["plugins"][1]["args"]["cni"], json!({"x": 1, "k": "v"}));
}

#[test]
fn every_plugin_of_chain_gets_device() {
    let mut chain = delegate(&json!({"name": "n", "plugins": [{"type": "a"}, {"type": "b"}]}));
    chain.set_device("0000:00:01.0".into()).unwrap();
    let expected = json!([
        {"type": "a", "deviceID": "0000:00:01.0", "pciBusID": "0000:00:01.0"},
        {"type": "b", "deviceID": "0000:00:01.0", "pciBusID": "0000:00:01.0"}]);
    assert_eq!(value(&chain.config)["plugins"], expected);
}

fn asking() -> Requests {
    Requests {
        interface: None,
        mac: Some("02:00:00:00:00:01".into()),
        infiniband_guid: Some("02:00:00:00:00:00:00:01".into()),
        device_id: None,
        ips: vec!["10.0.0.1/24".into(), "fd00::1/64".into()],
        port_mappings: Some(raw(&json!([{"hostPort": 80}])).unwrap()),
        bandwidth: Some(raw(&json!({"ingressRate": 1})).unwrap()),
        default_route: None,
    }
}

#[test]
fn capability_args_of_a_secondary_network() {
    // multus#15 (what is offered; the plugin's capabilities choose)
    let mut secondary = delegate(&json!({"type": "a"}));
    secondary.requests = asking();
    secondary.set_device("d1".into()).unwrap();
    let runtime = Object::parse(br#"{"portMappings":[{"hostPort":1}],"unknown":1,"mac":""}"#).unwrap();
    let args = secondary
        .capability_args(2, &runtime, &sandbox(), &DeviceInfo::default())
        .unwrap();
    assert_eq!(
        serde_json::to_value(&args).unwrap(),
        json!({
            "portMappings": [{"hostPort": 80}],
            "bandwidth": {"ingressRate": 1},
            "ips": ["10.0.0.1/24", "fd00::1/64"],
            "mac": "02:00:00:00:00:01",
            "infinibandGUID": "02:00:00:00:00:00:00:01",
            "deviceID": "d1",
            "CNIDeviceInfoFile": "/var/run/k8s.cni.cncf.io/devinfo/cni/ns-a-c1_net2",
        })
    );
}

#[test]
fn master_gets_only_runtimes_capability_args() {
    // multus#16
    let mut master = delegate(&json!({"type": "a"}));
    master.requests = asking();
    let runtime = Object::parse(br#"{"portMappings":[{"hostPort":1}]}"#).unwrap();
    let args = master
        .capability_args(0, &runtime, &sandbox(), &DeviceInfo::default())
        .unwrap();
    assert_eq!(
        serde_json::to_value(&args).unwrap(),
        json!({"portMappings": [{"hostPort": 1}]})
    );
    let args = master.cni_args(&sandbox(), &CniArgs::default(), true);
    assert_eq!(args.get("MAC"), Some("02:00:00:00:00:01"));
    assert_eq!(args.get("IP"), Some("10.0.0.1/24,fd00::1/64"));
}

#[test]
fn cni_args_are_in_upstreams_order() {
    let mut network = delegate(&json!({"type": "a"}));
    let joined = |network: &Delegate, adding| {
        network
            .cni_args(&sandbox(), &CniArgs::default(), adding)
            .to_string()
    };
    let pod = "IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1";
    assert_eq!(joined(&network, true), pod);
    network.requests = asking();
    assert_eq!(
        joined(&network, true),
        format!("{pod};MAC=02:00:00:00:00:01;IP=10.0.0.1/24,fd00::1/64")
    );
    assert_eq!(joined(&network, false), pod);
}

#[test]
fn runtimes_arguments_are_appended() {
    // multus#41
    let mut network = delegate(&json!({"type": "a"}));
    network.requests = asking();
    let mut sandbox = sandbox();
    sandbox.pod.uid = None;
    let own = CniArgs::parse("IgnoreUnknown=1;K8S_POD_NAME=other;K8S_POD_UID=u2;VENDOR=x;VENDOR=y").unwrap();
    assert_eq!(
        network.cni_args(&sandbox, &own, true).to_string(),
        "IgnoreUnknown=true;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u2;\
         IgnoreUnknown=1;K8S_POD_NAME=other;VENDOR=x;VENDOR=y;MAC=02:00:00:00:00:01;IP=10.0.0.1/24,fd00::1/64"
    );
}

#[test]
fn interface_names_count_from_the_master() {
    // multus#1, multus#9
    let plain = delegate(&json!({"type": "a"}));
    let mut named = plain.clone();
    named.requests.interface = Some("foo".into());
    assert_eq!(plain.interface_name(0, &sandbox()), "eth0");
    assert_eq!(plain.interface_name(1, &sandbox()), "net1");
    assert_eq!(named.interface_name(1, &sandbox()), "foo");
    assert_eq!(plain.interface_name(2, &sandbox()), "net2");
    assert_eq!(named.interface_name(0, &sandbox()), "foo");
}

#[test]
fn stripped_chain_is_completed_from_cache() {
    // multus#43
    let mut stripped = delegate(
        &json!({"name": "n", "plugins": [{"type": "a", "ipam": {"type": "x"}}, {"type": "b"}, {"type": "c"}]}),
    );
    let whole = delegate(
        &json!({"name": "n", "plugins": [{"type": "a", "ipam": {"type": "x", "ranges": [1]}}, {"type": "b", "k": 1}]}),
    );
    stripped.config.complete_from(&whole.config).unwrap();
    assert_eq!(
        value(&stripped.config)["plugins"],
        json!([{"type": "a", "ipam": {"type": "x", "ranges": [1]}}, {"type": "b", "k": 1}, {"type": "c"}])
    );
}
