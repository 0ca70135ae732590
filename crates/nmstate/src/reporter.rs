//! Writes the host's state into the node's `NodeNetworkState` (nmstate §5.2).
//!
//! ```text
//! changed, refresh, label, deletion, timer ──> Schedule ──> engine ──> filter ──> fit ──┐
//!                                                        unchanged? nothing to do <─────┤
//!                                            NodeNetworkState: read, claim, fill, write <┘
//! ```

pub(crate) mod object;

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
use crate::names;
use crate::requests::{self, within_timeout};
use crate::shared::Shared;
use crate::{jitter, objects};
use object::{Owner, Report};
use schedule::Schedule;

/// Maximum size of an object in etcd, with room for managed fields.
const MAX_SIZE: usize = 1_450_000;
/// Interval at which a watch retries a kind that is not served yet.
const RETRY_ABSENT: Duration = Duration::from_secs(10);
/// Attempts at a write after conflicts.
const ATTEMPTS: u32 = 5;

/// A report failed.
#[derive(Debug, Error)]
enum Error {
    /// The host cannot be read.
    #[error("cannot read the state of the host: {0}")]
    Host(#[from] engine::Error),
    /// The object cannot be read or written.
    #[error("cannot {doing} NodeNetworkState {node}: {source}")]
    Api {
        /// The failed operation.
        doing: &'static str,
        /// Node name.
        node: String,
        /// Cause.
        #[source]
        source: Box<requests::Error>,
    },
    /// All attempts ended in conflicts.
    #[error("cannot write NodeNetworkState {0}: other clients keep changing it")]
    Conflict(String),
}

/// The parts of the node's object that the watch keeps.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ObservedReport {
    uid: String,
    refresh: Option<String>,
}

/// The last stored report: the object's UID, a digest, and the engine's versions.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Stored {
    uid: String,
    digest: [u8; 32],
    versions: engine::Versions,
}

