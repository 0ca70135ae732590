mod del;
mod devices;
mod plug;
mod routes;

use super::netns::{NetnsError, PodNetns, RouteError};
use super::*;
use crate::networks::default_route::{DefaultRoute, RouteAction, RouteActions};
use crate::networks::delegate::Config;
use crate::networks::device_info::DeviceInfo;
use crate::sandbox::PodRef;
use cni::env::Variables;
use cni::error::code;
use cni::json::Object;
use cni::result::CniResult;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A call of a plugin.
#[derive(Debug, Clone)]
struct Called {
    what: String,
    variables: Variables,
    config: Value,
}

/// Plugins that note their calls, attach one interface with one address, or fail.
#[derive(Default)]
struct Fake {
    calls: RefCell<Vec<Called>>,
    failing: BTreeSet<&'static str>,
    silent: BTreeSet<&'static str>,
}

impl Fake {
    fn names(&self) -> Vec<String> {
        self.calls.borrow().iter().map(|call| call.what.clone()).collect()
    }

    fn call(&self, what: &str) -> Called {
        let calls = self.calls.borrow();
        calls
            .iter()
            .find(|call| call.what == what)
            .unwrap_or_else(|| panic!("{what} not in {calls:?}"))
            .clone()
    }
}

impl Runner for Fake {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        let what = format!("{} {plugin}", variables["CNI_COMMAND"]);
        let config: Value = serde_json::from_slice(config).unwrap();
        let version = config.get("cniVersion").cloned().unwrap_or(json!("0.3.1"));
        self.calls.borrow_mut().push(Called {
            what: what.clone(),
            variables: variables.clone(),
            config,
        });
        if self.failing.contains(what.as_str()) {
            return Err(Error::new(code::TRY_AGAIN_LATER, "later"));
        }
        if self.silent.contains(plugin) {
            return Ok(json!({"cniVersion": version}).to_string().into_bytes());
        }
        let result = json!({"cniVersion": version,
            "interfaces": [{"name": variables["CNI_IFNAME"], "sandbox": variables["CNI_NETNS"]}],
            "ips": [{"version": "4", "interface": 0, "address": "10.0.0.1/24"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}]});
        Ok(result.to_string().into_bytes())
    }

    fn path(&self) -> String {
        "/opt/cni/bin".into()
    }
}

#[derive(Default)]
struct FakeNetns {
    gone: bool,
    taken: BTreeSet<&'static str>,
    rerouted: Vec<(String, RouteActions)>,
    defaults: Vec<DefaultRoute>,
}

impl PodNetns for FakeNetns {
    fn has(&mut self, interface: &str) -> Result<bool, NetnsError> {
        if self.gone {
            return Err(NetnsError {
                netns: "/gone".into(),
                cause: "no such file or directory".into(),
            });
        }
        Ok(self.taken.contains(interface))
    }

    fn reroute(&mut self, interface: &str, actions: RouteActions) -> Result<(), RouteError> {
        self.rerouted.push((interface.into(), actions));
        for (ipv4, action) in [(true, actions.v4), (false, actions.v6)] {
            if action == RouteAction::Keep {
                continue;
            }
            self.defaults
                .retain(|route| route.interface != interface || route.ipv4 != ipv4);
            if let RouteAction::Replace(gateway) = action {
                self.defaults.push(default_over(interface, &gateway.to_string()));
            }
        }
        Ok(())
    }

    fn defaults(&mut self) -> Result<Vec<DefaultRoute>, RouteError> {
        Ok(self.defaults.clone())
    }

    fn restore(&mut self, route: &DefaultRoute) -> Result<(), RouteError> {
        self.defaults.push(route.clone());
        Ok(())
    }
}

fn default_over(interface: &str, gateway: &str) -> DefaultRoute {
    let gateway: std::net::IpAddr = gateway.parse().unwrap();
    DefaultRoute {
        interface: interface.into(),
        ipv4: gateway.is_ipv4(),
        gateway: Some(gateway),
        metric: None,
    }
}

struct Bench {
    fake: Fake,
    netns: FakeNetns,
    dir: tempfile::TempDir,
    config: MultusConfig,
    sandbox: Sandbox,
}

impl Bench {
    fn new() -> Self {
        Self::with(&json!({}))
    }

