use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

/// Plugins that note each call and answer with one interface named after themselves.
#[derive(Default)]
struct Fake {
    calls: RefCell<Vec<(String, String, Value)>>,
    failing: BTreeSet<&'static str>,
}

impl Fake {
    fn names(&self) -> Vec<String> {
        self.calls
            .borrow()
            .iter()
            .map(|(verb, plugin, _)| format!("{verb} {plugin}"))
            .collect()
    }
}

impl Runner for Fake {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        let config: Value = serde_json::from_slice(config).unwrap();
        let version = config["cniVersion"].clone();
        self.calls
            .borrow_mut()
            .push((variables[CNI_COMMAND].clone(), plugin.to_owned(), config));
        if self.failing.contains(plugin) {
            return Err(Error::new(code::TRY_AGAIN_LATER, "later"));
        }
        Ok(
            json!({ "cniVersion": version, "interfaces": [{ "name": plugin }] })
                .to_string()
                .into_bytes(),
        )
    }
    fn path(&self) -> String {
        "/bin".into()
    }
}

struct Bench {
    fake: Fake,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(failing: &[&'static str]) -> Self {
        let fake = Fake {
            failing: failing.iter().copied().collect(),
            ..Fake::default()
        };
        Self {
            fake,
            folder: tempfile::tempdir().unwrap(),
        }
    }
    fn with<T>(&self, act: impl FnOnce(Chain<'_, Fake>) -> T) -> T {
        let cache = Cache::new(self.folder.path());
        act(Chain {
            runner: &self.fake,
            cache: &cache,
        })
    }
    fn results(&self) -> usize {
        std::fs::read_dir(self.folder.path().join("results")).map_or(0, Iterator::count)
    }
}

fn list(version: &str) -> NetworkList {
    let text = json!({ "cniVersion": version, "name": "n", "plugins": [
        { "type": "a", "capabilities": { "ips": true }, "unknown": 9_007_199_254_740_993_u64 },
        { "type": "b", "name": "second", "capabilities": { "mac": false } }] });
    NetworkList::parse(text.to_string().as_bytes()).unwrap()
}

fn attachment() -> Attachment {
    Attachment {
        container_id: "c".into(),
        netns: "/run/netns/x".into(),
        ifname: "net1".into(),
        args: CniArgs::parse("K=V").unwrap(),
        capability_args: Object::parse(br#"{"ips": ["10.0.0.1/8"], "mac": "02:00:00:00:00:01"}"#).unwrap(),
    }
}

#[test]
fn plugins_are_chained_and_deleted_in_reverse() {
    let bench = Bench::new(&[]);
    let result = bench
        .with(|chain| chain.add(&list("1.0.0"), &attachment()))
        .unwrap();
    assert_eq!(result.interfaces[0].name, "b");
    let calls = bench.fake.calls.borrow().clone();
    assert_eq!(calls[0].2["name"], "n");
    assert_eq!(calls[0].2["cniVersion"], "1.0.0");
    assert_eq!(calls[0].2["unknown"], 9_007_199_254_740_993_u64);
    assert_eq!(calls[0].2["prevResult"], Value::Null);
    assert_eq!(calls[1].2["prevResult"]["interfaces"][0]["name"], "a");
    // multus#15
    assert_eq!(calls[0].2["runtimeConfig"], json!({ "ips": ["10.0.0.1/8"] }));
    assert_eq!(calls[1].2.get("runtimeConfig"), None);
    assert_eq!(bench.results(), 1);

    bench
        .with(|chain| chain.check(&list("1.0.0"), &attachment()))
        .unwrap();
    bench
        .with(|chain| chain.del(&list("1.0.0"), &attachment()))
        .unwrap();
    assert_eq!(
        bench.fake.names(),
        ["ADD a", "ADD b", "CHECK a", "CHECK b", "DEL b", "DEL a"]
    );
    assert_eq!(
        bench.fake.calls.borrow()[2].2["prevResult"]["interfaces"][0]["name"],
        "b"
    );
    assert_eq!(
        bench.fake.calls.borrow()[4].2["prevResult"]["interfaces"][0]["name"],
        "b"
    );
    assert_eq!(bench.results(), 0);
}

#[test]
fn a_failure_names_the_plugin_and_keeps_its_code() {
    let bench = Bench::new(&["b"]);
    let error = bench
        .with(|chain| chain.add(&list("1.0.0"), &attachment()))
        .unwrap_err();
    assert_eq!(
        error,
        Error::new(11, "plugin type=\"b\" name=\"second\" failed (add): later")
    );
    assert_eq!(bench.results(), 0);
    let error = bench
        .with(|chain| chain.del(&list("1.0.0"), &attachment()))
        .unwrap_err();
    assert_eq!(
        error.msg,
        "plugin type=\"b\" name=\"second\" failed (delete): later"
    );
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b", "DEL b"]);
}

#[test]
fn check_needs_its_version() {
    // multus#50
    let bench = Bench::new(&[]);
    let error = bench
        .with(|chain| chain.check(&list("0.3.1"), &attachment()))
        .unwrap_err();
    assert_eq!(
        error.msg,
        "configuration version \"0.3.1\" does not support the CHECK command"
    );
    let mut disabled = list("0.4.0");
    disabled.disable_check = true;
    bench.with(|chain| chain.check(&disabled, &attachment())).unwrap();
    assert!(bench.fake.names().is_empty());
}

#[test]
fn status_is_called_since_one_one() {
    // multus#51
    let bench = Bench::new(&["a"]);
    bench.with(|chain| chain.status(&list("1.0.0"))).unwrap();
    let error = bench.with(|chain| chain.status(&list("1.1.0"))).unwrap_err();
    assert_eq!(error, Error::new(11, "later"));
}

#[test]
fn gc_detaches_invalid_attachments() {
    let bench = Bench::new(&[]);
    let network = list("1.1.0");
    bench.with(|chain| chain.add(&network, &attachment())).unwrap();
    bench
        .with(|chain| {
            chain.add(
                &network,
                &Attachment {
                    container_id: "live".into(),
                    ..attachment()
                },
            )
        })
        .unwrap();
    bench.fake.calls.borrow_mut().clear();
    let valid = [ValidAttachment {
        container_id: "live".into(),
        ifname: "net1".into(),
    }];
    bench.with(|chain| chain.gc(&network, &valid)).unwrap();
    assert_eq!(bench.fake.names(), ["DEL b", "DEL a", "GC a", "GC b"]);
    let config = &bench.fake.calls.borrow()[2].2;
    let expected = json!([{ "containerID": "live", "ifname": "net1" }]);
    assert_eq!(
        (
            &config["cni.dev/valid-attachments"],
            &config["cni.dev/attachments"]
        ),
        (&expected, &expected)
    );
    assert_eq!(bench.results(), 1);
}

#[test]
fn add_is_validated_before_anything_runs() {
    let bench = Bench::new(&[]);
    for (attachment, code) in [
        (
            Attachment {
                container_id: String::new(),
                ..attachment()
            },
            3,
        ),
        (
            Attachment {
                container_id: "a b".into(),
                ..attachment()
            },
            4,
        ),
        (
            Attachment {
                ifname: "sixteen-chars-xx".into(),
                ..attachment()
            },
            4,
        ),
    ] {
        assert_eq!(
            bench
                .with(|chain| chain.add(&list("1.0.0"), &attachment))
                .unwrap_err()
                .code,
            code
        );
    }
    // multus#34
    let nameless = NetworkList::parse_single(br#"{"type":"a"}"#).unwrap();
    let error = bench
        .with(|chain| chain.add(&nameless, &attachment()))
        .unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (7, "missing network name:"));
    assert!(bench.fake.names().is_empty());
}
