//! Observes nodes and policies while a migration is requested or begun, and applies the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::cluster_network::{SINGLETON, operator::NetworkSpec};
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube_kit::client::message;
use kube_kit::object::{
    CONFIG_MAP, DAEMON_SET, MACHINE_CONFIG_POOL, NODE, NODE_NETWORK_ENACTMENT, NODE_NETWORK_POLICY,
    NODE_NETWORK_STATE, OPENSHIFT_NETWORK,
};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Trouble, Waking, has_begun};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::policy::{self, Awaited, Enactment, Policy};
use super::uplink::{self, Links};
use super::{Action, Begun, Facts, Node, Plan, Request, Target, plan, request};
use crate::messages::mtu_migration as messages;
use crate::objects::{self, text, version};
use crate::ovn::observed;
use crate::report::{Failure, Level, Reports};
use crate::{defaults, names, render};

/// Prefix of the field manager of patches.
const MANAGER: &str = "cluster-network-operator/mtu-migration";
/// A node failed, or the migration is impossible.
const FAILED: &str = "MTUMigrationFailed";
/// An object could not be read or written, or a node holds the migration up.
const STALLED: &str = "MTUMigrationStalled";
const LONGEST: Duration = Duration::from_mins(1);
const BEGINNING: Duration = Duration::from_millis(200);
/// Interval of checks of a watch that fails.
const TROUBLED: Duration = Duration::from_secs(5);

/// The observed operator configuration.
#[derive(Clone, Debug)]
struct Network {
    spec: NetworkSpec,
    begun: Option<Begun>,
    uid: String,
    version: String,
}

impl Network {
    fn read(object: &Value) -> Self {
        let begun = object["metadata"]["annotations"][names::MTU_MIGRATION_BEGUN].as_str();
        Self {
            // The main loop reports a malformed spec.
            spec: serde_json::from_value(object["spec"].clone()).unwrap_or_default(),
            begun: begun.and_then(|begun| serde_json::from_str(begun).ok()),
            uid: text(object, "/metadata/uid").to_owned(),
            version: version(object).to_owned(),
        }
    }

    /// True if nodes and policies have to be observed.
    fn is_concerned(&self) -> bool {
        self.begun.is_some()
            || !matches!(
                request(&self.spec, None),
                Request::None | Request::Elsewhere | Request::Unmanaged
            )
    }
}

/// Runs until the shutdown. Without a migration, the operator observes the operator configuration alone.
///
/// `namespace` is that of the operator, which records the applied configuration there.
pub async fn run(client: Client, namespace: &str, reports: &Reports, shutdown: &Shutdown) {
    let queue = reports.queue("mtu_migration", LONGEST);
    queue.add(());
    let mut watches = Waking::new(client.clone(), &queue);
    let one = Options::all().named(SINGLETON);
    let networks = watches.start(&OPENSHIFT_NETWORK, None, &one, (), Network::read);
    let mut migration: Option<Migration> = None;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next() => {}
        }
        let key = Name::new("", SINGLETON);
        let network = networks.get(&key).filter(Network::is_concerned);
        let Some(network) = network else {
            if has_begun(&networks) {
                migration = None;
                reports.set(Level::MtuMigration, None);
                reports.set_migration(None);
            }
            queue.succeeded(&());
            continue;
        };
        let current =
            migration.get_or_insert_with(|| Migration::start(&client, namespace, &queue, &networks));
        let reconciled = tokio::select! {
            () = shutdown.wait() => return,
            reconciled = current.reconcile(&network, reports) => reconciled,
        };
        match reconciled {
            Ok(None) => queue.succeeded(&()),
            Ok(Some(pause)) => {
                queue.succeeded(&());
                queue.add_after((), pause);
            }
            Err(error) => {
                let pause = queue.failed(());
                tracing::warn!(error, retry = ?pause, "the migration of the MTU cannot continue");
            }
        }
    }
}

/// The configuration of OVN-Kubernetes' nodes.
#[derive(Clone, Debug, Default)]
struct OvnConfig {
    text: String,
    hash: String,
}

/// The rollout of a `DaemonSet` of OVN-Kubernetes' nodes.
#[derive(Clone, Debug, Default)]
struct Rollout {
    hash: String,
    is_complete: bool,
}

