//! Every verb × version × form × capability over plugins that record their calls. The expected calls are computed here
//! from multus.md §4.5 and §10, not by the product.

use crate::node::{Node, Sandbox};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// No version at all means 0.1.0.
const VERSIONS: [&str; 8] = ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Multus' own version.
const OWN: &str = "1.1.0";
const MAC: &str = "02:00:00:00:00:99";
const IP: &str = "10.1.0.7/24";

/// The form of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One plugin.
    Single,
    /// A list of two, of which the second takes other capabilities than the first.
    List,
}

/// One network of the corpus.
#[derive(Debug, Clone, Copy)]
struct Network {
    version: &'static str,
    form: Form,
    capable: bool,
}

/// All of them.
fn corpus() -> Vec<Network> {
    let forms = VERSIONS
        .iter()
        .flat_map(|version| [(*version, Form::Single), (*version, Form::List)]);
    let networks = forms.flat_map(|(version, form)| {
        [true, false].map(|capable| Network {
            version,
            form,
            capable,
        })
    });
    networks.collect()
}

/// The file of a plugin of this version at this place of a list, 1 or 2.
fn plugin(version: &str, place: usize) -> String {
    format!("r{place}-{version}")
}

/// The answer of such a plugin; `ifname` and `netns` are filled in.
fn answer(version: &str, place: usize, ifname: &str, netns: &str) -> Value {
    let (address, gateway) = (format!("10.{place}.0.1/24"), format!("10.{place}.0.254"));
    let routes = json!([{"dst": "10.9.0.0/16"}]);
    let mut result = match version {
        "" | "0.1.0" | "0.2.0" => json!({"ip4": {"ip": address, "gateway": gateway, "routes": routes}}),
        _ => {
            json!({"interfaces": [{"name": ifname, "mac": format!("02:00:00:00:00:0{place}"), "sandbox": netns}],
            "ips": [{"interface": 0, "address": address, "gateway": gateway}], "routes": routes})
        }
    };
    if matches!(version, "0.3.0" | "0.3.1" | "0.4.0") {
        result["ips"][0]["version"] = json!("4");
    }
    if !version.is_empty() {
        result["cniVersion"] = json!(version);
    }
    result
}