/// Creates a reporter with the watches of the node and of its object.
async fn begin(shared: Shared) -> (Reporter, Watch<String, String>, Watch<String, ObservedReport>) {
    let hidden = old_filter(&shared).await;
    let node = watch_metadata(&shared, &node_resource(), |meta| meta.uid.unwrap_or_default());
    let state = watch_metadata(&shared, &objects::report_resource(), |meta| ObservedReport {
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

/// Reports until it is dropped.
pub(crate) async fn start(shared: Shared) {
    let (mut reporter, mut node, mut state) = begin(shared).await;
    let mut last_observed = reporter.observed();
    let mut uid = None;
    let mut schedule = Schedule::new(reporter.shared.settings.resync, Instant::now());
    let (refresh, changed) = (
        Arc::clone(&reporter.shared.refresh),
        Arc::clone(&reporter.shared.changed),
    );
    let mut starts = reporter.shared.starts.subscribe();
    loop {
        let now = Instant::now();
        // The node appears, or is replaced by one of the same name; or it is gone, and its report with it.
        let current = reporter.uid();
        if current != uid {
            match &current {
                Some(_) => schedule.request(now),
                None => schedule.stop(),
            }
            uid = current;
        }
        let due = schedule.due().filter(|_| uid.is_some());
        tokio::select! {
            Some(_) = node.next() => {}
            Some(change) = state.next() => {
                let observed = reporter.observed();
                if last_observed.is_none() && observed.is_none() {
                    // The watch may report the creation and the deletion of an object at once.
                    last_observed = reporter.written();
                }
                if change != Change::Synced && requests_report(last_observed.as_ref(), observed.as_ref()) {
                    schedule.request(now);
                }
                last_observed = observed;
            }
            () = refresh.notified() => schedule.request(Instant::now()),
            () = changed.notified() => schedule.change(Instant::now()),
            Ok(()) = starts.changed() => schedule.retry(Instant::now()),
            Some(()) = OptionFuture::from(due.map(sleep_until)) => {
                schedule.begin();
                let began = Instant::now();
                match reporter.report().await {
                    Ok(()) => {
                        let later = jitter::up_to(reporter.shared.settings.resync / 10);
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
pub(crate) async fn once(shared: Shared) -> anyhow::Result<()> {
    let (mut reporter, _node, _state) = begin(shared).await;
    Ok(reporter.report().await?)
}

/// Whether a change of the object requests a report: deletion, another UID, or a new value of the label.
fn requests_report(before: Option<&ObservedReport>, after: Option<&ObservedReport>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) if before.uid == after.uid => {
            after.refresh.is_some() && after.refresh != before.refresh
        }
        (None, None) => false,
        // The reporter itself may have created it: then the report is unchanged, and nothing is written.
        (None | Some(_), Some(_)) | (Some(_), None) => true,
    }
}

struct Reporter {
    shared: Shared,
    nodes: Store<String, String>,
    states: Store<String, ObservedReport>,
    hidden: Names,
    stored: Option<Stored>,
    /// The versions, and the number of observed starts of NetworkManager at which they were read.
    versions: Option<(u64, engine::Versions)>,
}

impl Reporter {
    fn uid(&self) -> Option<String> {
        self.nodes.get(&self.shared.node)
    }

    fn observed(&self) -> Option<ObservedReport> {
        self.states.get(&self.shared.node)
    }

    /// The object of the last stored report.
    fn written(&self) -> Option<ObservedReport> {
        let stored = self.stored.as_ref()?;
        Some(ObservedReport {
            uid: stored.uid.clone(),
            refresh: None,
        })
    }

    /// Reads the host and stores its state, unless it is unchanged.
    async fn report(&mut self) -> Result<(), Error> {
        let Some(uid) = self.uid() else {
            return Ok(());
        };
        let state = self.shared.engine.report().await?;
        let mut state = filter::report(state, |name| self.hidden.contains(name));
        // The API server sorts keys too: equal states are equal texts.
        state.sort_all_objects();
        let digest = digest(&state);
        let versions = self.versions().await?;
        let stored = self.stored.as_ref();
        let stored = stored.filter(|stored| stored.digest == digest && stored.versions == versions);
        if stored.is_some_and(|stored| self.observed().is_some_and(|observed| observed.uid == stored.uid)) {
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

    /// The versions of the engine. They are read again after each start of NetworkManager, which alone can change them.
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

    /// Writes a report into the node's object; creates it if it is missing. Returns its UID.
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
            let found = within_timeout(api.get_opt(node)).await.map_err(failed("read"))?;
            let mut object = match found {
                Some(object) => {
                    let mut object = value(&object);
                    if object::claim(&mut object, owner, labels) {
                        match within_timeout(api.replace(node, &params, &dynamic(object))).await {
                            Ok(object) => value(&object),
                            Err(error) if is_conflict(&error) => continue,
                            Err(error) => return Err(failed("update")(error)),
                        }
                    } else {
                        object
                    }
                }
                None => match within_timeout(api.create(&params, &dynamic(object::new(owner, labels)))).await
                {
                    Ok(object) => value(&object),
                    Err(error) if is_conflict(&error) => continue,
                    Err(error) => return Err(failed("create")(error)),
                },
            };
            let fitted = fitted.get_or_insert_with(|| {
                let room = MAX_SIZE.saturating_sub(rest(&object));
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
            match requests::write_status(&api, &dynamic(object)).await {
                Ok(_) => return Ok(uid),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(failed("update the status of")(error)),
            }
        }
        Err(Error::Conflict(node.clone()))
    }
}

/// Whether another client was faster: the object was changed, deleted or created meanwhile.
fn is_conflict(error: &requests::Error) -> bool {
    error.is(409) || error.is(404)
}

/// Size of an object without the reported state, in bytes.
fn rest(object: &Value) -> usize {
    let reported = object.pointer("/status/currentState").map_or(0, prune::size);
    prune::size(object).saturating_sub(reported)
}

/// Digest of a report with sorted keys, without a copy of the text.
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
    // Objects from JSON can always be serialized.
    serde_json::to_value(object).unwrap_or_default()
}

fn dynamic(object: Value) -> DynamicObject {
    let empty = || DynamicObject::new("", &objects::report_resource());
    // The value comes from an object, or from literals.
    serde_json::from_value(object).unwrap_or_else(|_| empty())
}

fn node_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&())
}

/// Watches the object of a kind that has the node's name.
fn watch_metadata<T: Send + 'static>(
    shared: &Shared,
    resource: &ApiResource,
    project: impl Fn(kube::core::ObjectMeta) -> T + Send + 'static,
) -> Watch<String, T> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(shared.client.clone(), resource);
    watch::start_metadata(
        api,
        &Options::all().named(&shared.node).absent(RETRY_ABSENT),
        |meta| meta.name.clone().unwrap_or_default(),
        move |object| project(object.metadata),
    )
}

/// The filter of older releases, read once at the start.
async fn old_filter(shared: &Shared) -> Names {
    use k8s_openapi::api::core::v1::ConfigMap;
    let namespace = &shared.settings.namespace;
    if namespace.is_empty() {
        return Names::default();
    }
    let (name, key) = names::FILTER_CONFIG;
    let maps: Api<ConfigMap> = Api::namespaced(shared.client.clone(), namespace);
    let file = match within_timeout(maps.get_opt(name)).await {
        Ok(map) => map.and_then(|map| map.data?.remove(key)),
        Err(error) => {
            tracing::warn!(name, namespace, %error, "cannot read the filter, no interface is hidden");
            None
        }
    };
    match Names::read(file.as_deref().unwrap_or_default()) {
        Ok(hidden) => hidden,
        Err(error) => {
            tracing::warn!(name, namespace, %error, "malformed filter, no interface is hidden");
            Names::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(uid: &str, refresh: Option<&str>) -> ObservedReport {
        ObservedReport {
            uid: uid.to_owned(),
            refresh: refresh.map(str::to_owned),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn report_fails_after_the_request_timeout() {
        use axum::http::{Request, Response};
        use kube::client::Body;
        let silent = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, std::convert::Infallible>>()
        });
        let (engine, _requests) = engine::Engine::channel();
        let client = kube::Client::new(silent, "default");
        let shared = Shared::new("node01", client, engine, crate::settings::Settings::default());
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
        let text = stored.expect_err("no answer").to_string();
        assert_eq!(
            text,
            "cannot read NodeNetworkState node01: no answer from the API server within 15 s"
        );
        assert_eq!(began.elapsed().as_secs(), requests::TIMEOUT.as_secs());
    }

    // nmstate#6
    #[test]
    fn only_a_new_label_value_requests_a_report() {
        let at = |refresh| known("1", refresh);
        assert!(requests_report(Some(&at(None)), Some(&at(Some("1")))));
        assert!(requests_report(Some(&at(Some("1"))), Some(&at(Some("2")))));
        assert!(!requests_report(Some(&at(Some("1"))), Some(&at(Some("1")))));
        assert!(!requests_report(Some(&at(Some("1"))), Some(&at(None))));
        assert!(!requests_report(Some(&at(None)), Some(&at(None))));
        assert!(requests_report(Some(&at(None)), None), "deleted");
        assert!(
            requests_report(Some(&at(None)), Some(&known("2", None))),
            "another one"
        );
    }

    #[test]
    fn reordered_list_is_another_report() {
        let one: Value = serde_json::from_str(r#"{"a":{"b":1,"c":2},"d":[1,2]}"#).expect("JSON");
        let other: Value = serde_json::from_str(r#"{"a":{"b":1,"c":2},"d":[2,1]}"#).expect("JSON");
        assert_eq!(digest(&one), digest(&one.clone()));
        assert_ne!(digest(&one), digest(&other));
    }
}
