//! Stand-in for virt-handler on all nodes, so that KubeVirt's control plane works with simulated guests.
//!
//! ```text
//! watches ──> instances and launcher pods ── five times a second ──> plan ──> PUT instance, end pod, patch condition
//! timer ────> nodes ─────────────────────────────────────────────────────> PATCH heartbeat and resources
//! ```
//!
//! # Simulated
//! * Nodes: the heartbeat, the label for the scheduling of guests, one processor model on all nodes, and resources for
//!   guests' network devices.
//! * Instances: Scheduled to Running once the launcher's containers are ready, the end as the launcher ends, interfaces
//!   with MAC, addresses and sources, hot-plug and unplug of secondary networks, `LiveMigratable` (false for a bridge on
//!   the pod network), and what virt-controller reads before it migrates.
//! * Migrations that succeed, step by step, with the end of the source's launcher.
//!
//! # Not simulated
//! * The inside of pods and guests: no libvirt, no network binding (the pod keeps the addresses and interfaces of the
//!   plugins), no DHCP, no guest agent, no disks.
//! * pause, console, VNC and other subresources for which virt-api calls a virt-handler pod.
//! * Failed or cancelled migrations, and post-copy.
//!
//! In addition, it sets a condition of launcher pods that KubeVirt 1.5 cannot set on Kubernetes 1.34
//! ([`guest::waits_for_unpaused`]).

mod guest;
mod interfaces;
mod names;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::Value;

use crate::guest::Plan;
use crate::names::{APP, LAUNCHER};

/// Interval between reconciliations, which is also the interval between steps of a migration.
const PACE: Duration = Duration::from_millis(200);
/// Interval between heartbeats. virt-controller allows five minutes.
const HEARTBEATS: Duration = Duration::from_secs(30);
/// Port of a launcher for the request that ends its guest.
const GUEST_PORT: u16 = 32100;

/// Stand-in for virt-handler on all nodes
#[derive(Debug, clap::Parser)]
struct Args {
    /// Kubeconfig of the cluster, with the service account of virt-handler
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let Args { kubeconfig } = args;
    let read = Kubeconfig::read_from(&kubeconfig)
        .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let mut handler = Handler::new(client);
    let mut changes = std::pin::pin!(handler.changes());
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut heartbeats = tokio::time::interval(HEARTBEATS);
    loop {
        tokio::select! {
            change = changes.next() => handler.take(change.context("the watches ended")?),
            _ = pace.tick() => handler.reconcile().await,
            _ = heartbeats.tick() => {
                if let Err(error) = handler.beat().await {
                    eprintln!("cannot write the heartbeat of the nodes: {error}");
                    // The next attempt follows soon, because the API server may just have started.
                    heartbeats.reset_after(PACE * 5);
                }
            }
        }
    }
}

/// An event of a watch.
struct Change {
    kind: Kind,
    event: Event<DynamicObject>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Instance,
    Pod,
}

/// Namespace and name.
type Key = (String, String);

/// Objects of one kind.
#[derive(Debug, Default)]
struct Store {
    objects: BTreeMap<Key, Value>,
    /// Objects of an incomplete list.
    listed: BTreeMap<Key, Value>,
    /// True after the first complete list.
    complete: bool,
}

impl Store {
    fn take(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => put(&mut self.listed, &object),
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.complete = true;
            }
            Event::Apply(object) => put(&mut self.objects, &object),
            Event::Delete(object) => drop(self.objects.remove(&key(&object))),
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn put(objects: &mut BTreeMap<Key, Value>, object: &DynamicObject) {
    if let Ok(value) = serde_json::to_value(object) {
        objects.insert(key(object), value);
    }
}

struct Handler {
    client: Client,
    instance: ApiResource,
    instances: Store,
    pods: Store,
    /// UIDs of pods whose guests were ended.
    ended: BTreeSet<String>,
}

impl Handler {
    fn new(client: Client) -> Self {
        let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
        Self {
            client,
            instance: ApiResource::from_gvk_with_plural(&kind, "virtualmachineinstances"),
            instances: Store::default(),
            pods: Store::default(),
            ended: BTreeSet::new(),
        }
    }

    /// Streams changes of instances and launcher pods without end.
    fn changes(&self) -> impl Stream<Item = Change> + use<> {
        let pod = ApiResource::erase::<Pod>(&());
        let launchers = watcher::Config::default().labels(&format!("{APP}={LAUNCHER}"));
        let watches = [
            (Kind::Instance, &self.instance, watcher::Config::default()),
            (Kind::Pod, &pod, launchers),
        ];
        let streams = watches.map(|(kind, resource, config)| {
            let watched = watcher(Api::all_with(self.client.clone(), resource), config).default_backoff();
            let logged = watched.inspect_err(move |error| eprintln!("watch of {kind:?}: {error}"));
            logged
                .filter_map(move |event| {
                    futures::future::ready(event.ok().map(|event| Change { kind, event }))
                })
                .boxed()
        });
        stream::select_all(streams)
    }

    fn take(&mut self, Change { kind, event }: Change) {
        match kind {
            Kind::Instance => self.instances.take(event),
            Kind::Pod => self.pods.take(event),
        }
    }