/// A plugin that records its calls, one file each, and answers ADD.
fn write_plugin(node: &Node, version: &str, place: usize) {
    let dir = node.path("corpus");
    let answer = answer(version, place, "$CNI_IFNAME", "$CNI_NETNS").to_string();
    let answer = answer
        .replace('$', "'$")
        .replace("$CNI_IFNAME", "$CNI_IFNAME'")
        .replace("$CNI_NETNS", "$CNI_NETNS'");
    let script = format!(
        "#!/bin/sh\nfile={dir}/$CNI_COMMAND.$CNI_CONTAINERID.$CNI_IFNAME.${{0##*/}}\n\
         cat > $file.json\nenv > $file.env\n[ $CNI_COMMAND = ADD ] || exit 0\necho '{answer}'\n",
        dir = dir.display(),
    );
    let path = node.path("bin").join(plugin(version, place));
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Network {
    /// Name of the definition.
    fn nad(self) -> String {
        let version = if self.version.is_empty() {
            "none"
        } else {
            self.version
        };
        let form = if self.form == Form::Single {
            "single"
        } else {
            "list"
        };
        let capable = if self.capable { "able" } else { "plain" };
        format!("{form}-{version}-{capable}")
    }

    /// Name of the network: with capabilities it has one of its own.
    fn name(self) -> String {
        if self.capable {
            format!("own-{}", self.nad())
        } else {
            self.nad()
        }
    }

    fn places(self) -> usize {
        if self.form == Form::Single { 1 } else { 2 }
    }

    /// The plugin's own part of the configuration, with a number that no float holds.
    fn plugin_config(self, place: usize) -> Map<String, Value> {
        let mut config = Map::new();
        config.insert("type".into(), json!(plugin(self.version, place)));
        config.insert("unknown".into(), json!({"deep": [1, 9_007_199_254_740_993_u64]}));
        if self.capable {
            let capabilities = match place {
                1 => json!({"portMappings": true, "ips": true, "mac": false}),
                _ => json!({"mac": true}),
            };
            config.insert("capabilities".into(), capabilities);
        }
        config
    }

    /// The configuration in the definition.
    fn config(self) -> Value {
        let mut config = match self.form {
            Form::Single => Value::Object(self.plugin_config(1)),
            Form::List => json!({"plugins": [self.plugin_config(1), self.plugin_config(2)]}),
        };
        if self.capable {
            config["name"] = json!(self.name());
        }
        if !self.version.is_empty() {
            config["cniVersion"] = json!(self.version);
        }
        config
    }

    /// The version that a call is made in: lists without one are detached in multus' own (§5.3, 5).
    fn version_at(self, verb: &str) -> &'static str {
        if verb == "DEL" && self.form == Form::List && self.version.is_empty() {
            OWN
        } else {
            self.version
        }
    }

    /// The expected input of the plugin at a place (§10.4, §10.5).
    fn expected(self, verb: &str, place: usize, ifname: &str, netns: &str, requested: bool) -> Value {
        let mut config = self.plugin_config(place);
        let version = self.version_at(verb);
        config.insert("name".into(), json!(self.name()));
        // A list's version is forced in, also when it has none.
        if self.form == Form::List || !version.is_empty() {
            config.insert("cniVersion".into(), json!(version));
        }
        if self.capable && !matches!(verb, "STATUS" | "GC") {
            let mut runtime = Map::new();
            if place == 1 {
                runtime.insert("portMappings".into(), ports());
                if requested {
                    runtime.insert("ips".into(), json!([IP]));
                }
            } else if requested {
                runtime.insert("mac".into(), json!(MAC));
            }
            if !runtime.is_empty() {
                config.insert("runtimeConfig".into(), Value::Object(runtime));
            }
        }
        let later = matches!(version, "0.4.0" | "1.0.0" | "1.1.0");
        let previous = match verb {
            "ADD" => (place == 2).then_some(1),
            "CHECK" => Some(self.places()),
            "DEL" => later.then_some(self.places()),
            _ => None,
        };
        if let Some(previous) = previous {
            config.insert("prevResult".into(), self.result(version, previous, ifname, netns));
        }
        Value::Object(config)
    }

    /// A plugin's answer, in the version of the next plugin's call.
    fn result(self, version: &str, place: usize, ifname: &str, netns: &str) -> Value {
        let mut result = answer(self.version, place, ifname, netns);
        if self.version.is_empty() && version == OWN {
            // 0.1.0 has no interfaces (§10.8).
            result = json!({"ips": [{"address": format!("10.{place}.0.1/24"), "gateway": format!("10.{place}.0.254")}],
                "routes": [{"dst": "10.9.0.0/16"}]});
        }
        let said = if version.is_empty() { "0.1.0" } else { version };
        result["cniVersion"] = json!(said);
        result
    }

    /// Whether CHECK is called: secondary networks whose version has none are passed over (§5.4).
    fn is_checked(self) -> bool {
        matches!(self.version, "0.4.0" | "1.0.0" | "1.1.0")
    }
}

fn ports() -> Value {
    json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}])
}

/// All calls since the last time: file name without ending → configuration and environment.
fn calls(node: &Node) -> BTreeMap<String, (Value, String)> {
    let dir = node.path("corpus");
    let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
    let calls = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .map(|path| {
            let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            // A result may list no name servers, or lack the key.
            if config["prevResult"]["dns"] == json!({}) {
                config["prevResult"].as_object_mut().unwrap().shift_remove("dns");
            }
            let environment = fs::read_to_string(path.with_extension("env")).unwrap();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, (config, environment))
        });
    let calls = calls.collect();
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    calls
}

/// Compares calls with the expected ones, and prints all differences.
fn compare(
    verb: &str,
    mut found: BTreeMap<String, (Value, String)>,
    expected: BTreeMap<String, Value>,
) -> BTreeMap<String, String> {
    let mut wrong = Vec::new();
    let mut environments = BTreeMap::new();
    for (name, config) in expected {
        match found.remove(&name) {
            None => wrong.push(format!("{name} was not called")),
            Some((is, _)) if is != config => wrong.push(format!("{name}\n  is     {is}\n  should {config}")),
            Some((_, environment)) => {
                environments.insert(name, environment);
            }
        }
    }
    wrong.extend(found.keys().map(|name| format!("{name} was called")));
    assert!(wrong.is_empty(), "{verb}:\n{}", wrong.join("\n"));
    environments
}

