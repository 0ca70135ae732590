use super::*;

fn decode(env: &[(&str, &str)]) -> Result<Request, Error> {
    let env: BTreeMap<_, _> = env.iter().copied().collect();
    Request::decode(
        serde_json::json!({"env": env, "config": "e30="})
            .to_string()
            .as_bytes(),
    )
}

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u1";

#[test]
fn complete_request_is_decoded() {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_ARGS", ARGS),
        ("PATH", "/bin"),
    ];
    let Request::Pod {
        verb,
        sandbox,
        config,
    } = decode(&env).unwrap()
    else {
        panic!("not about a pod")
    };
    assert_eq!(verb, PodVerb::Add);
    assert_eq!(config, b"{}");
    assert_eq!(sandbox.ifname, "eth0");
    assert_eq!(sandbox.pod.to_string(), "ns/web-0/u1");
    assert_eq!(
        sandbox.to_string(),
        format!(r#"ContainerID:"c1" Netns:"/run/netns/a" IfName:"eth0" Args:"{ARGS}" Path:"""#)
    );
}

#[test]
fn request_keys_match_case_insensitively() {
    // multus#12 (the daemon's own requests)
    let body = serde_json::json!({"Env": {"CNI_COMMAND": "ADD", "cni_containerid": "no", "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/n", "CNI_ARGS": ARGS}, "CONFIG": "e30=", "interfaceattributes": {"MAC": "02:00:00:00:00:01"},
        "other": 1});
    let Request::Network {
        sandbox,
        config,
        attributes,
        ..
    } = Request::decode_network(body.to_string().as_bytes()).unwrap()
    else {
        panic!("not about a network")
    };
    assert_eq!(
        (sandbox.container_id.as_str(), config.as_slice()),
        ("c1", &b"{}"[..])
    );
    assert_eq!(attributes.mac.as_deref(), Some("02:00:00:00:00:01"));
    for none in ["null", "[]", "", "{\"env\":7}", "{\"env\":{\"a\":1}}"] {
        let error = Request::decode(none.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("failed to decode the request: "), "{error}");
    }
    let error = Request::decode(b"{\"env\":null}").unwrap_err().to_string();
    assert!(error.contains("unexpected or missing CNI_COMMAND"), "{error}");
}

#[test]
fn missing_value_is_named() {
    let prefix = "could not extract the CNI command args: ";
    let complete = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/n"),
        ("CNI_ARGS", ARGS),
    ];
    for (missing, text) in [
        ("CNI_COMMAND", "unexpected or missing CNI_COMMAND"),
        ("CNI_CONTAINERID", "missing CNI_CONTAINERID"),
        ("CNI_NETNS", "missing CNI_NETNS"),
        ("CNI_ARGS", "missing CNI_ARGS"),
    ] {
        let env: Vec<_> = complete
            .iter()
            .copied()
            .filter(|(key, _)| *key != missing)
            .collect();
        assert_eq!(decode(&env).unwrap_err().to_string(), format!("{prefix}{text}"));
    }
}

#[test]
fn empty_pod_name_is_error() {
    let with = |args| {
        decode(&[
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "c"),
            ("CNI_ARGS", args),
        ])
        .map(|_| ())
        .unwrap_err()
    };
    let prefix = "could not extract the kubernetes runtime args: ";
    assert_eq!(
        with("K8S_POD_NAME").to_string(),
        format!("{prefix}invalid CNI_ARG 'K8S_POD_NAME'")
    );
    assert_eq!(
        with("a=b=c").to_string(),
        format!("{prefix}invalid CNI_ARG 'a=b=c'")
    );
    assert_eq!(
        with("K8S_POD_NAME=a").to_string(),
        format!("{prefix}missing K8S_POD_NAMESPACE")
    );
    assert_eq!(
        with("K8S_POD_NAMESPACE=a").to_string(),
        format!("{prefix}missing K8S_POD_NAME")
    );
    assert_eq!(
        with("K8S_POD_NAMESPACE=;K8S_POD_NAME=a").to_string(),
        "required CNI variable missing. pod name: a; pod namespace: "
    );
}

#[test]
fn status_and_gc_need_only_verb() {
    // multus#52
    for args in [None, Some("")] {
        let mut env = vec![("CNI_COMMAND", "STATUS")];
        env.extend(args.map(|args| ("CNI_ARGS", args)));
        assert!(matches!(
            decode(&env).unwrap(),
            Request::Node {
                verb: NodeVerb::Status,
                ..
            }
        ));
        env[0].1 = "GC";
        assert!(matches!(
            decode(&env).unwrap(),
            Request::Node {
                verb: NodeVerb::Gc,
                ..
            }
        ));
    }
}

fn network(command: &str, attributes: &str) -> Result<Request, Error> {
    let body = format!(
        r#"{{"env":{{"CNI_COMMAND":"{command}","CNI_CONTAINERID":"c1","CNI_NETNS":"/n","CNI_IFNAME":"net1",
            "CNI_ARGS":"{ARGS}"}},"config":"e30="{attributes}}}"#
    );
    Request::decode_network(body.as_bytes())
}

#[test]
fn interface_attributes_are_decoded() {
    // multus#81 (the daemon's part)
    let attributes =
        r#","interfaceAttributes":{"ips":["10.1.1.7/24"],"mac":"02:00:00:00:00:07","cni-args":{"k":1}}"#;
    let Request::Network {
        verb,
        sandbox,
        config,
        attributes,
    } = network("ADD", attributes).unwrap()
    else {
        panic!("not about a network")
    };
    assert_eq!(
        (verb, sandbox.ifname.as_str(), config.as_slice()),
        (PodVerb::Add, "net1", b"{}".as_slice())
    );
    assert_eq!(attributes.ips, ["10.1.1.7/24"]);
    assert_eq!(attributes.mac.as_deref(), Some("02:00:00:00:00:07"));
    assert_eq!(attributes.cni_args.unwrap().to_json(), r#"{"k":1}"#);
    for none in [
        "",
        r#","interfaceAttributes":null"#,
        r#","interfaceAttributes":{"cni-args":null}"#,
    ] {
        let Request::Network { attributes, .. } = network("DEL", none).unwrap() else {
            panic!("not about a network")
        };
        assert_eq!(*attributes, NetworkSelection::default());
    }
}

#[test]
fn malformed_attributes_are_error() {
    let refused = |command, attributes| network(command, attributes).unwrap_err().to_string();
    assert_eq!(refused("GC", ""), "unknown cmd type: GC");
    assert_eq!(
        refused("ADD", r#","interfaceAttributes":{"mac":"x"}"#),
        "failed to decode the request: interfaceAttributes: parsePodNetworkAnnotation: failed to mac: address x: \
         invalid MAC address"
    );
    assert!(matches!(
        network("STATUS", "").unwrap(),
        Request::NetworkStatus { .. }
    ));
}

#[test]
fn unknown_verb_is_error() {
    assert_eq!(
        decode(&[("CNI_COMMAND", "FOO")]).unwrap_err().to_string(),
        "unknown cmd type: FOO"
    );
}
