//! Compares a pod's requested networks, as the daemon resolves them, with its network status. Pure.

mod attributes;

use super::facts::Facts;
use super::gather::ON_THE_NODE;
use super::report::{About, Attached, Network, Problem, Report};
use crate::names;
use crate::networks::delegate::Delegate;
use crate::networks::resolve::{NetworkError, PodError, Resolver};
use attributes::{asks, differences};
use cni::names::{DEFAULT_NETWORK_ANNOTATION, NETWORK_STATUS_ANNOTATION, NETWORKS_ANNOTATION, key};
use cni::selection::{NetworkSelection, parse_default_network, parse_networks};
use cni::status::{self, NetworkStatus};
use kube_kit::watch::Name;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// Chained plugins that only change another plugin's interface: they have no entry in the status.
const CHAINED_PLUGINS: [&str; 6] = ["tuning", "passthru", "portmap", "bandwidth", "firewall", "sbr"];

/// The report about a pod.
pub(super) async fn report(facts: &Facts) -> Report {
    let pod = &facts.pod;
    let mut draft = Draft {
        facts,
        resolver: Resolver {
            cluster: facts,
            config: &facts.config,
        },
        networks: Vec::new(),
        problems: Vec::new(),
    };
    if pod.spec.host_network {
        draft.host_network();
    } else {
        draft.default_networks().await;
        draft.selected_networks().await;
        draft.names();
        draft.resources();
        draft.compare();
    }
    let mut notes = facts.notes.clone();
    if let Err(cause) = &facts.config_from {
        notes.push(format!(
            "multus' configuration is unknown, assuming its defaults: {cause}"
        ));
    }
    let Draft {
        networks, problems, ..
    } = draft;
    Report {
        pod: About {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            node: pod.spec.node_name.clone(),
            phase: pod.status.phase.clone(),
            host_network: pod.spec.host_network,
        },
        networks,
        problems,
        events: facts.events.clone(),
        notes,
    }
}

struct Draft<'a> {
    facts: &'a Facts,
    resolver: Resolver<'a, Facts>,
    networks: Vec<Network>,
    problems: Vec<Problem>,
}