/// True if all nodes of OVN-Kubernetes have read a configuration with both MTUs. `rollout` returns the rollout of an
/// existing `DaemonSet`.
fn uses_both(config: &OvnConfig, rollout: impl Fn(&str) -> Option<Rollout>, from: u32, to: u32) -> bool {
    let has_line = |line: String| config.text.lines().any(|it| it == line);
    let is_current = |it: Rollout| it.is_complete && it.hash == config.hash;
    has_line(format!("mtu=\"{}\"", from.max(to)))
        && has_line(format!("routable-mtu=\"{}\"", from.min(to)))
        && rollout(names::OVN_NODE).is_some_and(is_current)
        && names::OVN_OFFLOADED_NODES
            .iter()
            .all(|name| rollout(name).is_none_or(is_current))
}

/// Watches of all objects that decide the next step.
struct Migration {
    client: Client,
    namespace: String,
    networks: Store<Name, Network>,
    nodes: Store<Name, Option<Node>>,
    /// Uplinks, or the reason for which a report does not show one. `None` before the first report.
    states: Store<Name, Option<Result<Links, String>>>,
    policies: Store<Name, Policy>,
    enactments: Store<Name, Enactment>,
    applied: Store<Name, Option<NetworkSpec>>,
    machines: Store<Name, ()>,
    ovn_config: Store<Name, OvnConfig>,
    ovn_nodes: Store<Name, Rollout>,
    awaited: Awaited,
    _watches: Waking<()>,
}

