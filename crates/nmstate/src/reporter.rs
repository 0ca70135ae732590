//! The reporter: what the host is like, in the node's `NodeNetworkState` (nmstate §5.2).
//!
//! ```text
//! changed, refresh, label, deletion, timer ──> Schedule ──> engine ──> filter ──> fit ──┐
//!                                            same as what was stored last? nothing <────┤
//!                                            NodeNetworkState: read, claim, fill, write <┘
//! ```

pub mod object;

mod messages;
mod prune;
mod schedule;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube_kit::client::chain;
use kube_kit::watch::{self, Change, Options, Store, Watch};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use crate::engine;
use crate::filter;
use crate::filter::names::Names;
use crate::handler::Shared;
use crate::names;
use crate::policy::ask::{self, patiently};
use crate::policy::{objects, spread};
use object::{Owner, Report};
use schedule::Schedule;

/// What etcd stores at most, with room for what the API server notes about an object's writers.
const LARGEST: usize = 1_450_000;
/// How often to ask for a kind that is not there yet.
const ABSENT: Duration = Duration::from_secs(10);
/// Attempts to write while others write too.
const ATTEMPTS: u32 = 5;

/// Why there is no report.
#[derive(Debug, Error)]
enum Error {
    /// The host can't be read.
    #[error("cannot read the state of the host: {0}")]
    Host(#[from] engine::Error),
    /// The object can't be handled.
    #[error("cannot {doing} NodeNetworkState {node}: {source}")]
    Api {
        /// What was tried.
        doing: &'static str,
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: Box<ask::Error>,
    },
    /// Others write all the time.
    #[error("cannot write NodeNetworkState {0}: it is changed by others all the time")]
    Conflict(String),
}

/// What the watch keeps of the node's object.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Known {
    uid: String,
    refresh: Option<String>,
}

/// What was stored last: in which object, a digest of it, and what read it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Stored {
    uid: String,
    digest: [u8; 32],
    versions: engine::Versions,
}

/// A reporter that knows the node and its object, and what tells of changes of both.
async fn begin(shared: Shared) -> (Reporter, Watch<String, String>, Watch<String, Known>) {
    let hidden = old_filter(&shared).await;
    let node = watch_metadata(&shared, &node_resource(), |meta| meta.uid.unwrap_or_default());
    let state = watch_metadata(&shared, &objects::report_resource(), |meta| Known {
        uid: meta.uid.unwrap_or_default(),
        refresh: meta
            .labels
            .and_then(|mut labels| labels.remove(names::REFRESH_LABEL)),
    });
    let reporter = Reporter {
        nodes: node.store(),
        states: state.store(),
        hidden,
        stored: None,
        versions: None,
        shared,
    };
    reporter.nodes.synced().await;
    reporter.states.synced().await;
    (reporter, node, state)
}

/// Reports for ever.
pub async fn start(shared: Shared) {
    let (mut reporter, mut node, mut state) = begin(shared).await;
    let mut seen = reporter.known();
    let mut uid = None;
    let mut schedule = Schedule::new(reporter.shared.settings.resync, Instant::now());
    let (refresh, changed) = (
        Arc::clone(&reporter.shared.refresh),
        Arc::clone(&reporter.shared.changed),
    );
    let mut starts = reporter.shared.starts.subscribe();
    loop {
        let now = Instant::now();
        // The node comes, also as another one of its name; or it is gone, and with it everything about it.
        let current = reporter.uid();
        if current != uid {
            match &current {
                Some(_) => schedule.ask(now),
                None => schedule.stop(),
            }
            uid = current;
        }
        let due = schedule.due().filter(|_| uid.is_some());
        tokio::select! {
            Some(_) = node.next() => {}
            Some(change) = state.next() => {
                let known = reporter.known();
                if change != Change::Synced && is_asked(seen.as_ref(), known.as_ref()) {
                    schedule.ask(now);
                }
                seen = known;
            }
            () = refresh.notified() => schedule.ask(Instant::now()),
            () = changed.notified() => schedule.change(Instant::now()),
            Ok(()) = starts.changed() => schedule.retry(Instant::now()),
            Some(()) = OptionFuture::from(due.map(sleep_until)) => {
                schedule.begin();
                let began = Instant::now();
                match reporter.report().await {
                    Ok(()) => {
                        let later = spread::within(reporter.shared.settings.resync / 10);
                        schedule.done(began, Instant::now(), later);
                    }
                    Err(error) => {
                        tracing::error!(error = %chain(&error), "cannot report the state of the node");
                        schedule.failed(Instant::now());
                    }
                }
            }
        }
    }
}

/// Reports once.
///
/// # Errors
/// When the host can't be read, or what it is like can't be stored.
pub async fn once(shared: Shared) -> anyhow::Result<()> {
    let (mut reporter, _node, _state) = begin(shared).await;
    Ok(reporter.report().await?)
}