    fn with(keys: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config =
            json!({"cniVersion": "0.4.0", "clusterNetwork": "x", "cniDir": dir.path().join("multus")});
        config
            .as_object_mut()
            .unwrap()
            .extend(keys.as_object().cloned().unwrap());
        let mut config = MultusConfig::parse(&Object::parse(config.to_string().as_bytes()).unwrap()).unwrap();
        config.own.device_info = DeviceInfo::below(dir.path().join("devinfo"));
        let pod = PodRef {
            namespace: "ns".into(),
            name: "pod".into(),
            uid: Some("u1".into()),
        };
        let sandbox = Sandbox {
            container_id: "c1".into(),
            netns: "/run/netns/a".into(),
            ifname: "eth0".into(),
            args: String::new(),
            pod,
        };
        Self {
            fake: Fake::default(),
            netns: FakeNetns::default(),
            dir,
            config,
            sandbox,
        }
    }

    fn failing(mut self, what: &'static str) -> Self {
        self.fake.failing.insert(what);
        self
    }

    fn attacher(&self) -> Attacher<'_, Fake> {
        Attacher {
            runner: &self.fake,
            config: &self.config,
            sandbox: &self.sandbox,
        }
    }

    fn add(&mut self, delegates: &[Delegate]) -> Result<Vec<Attached>, AddError> {
        let attacher = Attacher {
            runner: &self.fake,
            config: &self.config,
            sandbox: &self.sandbox,
        };
        let actions = attacher.prepare(delegates)?;
        attacher.add(delegates, &actions, &mut self.netns)
    }

    fn scratch(&self) -> std::path::PathBuf {
        self.dir.path().join("multus/c1")
    }

    fn results(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.dir.path().join("multus/results")) else {
            return Vec::new();
        };
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn stored(&self) -> Vec<Delegate> {
        match self.attacher().scratch_delegates().unwrap() {
            ScratchState::Delegates(delegates) => delegates,
            other => panic!("no scratch file: {other:?}"),
        }
    }
}

fn single(name: &str) -> Delegate {
    let config = json!({"cniVersion": "0.4.0", "name": name, "type": name, "kubeconfig": "/k", "ipam": {"ranges": [1]}});
    Delegate::new(
        format!("ns/{name}"),
        Config::parse(config.to_string().as_bytes()).unwrap(),
    )
}

fn chain(config: &Value) -> Delegate {
    Delegate::new(
        "ns/list".into(),
        Config::parse(config.to_string().as_bytes()).unwrap(),
    )
}

#[test]
fn networks_attach_in_order_with_own_results() {
    // multus#31
    let mut bench = Bench::new();
    let attached = bench.add(&[single("a"), single("b")]).unwrap();
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b"]);
    assert_eq!(attached[0].result.interfaces[0].name, "eth0");
    assert_eq!(
        (attached[1].display_name.as_str(), attached[1].ifname.as_str()),
        ("ns/b", "net1")
    );
    assert_eq!(attached[1].result.interfaces[0].name, "net1");
    let second = bench.fake.call("ADD b");
    assert_eq!(second.variables["CNI_IFNAME"], "net1");
    assert!(
        second.variables["CNI_ARGS"].contains("K8S_POD_UID=u1"),
        "{:?}",
        second.variables
    );
    // multus#56
    assert!(bench.netns.rerouted.is_empty());
    assert_eq!(second.variables["CNI_CONTAINERID"], "c1");
}

#[test]
fn plugin_without_interfaces_succeeds() {
    // multus#32 (that there is no event is tested beside the daemon)
    let mut bench = Bench::new();
    bench.fake.silent.insert("b");
    let attached = bench.add(&[single("a"), single("b")]).unwrap();
    assert!(attached[1].result.interfaces.is_empty() && attached[1].result.ips.is_empty());
    assert!(cni::status::entries_for("b", &attached[1].result, false, None).is_empty());
}

#[test]
fn failed_add_rolls_back_in_reverse_and_keeps_code() {
    // multus#33 (the daemon adds the prefix)
    let mut bench = Bench::new().failing("ADD b");
    let error = bench.add(&[single("a"), single("b"), single("c")]).unwrap_err();
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    let AddError::Network(failure) = error else {
        panic!("{error:?}")
    };
    let NetworkFailure {
        display_name,
        network,
        ifname,
        error,
    } = *failure;
    assert_eq!(
        (display_name.as_str(), network.as_str(), ifname.as_str()),
        ("ns/b", "b", "net1")
    );
    assert_eq!(error, Error::new(code::TRY_AGAIN_LATER, "later"));
    assert!(bench.results().is_empty());
    assert!(bench.scratch().exists(), "the runtime's DEL still finds it");
}