impl Migration {
    fn start(client: &Client, namespace: &str, queue: &Queue<()>, networks: &Store<Name, Network>) -> Self {
        let mut watches = Waking::new(client.clone(), queue);
        // A user may be installing nmstate: ask for its kinds every 5 s.
        let all = Options::all().absent(TROUBLED);
        let ours = all
            .clone()
            .labels(format!("{}={}", names::PART_LABEL, names::MTU_MIGRATION));
        let named = |name: &str| Options::all().named(name);
        let ovn = Some(names::OVN_NAMESPACE);
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            networks: networks.clone(),
            nodes: watches.start(&NODE, None, &all, (), node),
            // Upstream does not serve this version: its handlers would apply a dry run.
            states: watches.start(&NODE_NETWORK_STATE, None, &all, (), uplink::read),
            policies: watches.start(&NODE_NETWORK_POLICY, None, &ours, (), Policy::read),
            enactments: watches.start(&NODE_NETWORK_ENACTMENT, None, &all, (), Enactment::read),
            applied: watches.start(
                &CONFIG_MAP,
                Some(namespace),
                &named(names::APPLIED),
                (),
                |object| crate::plan::recorded(object).ok(),
            ),
            machines: watches.start(&MACHINE_CONFIG_POOL, None, &all, (), |_| ()),
            ovn_config: watches.start(&CONFIG_MAP, ovn, &named(names::OVN_CONFIG), (), |object| {
                let text = object["data"][names::OVN_CONFIG_KEY].as_str().unwrap_or_default();
                OvnConfig {
                    text: text.to_owned(),
                    hash: render::hash(text),
                }
            }),
            ovn_nodes: watches.start(&DAEMON_SET, ovn, &Options::all(), (), |object| {
                let annotations = &object["spec"]["template"]["metadata"]["annotations"];
                Rollout {
                    hash: annotations[names::OVN_CONFIG_HASH]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    is_complete: observed::is_complete(object),
                }
            }),
            awaited: Awaited::default(),
            _watches: watches,
        }
    }

    /// Carries out one plan. Returns the time of the next attempt, if no change of an object triggers it.
    async fn reconcile(&mut self, network: &Network, reports: &Reports) -> Result<Option<Duration>, String> {
        let wanted = request(&network.spec, None);
        if let Request::Invalid(text) = &wanted {
            let failure = Failure::at_once(FAILED, text.as_str());
            reports.set(Level::MtuMigration, Some(&failure));
            reports.set_migration(None);
            return Ok(None);
        }
        if wanted == Request::Unmanaged {
            reports.set(Level::MtuMigration, None);
            reports.set_migration(None);
            return Ok(None);
        }
        let is_requested = !matches!(wanted, Request::None | Request::Elsewhere);
        if !is_requested && self.policies.trouble(Duration::ZERO) == Some(Trouble::NotServed) {
            tracing::warn!("nmstate was uninstalled during a migration of the MTU: the nodes keep their MTU");
            let ended = self.apply(&Action::Mark(None), network).await;
            let ended = ended.map_err(|error| messages::not_written(&message(&error)));
            return ended.map(|()| Some(TROUBLED));
        }
        if let Some(failure) = self.trouble() {
            reports.set(Level::MtuMigration, Some(&failure));
            return Ok(Some(TROUBLED));
        }
        if !self.has_begun() {
            return Ok(Some(BEGINNING));
        }
        let mut facts = self.facts(network);
        let now = Instant::now();
        let (overdue, next_due) = self.awaited.note(&facts.policies, now);
        facts.overdue = overdue;
        let plan = plan(&facts);
        reports.set_migration(plan.progress.clone());
        let failure = failure(&plan);
        if failure.is_some() {
            reports.set(Level::MtuMigration, failure.as_ref());
        }
        for action in &plan.actions {
            if let Err(error) = self.apply(action, network).await {
                let text = messages::not_written(&message(&error));
                // Another client wrote the object meanwhile: the next plan uses its version.
                let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
                if failure.is_none() && !is_conflict {
                    reports.set(Level::MtuMigration, Some(&Failure::debounced(STALLED, &text)));
                }
                return Err(text);
            }
        }
        if failure.is_none() {
            reports.set(Level::MtuMigration, None);
        }
        // A watch event of the write starts the next reconcile. The timer covers a lost event.
        let look_again = (!plan.actions.is_empty()).then_some(TROUBLED);
        let next_due = next_due.map(|due| due.saturating_duration_since(now));
        Ok(look_again.into_iter().chain(next_due).min())
    }

    /// The reason for which the operator cannot observe policies.
    fn trouble(&self) -> Option<Failure> {
        let troubles = [
            self.states.trouble(Duration::ZERO),
            self.policies.trouble(Duration::ZERO),
            self.enactments.trouble(Duration::ZERO),
        ];
        if troubles.contains(&Some(Trouble::NotServed)) {
            return Some(Failure::at_once(FAILED, messages::NO_NMSTATE));
        }
        if troubles.iter().any(|it| matches!(it, Some(Trouble::Refused(_)))) {
            return Some(Failure::at_once(FAILED, messages::NOT_ALLOWED));
        }
        self.machines
            .is_synced()
            .then(|| Failure::at_once(FAILED, messages::MACHINE_CONFIGS))
    }

    fn has_begun(&self) -> bool {
        self.nodes.is_synced()
            && self.states.is_synced()
            && self.policies.is_synced()
            && self.enactments.is_synced()
            && has_begun(&self.applied)
            && has_begun(&self.machines)
            && has_begun(&self.ovn_config)
            && has_begun(&self.ovn_nodes)
    }

    fn facts(&self, network: &Network) -> Facts {
        let applied = self
            .applied
            .get(&Name::new(&self.namespace, names::APPLIED))
            .flatten();
        let request = request(&network.spec, applied.as_ref());
        let is_network_ready = match &request {
            Request::Wanted {
                target: Target {
                    network: Some(to), ..
                },
                network_from: Some(from),
                ..
            } => {
                let of = |name: &str| Name::new(names::OVN_NAMESPACE, name);
                self.ovn_config.get(&of(names::OVN_CONFIG)).is_some_and(|config| {
                    uses_both(&config, |name| self.ovn_nodes.get(&of(name)), *from, *to)
                })
            }
            Request::Wanted { target, .. } => target.network.is_none(),
            _ => false,
        };
        let mut nodes = BTreeMap::new();
        for key in self.nodes.keys() {
            let Some(Some(node)) = self.nodes.get(&key) else {
                continue;
            };
            let links = self.states.get(&key).flatten();
            nodes.insert(key.name, Node { links, ..node });
        }
        for enactment in self.enactments.values() {
            if let Some(node) = nodes.get_mut(&enactment.node) {
                node.stated.extend(enactment.stated());
            }
        }
        let mut reported = BTreeMap::new();
        for node in nodes.keys() {
            let policy = policy::name(node);
            if let Some(enactment) = self.enactments.get(&Name::new("", format!("{node}.{policy}"))) {
                reported.insert(policy, enactment);
            }
        }
        let mut policies = BTreeMap::new();
        for key in self.policies.keys() {
            if let Some(policy) = self.policies.get(&key) {
                let progress = policy::progress(&policy, reported.get(&key.name));
                policies.insert(key.name, (policy, progress));
            }
        }
        Facts {
            request,
            begun: network.begun,
            network_mtu: defaults::mtu(&network.spec),
            is_network_ready,
            nodes,
            policies,
            overdue: BTreeSet::new(),
        }
    }

    async fn apply(&self, action: &Action, network: &Network) -> Result<(), kube::Error> {
        tracing::info!(?action, "migration of the MTU");
        match action {
            Action::Mark(begun) => {
                let value = begun.map(|begun| json!(begun).to_string());
                self.patch_network(
                    network,
                    json!({ "metadata": { "annotations": { names::MTU_MIGRATION_BEGUN: value } } }),
                )
                .await
            }
            Action::Finalise(mtu) => {
                let mut spec = json!({ "migration": null });
                if let Some(mtu) = mtu {
                    spec["defaultNetwork"] = json!({ "ovnKubernetesConfig": { "mtu": mtu } });
                }
                // One write: an operator that ends after it must not take this for an aborted migration.
                let end = network.begun.map(|begun| {
                    let finalised = true;
                    json!(Begun { finalised, ..begun }).to_string()
                });
                let annotations = json!({ names::MTU_MIGRATION_BEGUN: end });
                self.patch_network(
                    network,
                    json!({ "metadata": { "annotations": annotations }, "spec": spec }),
                )
                .await
            }
            Action::Write(draft) => {
                let object = draft.object(&network.uid);
                let stored =
                    objects::apply(&self.client, &NODE_NETWORK_POLICY, names::MTU_MIGRATION, &object).await?;
                self.store_policy(&stored);
                Ok(())
            }
            Action::Release(name) => {
                let policies = objects::api(&self.client, &NODE_NETWORK_POLICY, "");
                let patched = policies
                    .patch(name, &parameters(), &Patch::Merge(policy::release()))
                    .await?;
                self.store_policy(&serde_json::to_value(patched).map_err(kube::Error::SerdeError)?);
                Ok(())
            }
            Action::Delete(name) => {
                let policies = objects::api(&self.client, &NODE_NETWORK_POLICY, "");
                match policies.delete(name, &kube::api::DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    deleted => deleted.map(drop),
                }
            }
        }
    }

    /// Patches the operator configuration, unless another client wrote it meanwhile.
    async fn patch_network(&self, network: &Network, mut patch: Value) -> Result<(), kube::Error> {
        patch["metadata"]["resourceVersion"] = json!(network.version);
        let networks = objects::api(&self.client, &OPENSHIFT_NETWORK, "");
        let patched = networks
            .patch(SINGLETON, &parameters(), &Patch::Merge(&patch))
            .await?;
        let stored = serde_json::to_value(patched).map_err(kube::Error::SerdeError)?;
        let key = Name::new("", SINGLETON);
        self.networks.put(key, version(&stored), Network::read(&stored));
        Ok(())
    }

    fn store_policy(&self, stored: &Value) {
        let key = Name::new("", text(stored, "/metadata/name"));
        self.policies.put(key, version(stored), Policy::read(stored));
    }
}