impl Draft<'_> {
    fn problem(&mut self, about: impl Into<String>, problem: impl Into<String>, advice: impl Into<String>) {
        self.problems.push(Problem {
            about: about.into(),
            text: problem.into(),
            advice: advice.into(),
        });
    }

    fn host_network(&mut self) {
        for annotation in [
            self.facts.pod.networks().map(|_| NETWORKS_ANNOTATION),
            self.facts
                .pod
                .default_network()
                .map(|_| DEFAULT_NETWORK_ANNOTATION),
        ] {
            let Some(annotation) = annotation else { continue };
            self.problem(
                annotation,
                "the pod uses its node's network: nothing is attached to it",
                "Remove the annotation, or `hostNetwork: true`.",
            );
        }
    }

    /// The networks that a pod gets without the annotation `networks`.
    async fn default_networks(&mut self) {
        let config = self.resolver.config;
        match self.facts.pod.default_network() {
            Some(text) => match parse_default_network(text, &config.multus_namespace) {
                Ok(selection) => {
                    let found = self.resolver.network(&selection).await;
                    self.add("default-network", &selection, found.map_err(PodError::from));
                }
                Err(error) => self.malformed(DEFAULT_NETWORK_ANNOTATION, &error.to_string()),
            },
            None => {
                self.configured("cluster network", config.cluster_network.as_deref())
                    .await;
            }
        }
        let namespace = &self.facts.pod.metadata.namespace;
        if !config.system_namespaces.contains(namespace) {
            for name in &config.default_networks {
                self.configured("defaultNetworks", Some(name)).await;
            }
        }
    }

    /// A network of multus' own configuration. Files on the node cannot be read.
    async fn configured(&mut self, from: &str, name: Option<&str>) {
        let multus = &self.resolver.config.multus_namespace;
        let selection = |name: &str| NetworkSelection {
            name: name.to_owned(),
            namespace: multus.clone(),
            ..NetworkSelection::default()
        };
        match name {
            None | Some(ON_THE_NODE) => self.push(from, Network::default()),
            Some(name) if name.contains('/') => self.push(
                from,
                Network {
                    name: name.to_owned(),
                    ..Network::default()
                },
            ),
            Some(name) => {
                let selection = selection(name);
                match self.resolver.network(&selection).await {
                    // It may be the name of a configuration file on the node.
                    Err(NetworkError::Missing(_)) => self.push(
                        from,
                        Network {
                            name: name.to_owned(),
                            ..Network::default()
                        },
                    ),
                    found => self.add(from, &selection, found.map_err(PodError::from)),
                }
            }
        }
    }

    async fn selected_networks(&mut self) {
        let namespace = &self.facts.pod.metadata.namespace;
        let Some(text) = self.facts.pod.networks() else {
            return;
        };
        let selections = match parse_networks(text, namespace) {
            Ok(selections) => selections,
            Err(error) => return self.malformed(NETWORKS_ANNOTATION, &error.to_string()),
        };
        if !self.facts.has_nads && !selections.is_empty() {
            self.problem(
                NETWORKS_ANNOTATION,
                "this cluster knows no NetworkAttachmentDefinitions, so it has no multus",
                "Deploy it by `spec: {multus: {}}` in the NetworkAddonsConfig, or by the manifests in deploy/multus.",
            );
        }
        for (place, selection) in selections.iter().enumerate() {
            let found = self.resolver.permitted(namespace, selection).await;
            self.add(&format!("networks[{place}]"), selection, found);
        }
    }

    fn malformed(&mut self, annotation: &str, error: &str) {
        self.problem(
            annotation,
            error,
            "Correct the annotation in the pod's template (its Deployment, for example), so that new pods have it.",
        );
    }

    /// Appends a network. Its index decides the default name of its interface.
    fn push(&mut self, from: &str, network: Network) {
        let place = self.networks.len();
        let interface = match (network.interface.is_empty(), place) {
            (false, _) => network.interface.clone(),
            (true, 0) => names::MASTER_INTERFACE.to_owned(),
            (true, _) => format!("net{place}"),
        };
        self.networks.push(Network {
            interface,
            from: from.to_owned(),
            ..network
        });
    }

    fn add(&mut self, from: &str, selection: &NetworkSelection, found: Result<Delegate, PodError>) {
        let NetworkSelection { namespace, name, .. } = selection;
        let mut network = Network {
            interface: selection.interface.clone().unwrap_or_default(),
            name: format!("{namespace}/{name}"),
            asks: asks(selection),
            ..Network::default()
        };
        let failure = match found {
            Ok(delegate) => {
                network.plugins = plugins(&delegate);
                network.config = RawValue::from_string(delegate.config.object().to_json()).ok();
                network.resource = delegate.resource_name;
                None
            }
            // The file is on the pod's node.
            Err(PodError::Network(NetworkError::File { .. })) => None,
            // The user may not read it, but the daemon may.
            Err(PodError::Network(NetworkError::Missing(missing)))
                if self
                    .facts
                    .forbidden
                    .contains(&Name::new(missing.namespace.as_str(), missing.name.as_str())) =>
            {
                None
            }
            Err(error) => Some(error),
        };
        self.push(from, network);
        let Some(error) = failure.filter(|_| self.facts.has_nads) else {
            return;
        };
        let about = self.networks.last().map(about).unwrap_or_default();
        let advice = match &error {
            PodError::Isolation { pod, target } => format!(
                "Put the definition into namespace {pod}, or add {target} to `globalNamespaces` of multus' configuration. \
                 The operator has it in `spec.multus` of the NetworkAddonsConfig."
            ),
            PodError::Network(NetworkError::Missing(_)) => {
                "Create it, or refer to another one: `kubectl get \
                 network-attachment-definitions --all-namespaces` lists all definitions."
                    .to_owned()
            }
            _ => format!(
                "Correct `spec.config`: `kubectl edit network-attachment-definition {name} --namespace {namespace}`."
            ),
        };
        self.problem(about, error.to_string(), advice);
    }

    /// Reports networks with the same interface.
    fn names(&mut self) {
        let mut seen = BTreeSet::new();
        let twice: Vec<_> = self
            .networks
            .iter()
            .filter(|network| !seen.insert(network.interface.clone()))
            .map(about)
            .collect();
        for about in twice {
            self.problem(
                about,
                "another network of the pod has an interface of this name",
                "Give each element of the annotation a different interface, or remove the interface names.",
            );
        }
    }

    /// Reports resources of networks that the pod does not request.
    fn resources(&mut self) {
        if !self.facts.pod.spec.resource_claims.is_empty() {
            return;
        }
        let mut needed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for network in &self.networks {
            if let Some(resource) = &network.resource {
                needed.entry(resource.clone()).or_default().push(about(network));
            }
        }
        for (resource, networks) in needed {
            let (wanted, has) = (networks.len() as u64, self.facts.pod.requests(&resource));
            if has < wanted {
                self.problem(
                    networks.join(", "),
                    format!("needs {wanted} of resource {resource}, and the pod requests {has}"),
                    format!(
                        "Set `resources.requests` and `resources.limits` of a container to {resource}: {wanted}, or let \
                         `weft nad-webhook --inject-resources` do it."
                    ),
                );
            }
        }
    }

    /// Compares the network status with the requested networks.
    fn compare(&mut self) {
        let facts = self.facts;
        let phase = facts.pod.status.phase.as_str();
        let Some(text) = facts.pod.network_status() else {
            return self.without_status(phase);
        };
        let entries = match status::parse(text) {
            Ok(entries) => entries,
            Err(error) => {
                return self.problem(
                    NETWORK_STATUS_ANNOTATION,
                    kube_kit::client::chain(&error),
                    "It was not written by multus: recreate the pod.",
                );
            }
        };
        let mut left: Vec<Option<NetworkStatus>> = entries.into_iter().map(Some).collect();
        let mut missing = Vec::new();
        for (place, network) in self.networks.iter_mut().enumerate() {
            match take_entry(&mut left, place, network) {
                Some(entry) => {
                    if network.name.is_empty() {
                        network.name.clone_from(&entry.name);
                    }
                    network.attached = Some(Attached {
                        interface: entry.interface.unwrap_or_default(),
                        ips: entry.ips,
                        mac: entry.mac.unwrap_or_default(),
                    });
                }
                None if is_visible(network) => missing.push(about(network)),
                None => {}
            }
        }
        for about in missing {
            self.problem(
                about,
                "it is requested, but not attached",
                "Networks are attached when a pod starts: recreate it. The dynamic networks controller attaches networks to \
                 running pods if every element of the annotation names an interface.",
            );
        }
        // The default network may have further interfaces.
        for entry in left.into_iter().flatten().filter(|entry| !entry.default) {
            let ours = self
                .networks
                .first()
                .is_some_and(|master| master.name == entry.name);
            if !ours {
                let perhaps = if facts.config_from.is_err() {
                    " in an annotation; it may be one of multus' defaultNetworks"
                } else {
                    ""
                };
                self.problem(
                    format!("{} {}", entry.interface.unwrap_or_default(), entry.name),
                    format!("it is attached, but not requested{perhaps}"),
                    "The annotation was changed after the pod started: the dynamic networks controller detaches it, \
                     and so does a new pod.",
                );
            }
        }
        let differences: Vec<_> = self
            .networks
            .iter()
            .flat_map(|network| differences(network).map(|text| (about(network), text)))
            .collect();
        for (about, text) in differences {
            self.problem(
                about,
                text,
                "The plugin ignored the request: its configuration must declare the capability (`\"capabilities\": \
                 {\"mac\": true, \"ips\": true}`), or the annotation was changed after the pod started.",
            );
        }
    }

    fn without_status(&mut self, phase: &str) {
        let node = &self.facts.pod.spec.node_name;
        let last = self
            .facts
            .events
            .iter()
            .rev()
            .find(|event| event.kind == "Warning");
        if let Some(event) = last
            && phase == "Pending"
        {
            let (about, text) = (event.reason.clone(), event.message.clone());
            let advice = if node.is_empty() {
                "See the scheduler's events: `kubectl describe pod` shows all of them.".to_owned()
            } else {
                format!("Kubelet tries again; the log of multus on node {node} says more.")
            };
            self.problem(about, text, advice);
        } else if phase == "Running" && self.networks.len() > 1 {
            self.problem(
                NETWORK_STATUS_ANNOTATION,
                "multus did not attach this pod",
                format!(
                    "It may be older than multus on its node: recreate it. `kubectl get pods --all-namespaces -l app=multus \
                     --field-selector spec.nodeName={node}` shows whether multus is there."
                ),
            );
        }
    }
}

