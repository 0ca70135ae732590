use super::*;

fn file(primary: &str, options: &Options) -> Generated {
    generate(
        Path::new("/host/etc/cni/net.d/10-test.conf"),
        primary.as_bytes(),
        options,
    )
    .unwrap()
}

fn plain() -> Options {
    Options {
        log_to_stderr: true,
        kubeconfig: "/etc/foobar_kubeconfig".into(),
        ..Options::default()
    }
}

fn everything() -> Options {
    Options {
        cni_version: String::new(),
        override_network_name: true,
        namespace_isolation: true,
        global_namespaces: "foobar,barfoo".into(),
        log_to_stderr: false,
        log_level: "DEBUG".into(),
        log_file: "/tmp/foobar.log".into(),
        bin_dir: "/tmp/add_bin_dir".into(),
        conf_dir: "/tmp/multus/net.d".into(),
        readiness_indicator: "/var/lib/foobar_indicator".into(),
        kubeconfig: "/etc/foobar_kubeconfig".into(),
    }
}

// multus#75 (this one and those below: the generated file)
#[test]
fn plain_primary() {
    let generated = file(
        r#"{"type": "cnitesttype", "name": "test1", "cniVersion": "0.3.1"}"#,
        &plain(),
    );
    assert_eq!(generated.name, "00-multus.conf");
    assert_eq!(
        generated.text,
        r#"{
        "cniVersion": "0.3.1",
        "name": "multus-cni-network",
        "type": "multus",
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
                {"cniVersion":"0.3.1","name":"test1","type":"cnitesttype"}
        ]
}
"#
    );
}

// multus#75
#[test]
fn plain_primary_as_list() {
    let generated = file(
        r#"{"type": "cnitesttype", "name": "test1", "cniVersion": "1.0.0"}"#,
        &plain(),
    );
    assert_eq!(generated.name, "00-multus.conflist");
    assert_eq!(
        generated.text,
        r#"{
    "cniVersion": "1.0.0",
    "name": "multus-cni-network",
    "plugins": [ {
        "type": "multus",
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
            {"cniVersion":"1.0.0","name":"test1","type":"cnitesttype"}
        ]
    }]
}
"#
    );
}

// multus#75
#[test]
fn capabilities() {
    let primary = r#"{"cniVersion": "0.3.1", "name": "test1", "type": "cnitesttype",
        "capabilities": {"portMappings": true, "bandwidth": true, "ips": false}}"#;
    assert_eq!(
        file(primary, &plain()).text,
        r#"{
        "cniVersion": "0.3.1",
        "name": "multus-cni-network",
        "type": "multus",
        "capabilities": {"bandwidth":true,"portMappings":true},
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
                {"capabilities":{"bandwidth":true,"ips":false,"portMappings":true},"cniVersion":"0.3.1","name":"test1","type":"cnitesttype"}
        ]
}
"#
    );
}

// multus#75
#[test]
fn capabilities_as_a_list() {
    let primary = r#"{"cniVersion": "1.1.0", "name": "test1", "type": "cnitesttype",
        "capabilities": {"portMappings": true, "bandwidth": true}}"#;
    assert_eq!(
        file(primary, &plain()).text,
        r#"{
    "cniVersion": "1.1.0",
    "name": "multus-cni-network",
    "plugins": [ {
        "type": "multus",
        "capabilities": {"bandwidth":true,"portMappings":true},
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
            {"capabilities":{"bandwidth":true,"portMappings":true},"cniVersion":"1.1.0","name":"test1","type":"cnitesttype"}
        ]
    }]
}
"#
    );
}

// multus#75
#[test]
fn capabilities_of_several_plugins() {
    let primary = r#"{"cniVersion": "0.3.1", "name": "test1", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true}, "mtu": 9007199254740993},
        {"type": "b", "capabilities": {"bandwidth": true}}]}"#;
    assert_eq!(
        file(primary, &plain()).text,
        r#"{
        "cniVersion": "0.3.1",
        "name": "multus-cni-network",
        "type": "multus",
        "capabilities": {"bandwidth":true,"portMappings":true},
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
                {"cniVersion":"0.3.1","name":"test1","plugins":[{"capabilities":{"portMappings":true},"mtu":9007199254740993,"type":"a"},{"capabilities":{"bandwidth":true},"type":"b"}]}
        ]
}
"#
    );
}