/// The value of a variable.
fn variable<'a>(environment: &'a str, name: &str) -> Option<&'a str> {
    environment
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// A node whose multus speaks 1.1.0, with all plugins and definitions.
fn node() -> Node {
    let mut node = Node::new();
    fs::create_dir(node.path("corpus")).unwrap();
    for version in VERSIONS {
        write_plugin(&node, version, 1);
        write_plugin(&node, version, 2);
    }
    let primary = json!({"cniVersion": OWN, "name": "cluster-net", "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    for network in corpus() {
        node.nad(&network.nad(), &network.config());
    }
    node.start(&json!({"cniVersion": OWN, "multusNamespace": node.name}));
    node
}

fn with_ports(mut sandbox: Sandbox) -> Sandbox {
    sandbox.keys = json!({"runtimeConfig": {"portMappings": ports()}});
    sandbox
}

// multus#15, multus#41, multus#48, multus#50
#[test]
fn pods_networks_work_in_every_version_and_form() {
    let node = node();
    let attributes = corpus()
        .into_iter()
        .map(|network| json!({"name": network.nad(), "ips": [IP], "mac": MAC}));
    let attributes = Value::Array(attributes.collect());
    let uid = node.pod(
        "web",
        &json!({"k8s.v1.cni.cncf.io/networks": attributes.to_string()}),
    );
    let sandbox = with_ports(node.sandbox("c1", "web", Some(&uid)));
    let expected = |verb: &str| -> BTreeMap<String, Value> {
        let numbered = corpus().into_iter().zip(1..);
        let asked = numbered.filter(|(network, _)| verb != "CHECK" || network.is_checked());
        let calls = asked.flat_map(|(network, index)| {
            let ifname = format!("net{index}");
            let netns = sandbox.netns.clone();
            (1..=network.places()).map(move |place| {
                let name = format!("{verb}.c1.{ifname}.{}", plugin(network.version, place));
                (name, network.expected(verb, place, &ifname, &netns, true))
            })
        });
        calls.collect()
    };
    let always = format!(
        "IgnoreUnknown=true;K8S_POD_NAMESPACE={};K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID={uid}",
        node.name
    );
    for verb in ["ADD", "CHECK", "DEL"] {
        node.succeed(verb, &sandbox);
        for (name, environment) in compare(verb, calls(&node), expected(verb)) {
            let requested = if verb == "ADD" {
                format!(";MAC={MAC};IP={IP}")
            } else {
                String::new()
            };
            assert_eq!(
                variable(&environment, "CNI_ARGS"),
                Some(&*format!("{always}{requested}")),
                "{name}"
            );
            assert_eq!(
                variable(&environment, "CNI_NETNS"),
                Some(&*sandbox.netns),
                "{name}"
            );
        }
        if verb == "ADD" {
            // Results without interfaces have no entry (§6).
            let status = node.status("web").unwrap();
            let named: Vec<_> = status
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| entry["name"].as_str().unwrap())
                .collect();
            let shown = corpus()
                .into_iter()
                .filter(|network| !matches!(network.version, "" | "0.1.0" | "0.2.0"));
            let shown = shown.map(|network| format!("{}/{}", node.name, network.nad()));
            let all: Vec<_> = std::iter::once("cluster-net".to_owned()).chain(shown).collect();
            assert_eq!(named, all);
        }
    }
}

// multus#16, multus#27, multus#51-53
#[test]
fn cluster_network_works_in_every_version_and_form() {
    let node = node();
    let uid = node.pod("web", &json!({}));
    for (network, index) in corpus().into_iter().zip(1..) {
        let id = format!("m{index}");
        let mut sandbox = with_ports(node.sandbox(&id, "web", Some(&uid)));
        let mut conf: Value = serde_json::from_slice(&fs::read(node.conf()).unwrap()).unwrap();
        conf["clusterNetwork"] = json!(network.nad());
        fs::write(node.conf(), conf.to_string()).unwrap();
        sandbox.valid = Some(json!([{"containerID": id, "ifname": "eth0"}]));
        for verb in ["ADD", "CHECK", "STATUS", "GC", "DEL"] {
            let called = match verb {
                "CHECK" => network.is_checked(),
                "STATUS" | "GC" => network.version == "1.1.0",
                _ => true,
            };
            if verb == "CHECK" && !called {
                let error = node.fail(verb, &sandbox);
                let text = format!(
                    "configuration version \"{}\" does not support the CHECK command",
                    network.version
                );
                assert!(error["msg"].as_str().unwrap().ends_with(&text), "{error}");
            } else {
                node.succeed(verb, &sandbox);
            }
            let places = if called { network.places() } else { 0 };
            let at = if matches!(verb, "STATUS" | "GC") {
                String::from(".")
            } else {
                format!("{id}.eth0")
            };
            let expected = (1..=places).map(|place| {
                let mut config = network.expected(verb, place, "eth0", &sandbox.netns, false);
                if verb == "GC" {
                    let attached = json!([{"containerID": id, "ifname": "eth0"}]);
                    config["cni.dev/valid-attachments"] = attached.clone();
                    config["cni.dev/attachments"] = attached;
                }
                (format!("{verb}.{at}.{}", plugin(network.version, place)), config)
            });
            compare(&format!("{network:?} {verb}"), calls(&node), expected.collect());
        }
    }
}
