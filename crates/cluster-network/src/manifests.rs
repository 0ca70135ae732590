//! Manifests that install the operator: definitions, an account with minimal rights, and a Deployment.
//!
//! The rights on rendered objects name each object: the names come from the rendering itself.

use std::collections::{BTreeMap, BTreeSet};

use api::cluster_network::config::NetworkDiagnostics;
use kube_kit::object::{self, Kind, ObjectId};
use serde_json::{Value, json};

use crate::{
    facts::{ApiServer, CniDirectories, Facts, Platform},
    names,
    ovn::{ipsec, observed::Observed, rollout},
    render::{self, Context},
    settings::{Ovn, Settings},
    watches,
};

/// Settings of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install<'a> {
    /// Reference of the image of Weft.
    pub image: &'a str,
    /// Version for annotations and statuses.
    pub version: &'a str,
    /// Image pull policy.
    pub pull_policy: &'a str,
    /// Images of components that Weft's image does not contain.
    pub images: Images,
    /// Name or address of the API server and its port, for a cluster without services.
    pub api_server: Option<(&'a str, u16)>,
}

/// Images of components that Weft's image does not contain. The operator does not deploy a component without an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Images {
    /// Image of kube-proxy
    #[arg(long = "kube-proxy-image", value_name = "REF")]
    pub kube_proxy: Option<String>,
    /// Image of OVN-Kubernetes
    #[arg(long = "ovn-image", value_name = "REF")]
    pub ovn: Option<String>,
    /// Image of kube-rbac-proxy, which protects metrics
    #[arg(long = "kube-rbac-proxy-image", value_name = "REF")]
    pub kube_rbac_proxy: Option<String>,
    /// Image of the enforcer of network policies on additional networks
    #[arg(long = "multi-network-policy-image", value_name = "REF")]
    pub multi_network_policy: Option<String>,
    /// Image of the IPAM plugin whereabouts
    #[arg(long = "whereabouts-image", value_name = "REF")]
    pub whereabouts: Option<String>,
    /// Image of egress routers; by default Weft's own
    #[arg(long = "egress-router-image", value_name = "REF")]
    pub egress_router: Option<String>,
    /// Image of FRR and of the programs that configure it
    #[arg(long = "frr-image", value_name = "REF")]
    pub frr: Option<String>,
    /// Image of the networking plugin of OpenShift's web console
    #[arg(long = "console-plugin-image", value_name = "REF")]
    pub console_plugin: Option<String>,
    /// Image of network-metrics-daemon, which reports the networks of pods to Prometheus
    #[arg(long = "network-metrics-image", value_name = "REF")]
    pub network_metrics: Option<String>,
    /// Image of iptables-alerter: bash and kubectl
    #[arg(long = "cli-image", value_name = "REF")]
    pub cli: Option<String>,
    /// Image of cloud-network-config-controller, for egress addresses in a cloud
    #[arg(long = "cloud-network-image", value_name = "REF")]
    pub cloud_network: Option<String>,
}