/// Whether a change of the object asks for a report: it is gone or another one, or its label has a new value.
fn is_asked(before: Option<&Known>, after: Option<&Known>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) if before.uid == after.uid => {
            after.refresh.is_some() && after.refresh != before.refresh
        }
        (None, None) => false,
        // Whoever made it, maybe we: then there is nothing to be written.
        (None | Some(_), Some(_)) | (Some(_), None) => true,
    }
}

struct Reporter {
    shared: Shared,
    nodes: Store<String, String>,
    states: Store<String, Known>,
    hidden: Names,
    stored: Option<Stored>,
    /// What was read of the versions, and how often NetworkManager was seen to start by then.
    versions: Option<(u64, engine::Versions)>,
}

impl Reporter {
    fn uid(&self) -> Option<String> {
        self.nodes.get(&self.shared.node)
    }

    fn known(&self) -> Option<Known> {
        self.states.get(&self.shared.node)
    }

    /// Reads the host and stores what it is like, unless that is what was stored last.
    async fn report(&mut self) -> Result<(), Error> {
        let Some(uid) = self.uid() else {
            return Ok(());
        };
        let state = self.shared.engine.report().await?;
        let mut state = filter::report(state, |name| self.hidden.contains(name));
        // As the API server keeps it: the same state is the same text.
        state.sort_all_objects();
        let digest = digest(&state);
        let versions = self.versions().await?;
        let stored = self.stored.as_ref();
        let stored = stored.filter(|stored| stored.digest == digest && stored.versions == versions);
        if stored.is_some_and(|stored| self.known().is_some_and(|known| known.uid == stored.uid)) {
            return Ok(());
        }
        tracing::info!("Creating/updating NodeNetworkState");
        let owner = Owner {
            name: &self.shared.node,
            uid: &uid,
        };
        let uid = self.store(&owner, state, &versions).await?;
        self.stored = Some(Stored {
            uid,
            digest,
            versions,
        });
        Ok(())
    }

    /// The versions, which are read again once NetworkManager has started: it has no other version before.
    async fn versions(&mut self) -> Result<engine::Versions, Error> {
        let starts = *self.shared.starts.borrow();
        if let Some((read_at, versions)) = &self.versions
            && *read_at == starts
        {
            return Ok(versions.clone());
        }
        let versions = self.shared.engine.versions().await?;
        self.versions = Some((starts, versions.clone()));
        Ok(versions)
    }

    /// Writes a report into the node's object, which is made where there is none; returns what tells the object from
    /// others of its name.
    async fn store(
        &self,
        owner: &Owner<'_>,
        state: Value,
        versions: &engine::Versions,
    ) -> Result<String, Error> {
        let api = objects::reports(&self.shared.client);
        let node = &self.shared.node;
        let failed = |doing| {
            move |source| Error::Api {
                doing,
                node: node.clone(),
                source: Box::new(source),
            }
        };
        let labels = &self.shared.settings.labels;
        let params = PostParams::default();
        let mut state = Some(state);
        let mut fitted = None;
        for _ in 0..ATTEMPTS {
            let found = patiently(api.get_opt(node)).await.map_err(failed("read"))?;
            let mut object = match found {
                Some(object) => {
                    let mut object = value(&object);
                    if object::claim(&mut object, owner, labels) {
                        match patiently(api.replace(node, &params, &dynamic(object))).await {
                            Ok(object) => value(&object),
                            Err(error) if has_moved_on(&error) => continue,
                            Err(error) => return Err(failed("update")(error)),
                        }
                    } else {
                        object
                    }
                }
                None => match patiently(api.create(&params, &dynamic(object::new(owner, labels)))).await {
                    Ok(object) => value(&object),
                    Err(error) if has_moved_on(&error) => continue,
                    Err(error) => return Err(failed("create")(error)),
                },
            };
            let fitted = fitted.get_or_insert_with(|| {
                let room = LARGEST.saturating_sub(rest(&object));
                prune::fit(state.take().unwrap_or_default(), room)
            });
            let report = Report {
                state: &fitted.report,
                left_out: &fitted.left_out,
                versions,
            };
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            if !object::fill(&mut object, &report, Timestamp::now()) {
                return Ok(uid);
            }
            match patiently(api.replace_status(node, &params, &dynamic(object))).await {
                Ok(_) => return Ok(uid),
                Err(error) if has_moved_on(&error) => {}
                Err(error) => return Err(failed("update the status of")(error)),
            }
        }
        Err(Error::Conflict(node.clone()))
    }
}

/// Whether somebody else was faster: it changed, it is gone, or it is there by now.
fn has_moved_on(error: &ask::Error) -> bool {
    error.is(409) || error.is(404)
}

/// Bytes of an object but for what is reported.
fn rest(object: &Value) -> usize {
    let reported = object.pointer("/status/currentState").map_or(0, prune::size);
    prune::size(object).saturating_sub(reported)
}