fn about(network: &Network) -> String {
    format!("{} {}", network.interface, network.name)
        .trim_end()
        .to_owned()
}

fn plugins(delegate: &Delegate) -> Vec<String> {
    match delegate.config.chain() {
        None => vec![delegate.config.plugin_type()],
        Some(chain) => chain
            .iter()
            .map(|plugin| plugin.read(key::TYPE).ok().flatten().unwrap_or_default())
            .collect(),
    }
}

/// Whether its attachment has an entry in the status.
fn is_visible(network: &Network) -> bool {
    network.plugins.is_empty()
        || !network
            .plugins
            .iter()
            .all(|plugin| CHAINED_PLUGINS.contains(&plugin.as_str()))
}

/// Removes and returns the status entry of a network.
fn take_entry(left: &mut [Option<NetworkStatus>], place: usize, network: &Network) -> Option<NetworkStatus> {
    let is_master = |entry: &NetworkStatus| place == 0 && entry.default;
    let has_both = |entry: &NetworkStatus| {
        entry.name == network.name && entry.interface.as_deref() == Some(network.interface.as_str())
    };
    let has_name = |entry: &NetworkStatus| place > 0 && !entry.default && entry.name == network.name;
    let tests: [&dyn Fn(&NetworkStatus) -> bool; 3] = [&is_master, &has_both, &has_name];
    let found = tests
        .iter()
        .find_map(|test| left.iter().position(|entry| entry.as_ref().is_some_and(test)));
    left[found?].take()
}

#[cfg(test)]
mod tests;