#[test]
fn nameless_network_rolls_back_earlier_ones() {
    // multus#34
    let mut bench = Bench::new();
    let nameless = Delegate::new("x".into(), Config::parse(br#"{"type":"n"}"#).unwrap());
    let error = bench.add(&[single("a"), nameless]).unwrap_err();
    let AddError::Network(failure) = error else {
        panic!("{error:?}")
    };
    let error = failure.error;
    assert!(error.to_string().contains("missing network name"), "{error}");
    assert!(bench.fake.names().contains(&"DEL a".to_owned()));
    assert!(!bench.fake.names().contains(&"ADD n".to_owned()));
}

#[test]
fn taken_interface_name_calls_no_plugin() {
    // multus#35
    let mut bench = Bench::new();
    bench.netns.taken.insert("net1");
    let error = bench.add(&[single("a"), single("b")]).unwrap_err();
    let AddError::Network(failure) = error else {
        panic!("{error:?}")
    };
    let error = failure.error;
    assert_eq!(
        error.to_string(),
        "DelegateAdd: cannot set \"b\" interface name to \"net1\": validateIfName: interface name net1 already exists"
    );
    assert_eq!(
        bench.fake.names(),
        ["ADD a", "DEL a"],
        "the interface may have another owner"
    );
}

#[test]
fn unusable_namespace_is_named() {
    // multus#36
    let mut bench = Bench::new();
    bench.netns.gone = true;
    let AddError::Network(failure) = bench.add(&[single("a")]).unwrap_err() else {
        panic!("another error")
    };
    let error = failure.error;
    assert!(
        error
            .to_string()
            .contains("no net namespace /gone found: no such file"),
        "{error}"
    );
}

#[test]
fn check_gets_cached_result() {
    // multus#50
    let mut bench = Bench::new();
    let old = Delegate::new(
        "old".into(),
        Config::parse(br#"{"cniVersion":"0.3.1","name":"old","type":"o"}"#).unwrap(),
    );
    let delegates = [single("a"), old.clone()];
    bench.add(&delegates).unwrap();
    bench.attacher().check(&delegates).unwrap();
    assert_eq!(
        bench.fake.names()[2..],
        ["CHECK a"],
        "what has no CHECK is left out"
    );
    let previous = &bench.fake.call("CHECK a").config["prevResult"];
    assert_eq!(previous["interfaces"][0]["name"], "eth0");
    assert_eq!(
        bench.attacher().check(&[old]).unwrap_err().to_string(),
        "DelegateCheck: error invoking DelegateCheck - \"o\": configuration version \"0.3.1\" does not support the CHECK command"
    );
    let disabled =
        chain(&json!({"cniVersion": "0.4.0", "name": "d", "disableCheck": true, "plugins": [{"type": "d"}]}));
    bench.attacher().check(&[disabled]).unwrap();
}

#[test]
fn default_routes_change_in_namespace_and_cache() {
    // multus#54 (the kernel's part is tested on a kernel)
    let mut bench = Bench::new();
    let mut asking = single("b");
    asking.requests.default_route = Some(vec!["10.1.1.254".parse().unwrap()]);
    let attached = bench.add(&[single("a"), asking]).unwrap();
    // The sources of the status.
    assert!(attached[0].result.routes.is_empty());
    let routes = &attached[1].result.routes;
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0].gw, Some("10.1.1.254".parse().unwrap()));
    let gateway = "10.1.1.254".parse().unwrap();
    let expected = [
        (
            "eth0".to_owned(),
            RouteActions {
                v4: RouteAction::Remove,
                v6: RouteAction::Keep,
            },
        ),
        (
            "net1".to_owned(),
            RouteActions {
                v4: RouteAction::Replace(gateway),
                v6: RouteAction::Keep,
            },
        ),
    ];
    assert_eq!(bench.netns.rerouted, expected);
    let cached = |file: &str| -> Value {
        let text = fs::read_to_string(bench.dir.path().join("multus/results").join(file)).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["result"].clone()
    };
    assert_eq!(cached("a-c1-eth0").get("routes"), None);
    assert_eq!(
        cached("b-c1-net1")["routes"],
        json!([{"dst": "0.0.0.0/0", "gw": "10.1.1.254"}])
    );
}

#[test]
fn two_gateways_call_no_plugin() {
    // multus#55
    let mut bench = Bench::new();
    let mut asking = [single("a"), single("b")];
    for delegate in &mut asking {
        delegate.requests.default_route = Some(vec!["10.1.1.254".parse().unwrap()]);
    }
    let AddError::Prepare(text) = bench.add(&asking).unwrap_err() else {
        panic!("another error")
    };
    assert_eq!(text, "multus does not support ECMP for default-route");
    assert!(bench.fake.names().is_empty());
    assert!(!Path::new(&bench.scratch()).exists());
}