/// A digest of a report whose keys are sorted, without writing it out.
fn digest(state: &Value) -> [u8; 32] {
    let mut hashing = Hashing(Sha256::new());
    // Hashing cannot fail.
    let _ = serde_json::to_writer(&mut hashing, state);
    hashing.0.finalize().into()
}

struct Hashing(Sha256);

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn value(object: &DynamicObject) -> Value {
    // What was read from JSON can be written as JSON.
    serde_json::to_value(object).unwrap_or_default()
}

fn dynamic(object: Value) -> DynamicObject {
    let empty = || DynamicObject::new("", &objects::report_resource());
    // Made of an object, or of our own literals.
    serde_json::from_value(object).unwrap_or_else(|_| empty())
}

fn node_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&())
}

/// A watch of the object of a kind that has the node's name.
fn watch_metadata<T: Send + 'static>(
    shared: &Shared,
    resource: &ApiResource,
    project: impl Fn(kube::core::ObjectMeta) -> T + Send + 'static,
) -> Watch<String, T> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(shared.client.clone(), resource);
    watch::start_metadata(
        api,
        &Options::all().named(&shared.node).absent(ABSENT),
        |meta| meta.name.clone().unwrap_or_default(),
        move |object| project(object.metadata),
    )
}

/// The filter of older releases, when there is one: read once, at the start.
async fn old_filter(shared: &Shared) -> Names {
    use k8s_openapi::api::core::v1::ConfigMap;
    let namespace = &shared.settings.namespace;
    if namespace.is_empty() {
        return Names::default();
    }
    let (name, key) = names::FILTER_CONFIG;
    let maps: Api<ConfigMap> = Api::namespaced(shared.client.clone(), namespace);
    let file = match patiently(maps.get_opt(name)).await {
        Ok(map) => map.and_then(|map| map.data?.remove(key)),
        Err(error) => {
            tracing::warn!(name, namespace, %error, "cannot read the filter, nothing is hidden by it");
            None
        }
    };
    match Names::read(file.as_deref().unwrap_or_default()) {
        Ok(hidden) => hidden,
        Err(error) => {
            tracing::warn!(name, namespace, %error, "malformed filter, nothing is hidden by it");
            Names::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(uid: &str, refresh: Option<&str>) -> Known {
        Known {
            uid: uid.to_owned(),
            refresh: refresh.map(str::to_owned),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_api_server_ends_an_attempt_to_report() {
        use axum::http::{Request, Response};
        use kube::client::Body;
        let silent = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, std::convert::Infallible>>()
        });
        let (engine, _requests) = engine::Engine::asked();
        let client = kube::Client::new(silent, "default");
        let shared = Shared::new("node01", client, engine, crate::handler::Settings::default());
        let nodes = watch_metadata(&shared, &node_resource(), |meta| meta.uid.unwrap_or_default());
        let states = watch_metadata(&shared, &objects::report_resource(), |_| known("1", None));
        let reporter = Reporter {
            nodes: nodes.store(),
            states: states.store(),
            hidden: Names::default(),
            stored: None,
            versions: None,
            shared,
        };
        let owner = Owner {
            name: "node01",
            uid: "1",
        };
        let began = Instant::now();
        let versions = engine::Versions::default();
        let stored = reporter.store(&owner, Value::Null, &versions).await;
        let text = stored.expect_err("nobody answers").to_string();
        assert_eq!(
            text,
            "cannot read NodeNetworkState node01: no answer from the API server within 15 s"
        );
        assert_eq!(began.elapsed().as_secs(), ask::PATIENCE.as_secs());
    }

    // nmstate#6
    #[test]
    fn a_new_value_of_the_label_asks_and_nothing_else_about_it_does() {
        let at = |refresh| known("1", refresh);
        assert!(is_asked(Some(&at(None)), Some(&at(Some("1")))));
        assert!(is_asked(Some(&at(Some("1"))), Some(&at(Some("2")))));
        assert!(!is_asked(Some(&at(Some("1"))), Some(&at(Some("1")))));
        assert!(!is_asked(Some(&at(Some("1"))), Some(&at(None))));
        assert!(!is_asked(Some(&at(None)), Some(&at(None))));
        assert!(is_asked(Some(&at(None)), None), "deleted");
        assert!(is_asked(Some(&at(None)), Some(&known("2", None))), "another one");
    }

    #[test]
    fn another_order_of_a_list_is_another_report() {
        let one: Value = serde_json::from_str(r#"{"a":{"b":1,"c":2},"d":[1,2]}"#).expect("JSON");
        let other: Value = serde_json::from_str(r#"{"a":{"b":1,"c":2},"d":[2,1]}"#).expect("JSON");
        assert_eq!(digest(&one), digest(&one.clone()));
        assert_ne!(digest(&one), digest(&other));
    }
}
