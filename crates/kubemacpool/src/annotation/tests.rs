use super::*;

fn rewritten(annotation: &str) -> String {
    to_text(&parse(annotation).unwrap())
}

fn refused(annotation: &str) -> String {
    parse(annotation).unwrap_err().to_string()
}

// kubemacpool#51
#[test]
fn keys_have_a_fixed_order() {
    let annotation = r#" [ {
        "default-route": ["10.0.0.1", "2001:DB8::1"],
        "cni-args": {"z": {"b": 1, "a": [ {"d": 0, "c": "x y"} ]}, "big": 9007199254740993, "exact": 1.50},
        "deviceID": "0000:03:02.1",
        "bandwidth": {"egressBurst": 4, "egressRate": 3, "ingressBurst": 2, "ingressRate": 1},
        "portMappings": [{"hostIP": "1.2.3.4", "protocol": "tcp", "containerPort": 80, "hostPort": 8080},
                         {"containerPort": 81, "hostPort": 8081}],
        "interfaceRequest": "old0",
        "interface": "net0",
        "infiniband-guid": "c2:11:22:33:44:55:66:77",
        "mac": "02:00:00:00:aa:01",
        "ips": ["10.10.0.1/24"],
        "namespace": "ns",
        "name": "net"
    } ] "#;
    assert_eq!(
        rewritten(annotation),
        concat!(
            r#"[{"name":"net","namespace":"ns","ips":["10.10.0.1/24"],"mac":"02:00:00:00:aa:01","#,
            r#""infiniband-guid":"c2:11:22:33:44:55:66:77","interface":"net0","interfaceRequest":"old0","#,
            r#""portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"1.2.3.4"},"#,
            r#"{"hostPort":8081,"containerPort":81}],"#,
            r#""bandwidth":{"ingressRate":1,"ingressBurst":2,"egressRate":3,"egressBurst":4},"#,
            r#""deviceID":"0000:03:02.1","#,
            r#""cni-args":{"big":9007199254740993,"exact":1.50,"z":{"a":[{"c":"x y","d":0}],"b":1}},"#,
            r#""default-route":["10.0.0.1","2001:db8::1"]}]"#
        )
    );
}

#[test]
fn empty_values_are_omitted() {
    let annotation = r#"[{"name": "n", "namespace": "", "ips": [], "mac": "", "infiniband-guid": "", "interface": "",
        "interfaceRequest": null, "portMappings": [], "bandwidth": null, "deviceID": "", "cni-args": null}]"#;
    assert_eq!(rewritten(annotation), r#"[{"name":"n","cni-args":null}]"#);
    assert_eq!(
        rewritten(r#"[{"name":"n","cni-args":{},"bandwidth":{},"default-route":[]}]"#),
        concat!(
            r#"[{"name":"n","bandwidth":{"ingressRate":0,"ingressBurst":0,"egressRate":0,"egressBurst":0},"#,
            r#""cni-args":{},"default-route":[]}]"#
        )
    );
}

#[test]
fn keys_are_matched_as_go_does() {
    assert_eq!(
        rewritten(
            r#"[{"NAME":"a","name":"b","Mac":"02:00:00:00:aa:01","mac":null,"CNI-Args":{"K":1,"k":2}}]"#
        ),
        r#"[{"name":"b","mac":"02:00:00:00:aa:01","cni-args":{"K":1,"k":2}}]"#
    );
}

// kubemacpool#61
#[test]
fn unknown_keys_follow_known_keys() {
    assert_eq!(
        rewritten(
            r#"[{"zeta": 12345678901234567890123, "ipam-claim-reference": "c", "Zeta": {"b": 1, "a": " "}, "zeta": 1.50,
                "none": null, "name": "n",
                "portMappings": [{"x": 1e2, "hostPort": 1}], "bandwidth": {"y": [1, 2], "ingressRate": 5}}]"#
        ),
        concat!(
            r#"[{"name":"n","portMappings":[{"hostPort":1,"containerPort":0,"x":1e2}],"#,
            r#""bandwidth":{"ingressRate":5,"ingressBurst":0,"egressRate":0,"egressBurst":0,"y":[1,2]},"#,
            r#""cni-args":null,"zeta":1.50,"ipam-claim-reference":"c","Zeta":{"b":1,"a":" "},"none":null}]"#
        )
    );
}