    /// Reconciles all instances. Failed writes are retried at the next reconciliation.
    async fn reconcile(&mut self) {
        if !(self.instances.complete && self.pods.complete) {
            return;
        }
        let now = now();
        let keys: Vec<Key> = self.instances.objects.keys().cloned().collect();
        for key in keys {
            let Some(instance) = self.instances.objects.get(&key) else {
                continue;
            };
            let beside = self
                .pods
                .objects
                .iter()
                .filter(|((namespace, _), _)| *namespace == key.0);
            let pods: Vec<&Value> = beside.map(|(_, pod)| pod).collect();
            let plan = guest::plan(instance, &pods, &now);
            match plan.instance {
                // The watch of pods may be later than the watch of instances.
                Some(next) if next["status"]["phase"] == "Failed" => match self
                    .with_pods_of_now(&key, &now)
                    .await
                {
                    Ok(plan) => {
                        if let Some(next) = plan.instance {
                            self.write(&key, next).await;
                        }
                    }
                    Err(error) => eprintln!("instance {}/{}: cannot list its pods: {error}", key.0, key.1),
                },
                Some(next) => self.write(&key, next).await,
                None => {}
            }
            for pod in plan.left {
                self.end(&(key.0.clone(), pod)).await;
            }
        }
        let waiting = self
            .pods
            .objects
            .iter()
            .filter(|(_, pod)| guest::waits_for_unpaused(pod));
        let waiting: Vec<Key> = waiting.map(|(key, _)| key.clone()).collect();
        for key in waiting {
            self.unpause(&key, &now).await;
        }
    }

    /// Returns the plan for an instance with the current pods of the API server.
    async fn with_pods_of_now(&self, key: &Key, now: &str) -> kube::Result<Plan> {
        let api = Api::<DynamicObject>::namespaced_with(
            self.client.clone(),
            &key.0,
            &ApiResource::erase::<Pod>(&()),
        );
        let launchers = ListParams::default().labels(&format!("{APP}={LAUNCHER}"));
        let pods = api.list(&launchers).await?;
        let pods: Vec<Value> = pods
            .iter()
            .filter_map(|pod| serde_json::to_value(pod).ok())
            .collect();
        let instance = self.instances.objects.get(key);
        Ok(instance.map_or_else(Plan::default, |instance| {
            guest::plan(instance, &pods.iter().collect::<Vec<_>>(), now)
        }))
    }

    async fn write(&mut self, key: &Key, next: Value) {
        let phase = next["status"]["phase"].as_str().unwrap_or_default().to_owned();
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &key.0, &self.instance);
        let written = match serde_json::from_value::<DynamicObject>(next) {
            Ok(object) => api.replace(&key.1, &PostParams::default(), &object).await,
            Err(error) => return eprintln!("instance {}/{}: {error}", key.0, key.1),
        };
        match written {
            Ok(object) => {
                println!("instance {}/{}: written, {phase}", key.0, key.1);
                put(&mut self.instances.objects, &object);
            }
            // Another writer was faster, and the watch reports its change.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => eprintln!("instance {}/{}: {error}", key.0, key.1),
        }
    }

    /// Ends the guest of a launcher.
    async fn end(&mut self, key: &Key) {
        let Some(pod) = self.pods.objects.get(key) else {
            return;
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if self.ended.contains(&uid) {
            return;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}:{GUEST_PORT}/proxy/", key.0, key.1);
        let asked = kube::core::request::Request::new(path).create(&PostParams::default(), Vec::new());
        let outcome = match asked {
            Ok(request) => self.client.request_text(request).await,
            Err(error) => return eprintln!("pod {}/{}: {error}", key.0, key.1),
        };
        match outcome {
            Ok(_) => {
                println!("pod {}/{}: its guest left", key.0, key.1);
                self.ended.insert(uid);
            }
            Err(error) => eprintln!("pod {}/{}: cannot end its guest: {error}", key.0, key.1),
        }
    }

    async fn unpause(&mut self, key: &Key, now: &str) {
        let api = Api::<Pod>::namespaced(self.client.clone(), &key.0);
        let patch = Patch::Strategic(guest::unpaused(now));
        match api.patch_status(&key.1, &PatchParams::default(), &patch).await {
            Ok(pod) => {
                if let (Ok(value), Some(known)) = (serde_json::to_value(pod), self.pods.objects.get_mut(key))
                {
                    *known = value;
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => eprintln!("pod {}/{}: cannot set its condition: {error}", key.0, key.1),
        }
    }

    /// Writes heartbeat and resources of all nodes.
    async fn beat(&self) -> kube::Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        let beat = Patch::Merge(node::heartbeat(&now()));
        let resources = Patch::Merge(node::resources());
        for node in nodes.list_metadata(&ListParams::default()).await? {
            let name = node.name_any();
            nodes
                .patch_metadata(&name, &PatchParams::default(), &beat)
                .await?;
            nodes
                .patch_status(&name, &PatchParams::default(), &resources)
                .await?;
        }
        Ok(())
    }
}

/// Returns the time in RFC 3339, in whole seconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