// multus#75
#[test]
fn capabilities_of_several_plugins_as_a_list() {
    let primary = r#"{"cniVersion": "1.0.0", "name": "test1", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true}}, {"type": "b", "capabilities": {"bandwidth": true}}]}"#;
    assert_eq!(
        file(primary, &plain()).text,
        r#"{
    "cniVersion": "1.0.0",
    "name": "multus-cni-network",
    "plugins": [ {
        "type": "multus",
        "capabilities": {"bandwidth":true,"portMappings":true},
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
            {"cniVersion":"1.0.0","name":"test1","plugins":[{"capabilities":{"portMappings":true},"type":"a"},{"capabilities":{"bandwidth":true},"type":"b"}]}
        ]
    }]
}
"#
    );
}

// multus#75
#[test]
fn every_option() {
    let primary = r#"{"cniVersion": "0.3.1", "name": "test1", "type": "cnitesttype", "capabilities": {"bandwidth": true}}"#;
    assert_eq!(
        file(primary, &everything()).text,
        r#"{
        "cniVersion": "0.3.1",
        "name": "test1",
        "type": "multus",
        "capabilities": {"bandwidth":true},
        "namespaceIsolation": true,
        "globalNamespaces": "foobar,barfoo",
        "logToStderr": false,
        "logLevel": "debug",
        "logFile": "/tmp/foobar.log",
        "binDir": "/tmp/add_bin_dir",
        "cniConf": "/tmp/multus/net.d",
        "readinessindicatorfile": "/var/lib/foobar_indicator",
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
                {"capabilities":{"bandwidth":true},"cniVersion":"0.3.1","name":"test1","type":"cnitesttype"}
        ]
}
"#
    );
}

// multus#75
#[test]
fn every_option_as_a_list() {
    let primary = r#"{"cniVersion": "1.0.0", "name": "test1", "type": "cnitesttype", "capabilities": {"bandwidth": true}}"#;
    assert_eq!(
        file(primary, &everything()).text,
        r#"{
    "cniVersion": "1.0.0",
    "name": "test1",
    "plugins": [ {
        "type": "multus",
        "capabilities": {"bandwidth":true},
        "namespaceIsolation": true,
        "globalNamespaces": "foobar,barfoo",
        "logToStderr": false,
        "logLevel": "debug",
        "logFile": "/tmp/foobar.log",
        "binDir": "/tmp/add_bin_dir",
        "cniConf": "/tmp/multus/net.d",
        "readinessindicatorfile": "/var/lib/foobar_indicator",
        "kubeconfig": "/etc/foobar_kubeconfig",
        "delegates": [
            {"capabilities":{"bandwidth":true},"cniVersion":"1.0.0","name":"test1","type":"cnitesttype"}
        ]
    }]
}
"#
    );
}

#[test]
fn invalid_options_are_refused() {
    let refused = |primary: &str, options: &Options| {
        generate(Path::new("/10-a.conf"), primary.as_bytes(), options)
            .unwrap_err()
            .to_string()
    };
    let primary = r#"{"cniVersion": "0.3.1", "name": "a", "type": "a"}"#;
    let mut options = plain();
    options.cni_version = "0.4.0".into();
    assert_eq!(
        refused(primary, &options),
        "Multus cni version is \"0.4.0\" while master plugin cni version is \"0.3.1\""
    );
    options = plain();
    options.log_level = "loud".into();
    assert_eq!(
        refused(primary, &options),
        "Log levels should be one of: debug/verbose/error/panic, did not understand: loud"
    );
    assert_eq!(
        refused(r#"{"name": "a", "type": "a"}"#, &plain()),
        "the primary CNI configuration /10-a.conf has no usable cniVersion"
    );
    assert_eq!(refused("{", &plain()), "unusable primary CNI configuration");
}