#[test]
fn written_annotation_is_stable() {
    let once = rewritten(r#"[{"x":1,"name":"n","cni-args":{"b":1,"a":2},"ips":["1.1.1.1"]},{"name":"m"}]"#);
    assert_eq!(rewritten(&once), once);
}

// kubemacpool#52
#[test]
fn wrong_types_are_refused_with_their_path() {
    let format = "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ";
    for (annotation, place) in [
        (r#"[{"name":"a"},{"name":"b","ips":"10.10.0.1"}]"#, "[1].ips: "),
        (r#"[{"name":{}}]"#, "[0].name: "),
        (r#"[{"name":"a","portMappings":[null]}]"#, "[0].portMappings: "),
        (
            r#"[{"name":"a","portMappings":[{"hostPort":"1"}]}]"#,
            "[0].portMappings: ",
        ),
        (r#"[{"name":"a","bandwidth":[]}]"#, "[0].bandwidth: "),
        (r#"[{"name":"a","cni-args":"x"}]"#, "[0].cni-args: "),
        (r#"[{"name":"a","default-route":["x"]}]"#, "[0].default-route: "),
        (r#"[{"name":"a"},null]"#, "[1]: null"),
    ] {
        let text = refused(annotation);
        assert!(
            text.starts_with(&format!("{format}{place}")),
            "{annotation}: {text}"
        );
    }
}

#[test]
fn oversized_annotation_is_refused() {
    let many = format!("[{}]", vec![r#"{"name":"n"}"#; 257].join(","));
    assert_eq!(
        refused(&many),
        "parsePodNetworkAnnotation: pod annotation selects 257 networks, at most 256 are allowed"
    );
    let long = format!(r#"[{{"name":"{}"}}]"#, "n".repeat(256 * 1024));
    assert!(
        refused(&long).ends_with("at most 262144 are allowed"),
        "{}",
        refused(&long)
    );
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let (open, close) = (open.repeat(20_000), close.repeat(20_000));
        let deep = format!(r#"[{{"name":"n","cni-args":{{"a":{open}1{close}}},"x":{open}1{close}}}]"#);
        let text = refused(&deep);
        assert!(text.contains("nested deeper than 64 levels"), "{text}");
        // Fields that are not parsed may be nested to any depth.
        let unknown = format!(r#"[{{"name":"n","x":{open}1{close}}}]"#);
        assert!(rewritten(&unknown).contains(&open));
    }
    let text = refused(&format!(
        r#"[{{"name":"n","default-route":["{}"]}}]"#,
        "x".repeat(10_000)
    ));
    assert!(text.len() < 3000, "{}", text.len());
}

#[test]
fn addresses_of_existing_pods_are_read_leniently() {
    let holding = |mac: &str, key: &str| Holding {
        mac: Mac::parse(mac).unwrap(),
        key: key.into(),
    };
    let (holdings, wrong) = addresses(
        r#"[{"name":"a","mac":"02-00-00-00-AA-01"}, null, {"name":"b"}, {"name":"c","mac":"xx"}, {"name":"d","mac":7},
            {"name":"a","mac":"02:00:00:00:aa:01"}, {"Name":"e","MAC":"02:00:00:00:aa:01","ips":"wrong"}]"#,
    );
    assert_eq!(
        holdings,
        [
            holding("02:00:00:00:aa:01", "a"),
            holding("02:00:00:00:aa:01", "e")
        ]
    );
    let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    assert_eq!(wrong, ["address xx: invalid MAC address"]);
    for nothing in ["", "a,b", "[", "{}", "[]", "[1]", "null"] {
        assert_eq!(addresses(nothing), (Vec::new(), Vec::new()), "{nothing}");
    }
}