impl Images {
    /// Environment variables of the operator with their values.
    fn variables(&self) -> [(&'static str, &str); 11] {
        [
            (names::env::KUBE_PROXY_IMAGE, &self.kube_proxy),
            (names::env::OVN_IMAGE, &self.ovn),
            (names::env::KUBE_RBAC_PROXY_IMAGE, &self.kube_rbac_proxy),
            (names::env::MULTI_NETWORK_POLICY_IMAGE, &self.multi_network_policy),
            (names::env::WHEREABOUTS_IMAGE, &self.whereabouts),
            (names::env::EGRESS_ROUTER_IMAGE, &self.egress_router),
            (names::env::FRR_IMAGE, &self.frr),
            (names::env::CONSOLE_PLUGIN_IMAGE, &self.console_plugin),
            (names::env::NETWORK_METRICS_IMAGE, &self.network_metrics),
            (names::env::CLI_IMAGE, &self.cli),
            (names::env::CLOUD_NETWORK_IMAGE, &self.cloud_network),
        ]
        .map(|(name, image)| (name, image.as_deref().unwrap_or_default()))
    }
}

/// The manifests could not be rendered: a defect of the operator's own files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A definition cannot be generated.
    #[error(transparent)]
    Definition(#[from] api::Error),
    /// A file is not valid YAML, or an object cannot be written as YAML.
    #[error("{file}: {cause}")]
    Yaml {
        /// Name of the file.
        file: &'static str,
        /// Message of the parser or serialiser.
        cause: String,
    },
}

/// Name of the operator's account, role and bindings.
pub const ACCOUNT: &str = "cluster-network-operator";

/// Files of an installation, in the order in which they are applied.
pub const FILES: [&str; 5] = [
    "definitions.yaml",
    "operator.yaml",
    "example.cr.yaml",
    ADMISSION_POLICY,
    MTU_MIGRATION,
];

/// Optional file with which the API server refuses unsafe changes (§21.4).
pub const ADMISSION_POLICY: &str = "admission-policy.yaml";

/// Optional file with the rights to change the MTU of nodes (§6.2).
pub const MTU_MIGRATION: &str = "mtu-migration.yaml";

/// Renders the [files](FILES): pairs of name and YAML.
///
/// # Errors
/// If an embedded file is invalid.
pub fn files(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let [definitions_file, operator_file, example, policy, migration] = FILES;
    Ok(vec![
        (definitions_file, documents(definitions_file, &definitions()?)?),
        (operator_file, documents(operator_file, &operator(install)?)?),
        (example, include_str!("manifests/example.cr.yaml").to_owned()),
        (policy, include_str!("manifests/admission-policy.yaml").to_owned()),
        (migration, include_str!("manifests/mtu-migration.yaml").to_owned()),
    ])
}

/// Definitions of the kinds that the operator reads and writes before it deploys anything.
///
/// # Errors
/// If a definition cannot be generated.
pub fn definitions() -> Result<Vec<Value>, Error> {
    use api::cluster_network::{cluster_operator, config, egress_router, operator};
    let definitions = [
        config::crd()?,
        operator::crd()?,
        cluster_operator::crd()?,
        api::connectivity_check::crd()?,
        api::operator_pki::crd()?,
        egress_router::crd()?,
    ];
    let value = |definition| {
        serde_json::to_value(definition).map_err(|error| Error::Yaml {
            file: FILES[0],
            cause: error.to_string(),
        })
    };
    definitions.into_iter().map(value).collect()
}

/// Namespace, account, rights and Deployment of the operator.
///
/// # Errors
/// If the embedded file is invalid.
pub fn operator(install: &Install<'_>) -> Result<Vec<Value>, Error> {
    let file = FILES[1];
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(include_str!("manifests/operator.yaml"))
        .map_err(|error| Error::Yaml {
            file,
            cause: error.to_string(),
        })?;
    for object in &mut objects {
        if object["kind"] == "ClusterRole"
            && let Some(rules) = object["rules"].as_array_mut()
        {
            rules.extend(rules_of_rendered());
            rules.extend(rules_of_observability());
        }
        if object["kind"] == "Deployment" {
            let container = &mut object["spec"]["template"]["spec"]["containers"][0];
            container["image"] = json!(install.image);
            container["imagePullPolicy"] = json!(install.pull_policy);
            if let Some(variables) = container["env"].as_array_mut() {
                set_variables(variables, install);
            }
        }
    }
    Ok(objects)
}

fn set_variables(variables: &mut Vec<Value>, install: &Install<'_>) {
    let own = [
        (names::env::OWN_IMAGE, install.image),
        (names::env::VERSION, install.version),
        (names::env::PULL_POLICY, install.pull_policy),
    ];
    for (name, value) in own.into_iter().chain(install.images.variables()) {
        for variable in variables.iter_mut().filter(|variable| variable["name"] == name) {
            variable["value"] = json!(value);
        }
    }
    let Some((host, port)) = install.api_server else {
        return;
    };
    let port = &port.to_string();
    // The operator and the deployed components have different variables.
    for (name, value) in [
        (names::API_HOST, host),
        (names::API_PORT, port),
        (names::env::API_HOST, host),
        (names::env::API_PORT, port),
    ] {
        variables.push(json!({ "name": name, "value": value }));
    }
}

/// All objects that any configuration renders: the default network `Weft`, and OVN-Kubernetes with both kinds of node
/// authentication.
fn everything() -> Vec<Value> {
    let spec = |default_network: Value| {
        json!({
            "clusterNetwork": [{ "cidr": "10.128.0.0/14", "hostPrefix": 23 }],
            "serviceNetwork": ["172.30.0.0/16"],
            "defaultNetwork": default_network,
            "deployKubeProxy": true,
            "useMultiNetworkPolicy": true,
            "additionalRoutingCapabilities": { "providers": [names::FRR] },
            "additionalNetworks": [
                { "name": "any", "type": names::SIMPLE_MACVLAN },
                { "name": "other", "type": names::RAW, "rawCNIConfig": r#"{"ipam":{"type":"whereabouts"}}"# },
            ],
        })
    };
    let weft = spec(json!({ "type": names::WEFT }));
    let ovn = spec(json!({
        "type": names::OVN_KUBERNETES,
        "ovnKubernetesConfig": { "ipsecConfig": { "mode": "Full" }, "routeAdvertisements": "Enabled" },
    }));
    let mut without_identity = facts_of_everything();
    without_identity.ovn.config_maps.node_identity = [("enabled".to_owned(), "false".to_owned())].into();
    let openshift = Facts {
        openshift: true,
        ..facts_of_everything()
    };
    let all = [
        (weft, facts_of_everything()),
        (ovn.clone(), openshift),
        (ovn.clone(), facts_of_everything()),
        (ovn, without_identity),
    ];
    let rendered = all.into_iter().flat_map(|(spec, facts)| rendered(spec, &facts));
    // A test proves that the embedded files are valid.
    let prober = render::mtu_prober(&facts_of_everything(), &settings_of_everything()).unwrap_or_default();
    rendered.chain(prober).collect()
}

/// A cluster in which all optional objects are rendered.
fn facts_of_everything() -> Facts {
    let older = rollout::Workload {
        version: "0.1.0".to_owned(),
        ..rollout::Workload::default()
    };
    let nodes = ["smart-nic", "dpu-host", "dpu"].map(|kind| {
        let label = format!("network.operator.openshift.io/{kind}");
        (kind.to_owned(), [(label, String::new())].into())
    });
    Facts {
        platform: Platform::Aws,
        monitoring: true,
        console_plugins: true,
        gates: ["EVPN", "NetworkConnect", "DNSNameResolver"]
            .map(str::to_owned)
            .into(),
        api_server: ApiServer {
            host: "localhost".to_owned(),
            port: "6443".to_owned(),
        },
        ovn: Observed {
            existing: rollout::Existing {
                node: Some(older.clone()),
                control_plane: Some(older),
                prepuller: None,
            },
            encryption: ipsec::Facts {
                can_configure_machines: true,
                ..ipsec::Facts::default()
            },
            offload_nodes: nodes.into(),
            ..Observed::default()
        },
        ..Facts::default()
    }
}

fn settings_of_everything() -> Settings {
    Settings {
        version: "0.2.0".to_owned(),
        image: "weft".to_owned(),
        kube_proxy_image: Some("kube-proxy".to_owned()),
        kube_rbac_proxy_image: Some("kube-rbac-proxy".to_owned()),
        multi_network_policy_image: Some("multus-networkpolicy".to_owned()),
        whereabouts_image: Some("whereabouts".to_owned()),
        egress_router_image: None,
        frr_image: Some("frr-k8s".to_owned()),
        console_plugin_image: Some("networking-console-plugin".to_owned()),
        network_metrics_image: Some("network-metrics-daemon".to_owned()),
        cli_image: Some("iptables-alerter".to_owned()),
        cloud_network_image: Some("cloud-network-config-controller".to_owned()),
        pull_policy: String::new(),
        api_server: None,
        cni_conf_dir: CniDirectories::default().conf,
        cni_bin_dir: CniDirectories::default().bin,
        namespace: names::OPERATOR_NAMESPACE.to_owned(),
        ovn: Ovn {
            image: Some("ovn".to_owned()),
            ..Ovn::default()
        },
        hosted: None,
    }
}

fn rendered(spec: Value, facts: &Facts) -> Vec<Value> {
    let settings = settings_of_everything();
    // The configuration is a literal, and a test renders it.
    let spec = serde_json::from_value(spec).unwrap_or_default();
    let context = Context {
        spec: &spec,
        diagnostics: &NetworkDiagnostics::default(),
        facts,
        settings: &settings,
    };
    render::render(&context).objects
}

/// The rights on rendered objects. Lists and watches select by label, so that their rules cannot name objects. All
/// other rules name objects.
fn rules_of_rendered() -> Vec<Value> {
    let mut rules = Vec::new();
    for kind in watches::RENDERED.into_iter().chain(watches::RENDERED_IF_SERVED) {
        rules.push(
            json!({ "apiGroups": [kind.group], "resources": [kind.plural], "verbs": ["list", "watch"] }),
        );
    }
    for (kind, names) in by_kind(everything()) {
        if kind == object::NETWORK_ATTACHMENT_DEFINITION {
            // Users choose the names.
            rules.push(rule(kind, None, &["get", "create", "patch", "delete"]));
        } else if kind == object::CUSTOM_RESOURCE_DEFINITION {
            rules.push(rule(kind, Some(&names), &["get", "create", "patch"]));
        } else {
            rules.push(writing(kind, &names, &["get", "create", "patch", "delete"]));
        }
    }
    rules
}

/// The rights on the objects with which network observability is installed. The operator creates them, and no
/// more.
fn rules_of_observability() -> Vec<Value> {
    // A test proves that the embedded files are valid.
    let objects = [
        render::observability::operator(),
        render::observability::collector(),
    ];
    let objects = objects.into_iter().flat_map(Result::unwrap_or_default);
    let by_kind = by_kind(objects).into_iter();
    by_kind
        .map(|(kind, names)| writing(kind, &names, &["create", "patch"]))
        .collect()
}

/// Names of objects, by kind.
fn by_kind(objects: impl IntoIterator<Item = Value>) -> BTreeMap<Kind, BTreeSet<String>> {
    let mut by_kind: BTreeMap<Kind, BTreeSet<String>> = BTreeMap::new();
    for object in objects {
        let id = ObjectId::of(&object);
        if let Some(kind) = object::find(&id.api_version(), &id.kind) {
            by_kind.entry(kind).or_default().insert(id.name);
        }
    }
    by_kind
}

/// A rule for the objects with these names.
fn writing(kind: Kind, names: &BTreeSet<String>, verbs: &[&str]) -> Value {
    let mut verbs = verbs.to_vec();
    if [object::ROLE, object::CLUSTER_ROLE].contains(&kind) {
        // The operator may grant rights that it lacks, but only with these roles, whose rules it applies.
        verbs.extend(["escalate", "bind"]);
    }
    rule(kind, Some(names), &verbs)
}

fn rule(kind: Kind, names: Option<&BTreeSet<String>>, verbs: &[&str]) -> Value {
    let mut rule = json!({ "apiGroups": [kind.group], "resources": [kind.plural], "verbs": verbs });
    if let Some(names) = names {
        rule["resourceNames"] = json!(names);
    }
    rule
}

fn documents(file: &'static str, objects: &[Value]) -> Result<String, Error> {
    let mut text = String::new();
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            text += "---\n";
        }
        let yaml = serde_saphyr::to_string(object);
        text += &yaml.map_err(|error| Error::Yaml {
            file,
            cause: error.to_string(),
        })?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
