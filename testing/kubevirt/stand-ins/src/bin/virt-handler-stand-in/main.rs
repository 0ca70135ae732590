//! Stands in for virt-handler on all nodes at once, so that KubeVirt's control plane works with guests that do not exist.
//!
//! ```text
//! watches ──> instances and launcher pods ── five times a second ──> plan ──> PUT instance, end pod, patch condition
//! timer ────> nodes ─────────────────────────────────────────────────────> PATCH heartbeat and resources
//! ```
//!
//! # What it copies
//! * Nodes: the heartbeat, the label by which guests are scheduled, one model of processor on all nodes, and room for
//!   guests' network devices.
//! * Instances: Scheduled to Running once the launcher's containers are ready, the end as the launcher ends, interfaces
//!   with MAC, addresses and sources, hot-plug and unplug of secondary networks, `LiveMigratable` (false for a bridge on
//!   the pod network), and what virt-controller reads before it migrates.
//! * Migrations that succeed, step by step, with the end of the source's launcher.
//!
//! # What it does not
//! * Anything inside a pod or a guest: no libvirt, no network binding (the pod keeps the addresses and interfaces that
//!   the plugins made), no DHCP, no guest agent, no disks.
//! * pause, console, VNC and other subresources that virt-api asks a virt-handler pod for.
//! * Migrations that fail or are cancelled, and post-copy.
//!
//! Besides, it sets the condition of launcher pods that KubeVirt 1.5 cannot set on Kubernetes 1.34
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

/// Between two looks at what the watches have brought. Steps of a migration are that far apart.
const PACE: Duration = Duration::from_millis(200);
/// Between two heartbeats; virt-controller gives a node five minutes.
const HEARTBEATS: Duration = Duration::from_secs(30);
/// Where a launcher waits for the word that its guest has left.
const GUEST_PORT: u16 = 32100;

/// Stands in for virt-handler on all nodes.
#[derive(Debug, clap::Parser)]
struct Args {
    /// The cluster, and the service account of virt-handler
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
            change = changes.next() => handler.take(change.context("the watches have ended")?),
            _ = pace.tick() => handler.look().await,
            _ = heartbeats.tick() => {
                if let Err(error) = handler.beat().await {
                    eprintln!("cannot say that the nodes live: {error}");
                    // As soon as the API server is there.
                    heartbeats.reset_after(PACE * 5);
                }
            }
        }
    }
}

/// What a watch told.
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
    /// Those of a list that has not come to its end.
    listed: BTreeMap<Key, Value>,
    /// Whether a list has come to its end.
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
    /// UIDs of pods that were told that their guest has left.
    told: BTreeSet<String>,
}

impl Handler {
    fn new(client: Client) -> Self {
        let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
        Self {
            client,
            instance: ApiResource::from_gvk_with_plural(&kind, "virtualmachineinstances"),
            instances: Store::default(),
            pods: Store::default(),
            told: BTreeSet::new(),
        }
    }

    /// What changes among instances and launcher pods; never ends.
    fn changes(&self) -> impl Stream<Item = Change> + use<> {
        let pod = ApiResource::erase::<Pod>(&());
        let launchers = watcher::Config::default().labels(&format!("{APP}={LAUNCHER}"));
        let watches = [
            (Kind::Instance, &self.instance, watcher::Config::default()),
            (Kind::Pod, &pod, launchers),
        ];
        let streams = watches.map(|(kind, resource, config)| {
            let watched = watcher(Api::all_with(self.client.clone(), resource), config).default_backoff();
            let told = watched.inspect_err(move |error| eprintln!("watch of {kind:?}: {error}"));
            told.filter_map(move |event| {
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

    /// Does what is to be done for all instances. What fails is tried again at the next look.
    async fn look(&mut self) {
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
                // The watch of pods may be behind that of instances.
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

    /// What is to be done for an instance by the pods that the API server has now.
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
            // Somebody else was faster; the watch brings what they wrote.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => eprintln!("instance {}/{}: {error}", key.0, key.1),
        }
    }

    /// Tells a launcher that its guest has left.
    async fn end(&mut self, key: &Key) {
        let Some(pod) = self.pods.objects.get(key) else {
            return;
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if self.told.contains(&uid) {
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
                println!("pod {}/{}: its guest has left", key.0, key.1);
                self.told.insert(uid);
            }
            Err(error) => eprintln!(
                "pod {}/{}: cannot tell it that its guest has left: {error}",
                key.0, key.1
            ),
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

    /// Says that all nodes live, and what they have.
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

/// The time, in RFC 3339 and whole seconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
