use proptest::prelude::*;

use super::*;

struct Fake;

impl Plugin for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        if call.config.object.contains("fail") {
            return Err(Error::new(code::TRY_AGAIN_LATER, "later"));
        }
        let mut result = CniResult::default();
        result.interfaces.push(crate::result::Interface {
            name: call.request.ifname.clone(),
            ..Default::default()
        });
        Ok(result)
    }
    fn del(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }
}

fn environment(verb: &str, netns: &str) -> Variables {
    [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", "net1"),
        ("CNI_PATH", "/x"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

fn run(verb: &str, netns: &str, stdin: &str) -> Outcome {
    dispatch(&Fake, &environment(verb, netns), || Ok(stdin.as_bytes().to_vec()))
}

fn error(verb: &str, stdin: &str) -> Error {
    let outcome = run(verb, "/nowhere", stdin);
    assert_eq!(outcome.code, 1);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn manual_call_prints_description() {
    // cni-plugins#1
    let outcome = dispatch(&Fake, &Variables::new(), || Err(Error::internal("not read")));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""));
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert!(lines[0].starts_with("CNI fake plugin "), "{lines:?}");
    assert_eq!(
        lines[1],
        "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"
    );
}

#[test]
fn version_is_one_line() {
    // cni-plugins#3
    let variables = [("CNI_COMMAND".to_owned(), "VERSION".to_owned())].into();
    let outcome = dispatch(&Fake, &variables, || Err(Error::internal("not read")));
    assert_eq!(
        outcome.stdout,
        "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
    );
}

#[test]
fn a_result_is_printed_in_the_configs_version() {
    let outcome = run("ADD", "/nowhere", r#"{"cniVersion":"0.4.0","name":"n"}"#);
    assert_eq!(outcome.code, 0);
    assert_eq!(
        outcome.stdout,
        "{\n    \"cniVersion\": \"0.4.0\",\n    \"interfaces\": [\n        {\n            \"name\": \"net1\"\n        }\n    ],\n    \"dns\": {}\n}"
    );
    // cni-plugins#9
    assert_eq!(
        error("ADD", r#"{"cniVersion":"0.2.0","name":"n"}"#).msg,
        "cannot convert: no valid IP addresses"
    );
}

#[test]
fn configs_are_validated_in_order() {
    // cni-plugins#4
    assert_eq!(error("ADD", "nonsense").code, 6);
    assert!(
        error("ADD", "nonsense")
            .msg
            .starts_with("error unmarshall network config: ")
    );
    let missing = error("ADD", r#"{"cniVersion":"9.9.9"}"#);
    assert_eq!((missing.code, missing.msg.as_str()), (7, "missing network name"));
    let odd = error("ADD", r#"{"name":"my net"}"#);
    assert_eq!(
        odd,
        Error::new(7, "invalid characters found in network name").with_details("my net")
    );
}

#[test]
fn config_errors_precede_unknown_verb() {
    let said = |stdin: &str| {
        let error = error("DANCE", stdin);
        (error.code, error.msg)
    };
    assert_eq!(
        said(r#"{"name":"n"}"#),
        (4, "unknown CNI_COMMAND: DANCE".to_owned())
    );
    assert_eq!(said("{}"), (7, "missing network name".to_owned()));
    assert_eq!(said("").0, 6);
}

#[test]
fn configs_are_bounded_in_length_and_depth() {
    let error_of = |length: u64| read_config(std::io::repeat(b' ').take(length)).unwrap_err();
    assert_eq!(read_config(std::io::empty()).unwrap(), b"");
    assert_eq!(
        read_config(std::io::repeat(b' ').take(8 << 20)).unwrap().len(),
        8 << 20
    );
    assert_eq!(
        error_of(u64::MAX),
        Error::new(5, "error reading from stdin: more than 8 MiB")
    );
    for (open, close) in [("[", "]"), (r#"{"x":"#, "}")] {
        let deep = format!("{}1{}", open.repeat(1_000_000), close.repeat(1_000_000));
        for key in ["x", "prevResult", "ipam", "args"] {
            let error = error("ADD", &format!(r#"{{"name":"n","{key}":{deep}}}"#));
            assert_eq!(error.code, 6, "{error}");
            assert!(error.msg.contains("recursion limit exceeded"), "{error}");
        }
    }
}

#[test]
fn config_with_invalid_utf8_is_refused() {
    for (stdin, why) in [
        (&b"\xff\xfe{\0}"[..], "expected value"),
        (b"{\"name\":\"\xff\"}", "invalid unicode"),
        (b"{\"name\":\"\\ud800\"}", "hex escape"),
        (b"{\"name\":\"n\",\"mtu\":1e999}", "number out of range"),
        (b"[]", "expected an object"),
    ] {
        let outcome = dispatch(&Fake, &environment("ADD", "/nowhere"), || Ok(stdin.to_vec()));
        let error: Error = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(error.code, 6, "{error}");
        assert!(error.msg.contains(why), "{error}");
    }
}

#[test]
fn verbs_are_gated_by_version() {
    // cni-plugins#5
    let of = |verb: &str, version: &str| {
        let error = error(verb, &format!(r#"{{"cniVersion":"{version}","name":"n"}}"#));
        (error.code, error.msg)
    };
    assert_eq!(
        of("CHECK", "0.3.1"),
        (1, "config version does not allow CHECK".into())
    );
    assert_eq!(of("GC", "1.0.0"), (1, "config version does not allow GC".into()));
    assert_eq!(
        of("STATUS", "1.0.0"),
        (1, "config version does not allow STATUS".into())
    );
    let silent = run("GC", "/nowhere", r#"{"cniVersion":"1.1.0","name":"n"}"#);
    assert_eq!(silent, Outcome::default());
}

#[test]
fn errors_keep_their_code() {
    assert_eq!(error("ADD", r#"{"name":"n","fail":1}"#), Error::new(11, "later"));
}

#[test]
fn the_plugins_own_namespace_is_refused() {
    let outcome = run("ADD", "/proc/self/ns/net", r#"{"name":"n","cniVersion":"1.0.0"}"#);
    let error: Error = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (
            8,
            "plugin's netns and netns from CNI_NETNS should not be the same"
        )
    );
}

fn any_environment() -> impl Strategy<Value = Variables> {
    let name = "CNI_(COMMAND|CONTAINERID|NETNS|IFNAME|ARGS|PATH|NETNS_OVERRIDE)|.*";
    let value = prop_oneof!["ADD|DEL|CHECK|GC|STATUS|VERSION|[a-z0-9]{0,20}", any::<String>()];
    proptest::collection::btree_map(name, value, 0..9)
}

fn any_config() -> impl Strategy<Value = Vec<u8>> {
    let near = r#"\{("(cniVersion|name|type|ipam|dns|prevResult|capabilities)":("(1.1.0|0.2.0|n|[a-z]*)"|[0-9]{1,30}|null|\[\]|\{\}),?){0,5}\}"#;
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..100),
        near.prop_map(String::into_bytes)
    ]
}

proptest! {
    #[test]
    fn any_call_is_answered(variables in any_environment(), config in any_config()) {
        let outcome = dispatch(&Fake, &variables, || Ok(config));
        if outcome.code == 0 {
            let object = outcome.stdout.starts_with('{');
            prop_assert!(outcome.stdout.is_empty() || object);
        } else {
            let error: Error = serde_json::from_str(&outcome.stdout).unwrap();
            prop_assert!(error.code != 0 && !error.msg.is_empty());
        }
    }
}