fn parameters() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// The failure to report.
fn failure(plan: &Plan) -> Option<Failure> {
    let texts: Vec<&str> = plan
        .failures
        .iter()
        .chain(&plan.obstacles)
        .map(String::as_str)
        .collect();
    if texts.is_empty() {
        return None;
    }
    let lines = messages::lines(&texts);
    Some(if plan.failures.is_empty() {
        Failure::debounced(STALLED, lines)
    } else {
        Failure::at_once(FAILED, lines)
    })
}

/// A node that runs Linux.
fn node(object: &Value) -> Option<Node> {
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    if label(names::OS_LABEL) != Some(names::LINUX) {
        return None;
    }
    Some(Node {
        hostname: label(names::HOSTNAME_LABEL).map(str::to_owned),
        is_ready: objects::list(object, "/status/conditions")
            .any(|it| it["type"] == "Ready" && it["status"] == "True"),
        ..Node::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // cluster-network#104
    #[test]
    fn nodes_with_hardware_offload_use_both_mtus_too() {
        let config = OvnConfig {
            text: "[default]\nmtu=\"8900\"\nroutable-mtu=\"1400\"\n".to_owned(),
            hash: "new".to_owned(),
        };
        let ready = |rollouts: &[(&str, &str, bool)]| {
            let rollout = |name: &str| {
                let (_, hash, is_complete) = *rollouts.iter().find(|(it, ..)| *it == name)?;
                Some(Rollout {
                    hash: hash.to_owned(),
                    is_complete,
                })
            };
            uses_both(&config, rollout, 8900, 1400)
        };
        let (node, smart_nic, host) = ("ovnkube-node", "ovnkube-node-smart-nic", "ovnkube-node-dpu-host");
        assert!(ready(&[(node, "new", true)]));
        assert!(ready(&[
            (node, "new", true),
            (smart_nic, "new", true),
            (host, "new", true)
        ]));
        for rollouts in [
            &[][..],
            &[(node, "old", true)],
            &[(node, "new", false)],
            &[(smart_nic, "new", true)],
            &[(node, "new", true), (smart_nic, "old", true)],
            &[(node, "new", true), (host, "new", false)],
        ] {
            assert!(!ready(rollouts), "{rollouts:?}");
        }
    }
}
