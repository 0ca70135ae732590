//! A simulated host: its report has the state that the test sets, and the applied state.
//!
//! ```ignore
//! let host = Host::new(host::two_nics());
//! host.refuse(error("VerificationError", "…"));        // every apply from now on
//! host.on_apply(|desired| { …; Ok(()) });              // or: called at every apply
//! assert_eq!(host.applied(), [json!({ "interfaces": […] })]);
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nmstate::{NetworkPolicy, NetworkState, NmstateError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, mpsc, watch};
use weft_nmstate::engine::{Engine, Error, Filled, Request, Template, Versions};

/// A simulated host. Clones are the same host.
#[derive(Clone)]
pub(crate) struct Host {
    engine: Engine,
    state: Arc<Mutex<State>>,
    /// Notified at each change of the host, as the kernel would do.
    pub(crate) changed: Arc<Notify>,
    /// The number of starts of its NetworkManager, as the bus reports them.
    pub(crate) starts: Arc<watch::Sender<u64>>,
}

/// Called before a document is applied. It has a lock of its own, so that a test can read the host meanwhile and can
/// replace it.
type Ask = Arc<Mutex<dyn FnMut(&Value) -> Result<(), Error> + Send>>;

struct State {
    current: Value,
    /// Version of its NetworkManager.
    network_manager: String,
    /// Its state before the uncommitted change.
    before: Option<Value>,
    applied: Vec<Value>,
    commits: usize,
    rollbacks: usize,
    reports: usize,
    version_reads: usize,
    unreadable: Option<Error>,
    ask: Ask,
}

impl Host {
    /// A host that reports this.
    pub(crate) fn new(current: Value) -> Self {
        let (engine, requests) = Engine::channel();
        let state = Arc::new(Mutex::new(State {
            current,
            network_manager: "1.48.10".to_owned(),
            before: None,
            applied: Vec::new(),
            commits: 0,
            rollbacks: 0,
            reports: 0,
            version_reads: 0,
            unreadable: None,
            ask: Arc::new(Mutex::new(|_: &Value| Ok::<(), Error>(()))),
        }));
        let changed = Arc::new(Notify::new());
        let answering = (Arc::clone(&state), Arc::clone(&changed));
        std::thread::spawn(move || answer(requests, &answering.0, &answering.1));
        Self {
            engine,
            state,
            changed,
            starts: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The engine of this host.
    pub(crate) fn engine(&self) -> Engine {
        self.engine.clone()
    }

    /// The same host without events about its changes.
    pub(crate) fn unheard(&self) -> Self {
        Self {
            changed: Arc::default(),
            ..self.clone()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Its present report.
    pub(crate) fn current(&self) -> Value {
        self.state().current.clone()
    }

    /// Changes the host from outside.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Value)) {
        change(&mut self.state().current);
        self.changed.notify_one();
    }

    /// NetworkManager comes back as this version, and its bus reports the start.
    pub(crate) fn upgrade(&self, network_manager: &str) {
        network_manager.clone_into(&mut self.state().network_manager);
        self.starts.send_modify(|count| *count += 1);
        self.changed.notify_one();
    }

    /// Changes the host from outside, without an event.
    pub(crate) fn change_quietly(&self, change: impl FnOnce(&mut Value)) {
        change(&mut self.state().current);
    }

    /// Reports and comparisons fail with this error from now on; with `None`, they succeed.
    pub(crate) fn unreadable(&self, error: Option<Error>) {
        self.state().unreadable = error;
    }

    /// NetworkManager stops: the host cannot be read, and no document is applied.
    pub(crate) fn lose_network_manager(&self) {
        let away = error("PluginFailure", "NetworkManager is away");
        self.unreadable(Some(away.clone()));
        self.refuse(away);
    }

    /// NetworkManager starts again, and only its bus reports that.
    pub(crate) fn regain_network_manager(&self) {
        self.unreadable(None);
        self.on_apply(|_| Ok(()));
        self.starts.send_modify(|count| *count += 1);
    }

    /// Called for every document before it is applied. May wait: the host does nothing else meanwhile.
    pub(crate) fn on_apply(&self, ask: impl FnMut(&Value) -> Result<(), Error> + Send + 'static) {
        self.state().ask = Arc::new(Mutex::new(ask));
    }

    /// Every document is refused from now on.
    pub(crate) fn refuse(&self, error: Error) {
        self.on_apply(move |_| Err(error.clone()));
    }

    /// Documents of all applications, refused ones too, oldest first.
    pub(crate) fn applied(&self) -> Vec<Value> {
        self.state().applied.clone()
    }

    /// Number of commits.
    pub(crate) fn commits(&self) -> usize {
        self.state().commits
    }

    /// Number of roll-backs.
    pub(crate) fn rollbacks(&self) -> usize {
        self.state().rollbacks
    }

    /// Number of reads of its state.
    pub(crate) fn reports(&self) -> usize {
        self.state().reports
    }

    /// Number of reads of its versions.
    pub(crate) fn version_reads(&self) -> usize {
        self.state().version_reads
    }
}

/// An error of the library.
pub(crate) fn error(kind: &str, text: &str) -> Error {
    Error {
        kind: kind.to_owned(),
        text: format!("{kind}: {text}"),
        log: String::new(),
    }
}

/// A host with `eth0`, which has the default route, and `eth1`, which is up and has no address.
pub(crate) fn two_nics() -> Value {
    let nic = |name: &str, address: Value| {
        json!({
            "name": name, "type": "ethernet", "state": "up", "mtu": 1500,
            "ipv4": address, "ipv6": { "enabled": false },
        })
    };
    let route = json!({
        "destination": "0.0.0.0/0", "next-hop-interface": "eth0", "next-hop-address": "192.0.2.1",
        "metric": 100, "table-id": 254,
    });
    let address = json!({
        "enabled": true, "dhcp": false, "address": [{ "ip": "192.0.2.2", "prefix-length": 24 }],
    });
    json!({
        "dns-resolver": { "config": {}, "running": { "search": [], "server": ["192.0.2.1"] } },
        "routes": { "running": [route], "config": [route] },
        "route-rules": { "config": [] },
        "interfaces": [
            nic("eth0", address),
            nic("eth1", json!({ "enabled": false })),
            { "name": "lo", "type": "loopback", "state": "up", "mtu": 65536 },
        ],
        "ovn": {},
    })
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(mut requests: mpsc::UnboundedReceiver<Request>, state: &Mutex<State>, changed: &Notify) {
    while let Some(request) = requests.blocking_recv() {
        match request {
            Request::Versions(back) => {
                let mut state = lock(state);
                state.version_reads += 1;
                let versions = Versions {
                    engine: "nmstatectl 2.2.62".to_owned(),
                    network_manager: Some(state.network_manager.clone()),
                };
                let unreadable = state.unreadable.clone();
                drop(back.send(unreadable.map_or(Ok(versions), Err)));
            }
            Request::Report(back) => {
                let mut state = lock(state);
                state.reports += 1;
                let unreadable = state.unreadable.clone();
                let _ = back.send(unreadable.map_or_else(|| Ok(state.current.clone()), Err));
            }
            Request::Fill(template, back) => {
                let mut state = lock(state);
                let reads = !template.capture.is_empty() && template.captured.is_empty();
                state.reports += usize::from(reads);
                let unreadable = state.unreadable.clone().filter(|_| reads);
                let filled = match unreadable {
                    Some(error) => Err(error),
                    None => fill(template, &state.current),
                };
                drop(back.send(filled));
            }
            Request::Features(desired, back) => {
                let current = lock(state).current.clone();
                let features = read(desired).and_then(|desired: NetworkState| {
                    let statistic = desired.statistic(&read(current)?).map_err(own)?;
                    read(write(&statistic.features)?)
                });
                drop(back.send(features));
            }
            Request::Diff(desired, back) => {
                let (current, unreadable) = {
                    let state = lock(state);
                    (state.current.clone(), state.unreadable.clone())
                };
                let desired = unreadable.map_or(Ok(desired), Err);
                let difference = desired.and_then(read).and_then(|desired: NetworkState| {
                    write(&desired.gen_diff(&read(current)?).map_err(own)?)
                });
                drop(back.send(difference));
            }
            Request::Apply(desired, back) => {
                let done = apply(state, &desired);
                if done.is_ok() {
                    changed.notify_one();
                }
                drop(back.send(done));
            }
            Request::Commit(back) => {
                let mut state = lock(state);
                state.commits += 1;
                let pending = state.before.take();
                drop(back.send(pending.map(drop).ok_or_else(no_checkpoint)));
            }
            // Tests use no terminal on this host, and never close the engine.
            Request::Tool(..) | Request::Close(_) => {}
            Request::Rollback(back) => {
                let mut state = lock(state);
                let Some(before) = state.before.take() else {
                    drop(back.send(Err(no_checkpoint())));
                    continue;
                };
                state.rollbacks += 1;
                state.current = before;
                changed.notify_one();
                drop(back.send(Ok(())));
            }
        }
    }
}

fn no_checkpoint() -> Error {
    error("InvalidArgument", "No checkpoint to work on")
}

fn apply(state: &Mutex<State>, desired: &Value) -> Result<(), Error> {
    lock(state).applied.push(desired.clone());
    read::<NetworkState>(desired.clone())?;
    let ask = Arc::clone(&lock(state).ask);
    let mut ask = ask.lock().unwrap_or_else(PoisonError::into_inner);
    (*ask)(desired)?;
    let mut state = lock(state);
    let mut after = state.current.clone();
    merge(&mut after, desired);
    state.before = Some(std::mem::replace(&mut state.current, after));
    Ok(())
}

/// Interfaces by name, key by key, without those that are to be absent; other sections as they are.
fn merge(current: &mut Value, desired: &Value) {
    for (section, part) in desired.as_object().into_iter().flatten() {
        if section != "interfaces" {
            current[section] = part.clone();
            continue;
        }
        let Some(interfaces) = current["interfaces"].as_array_mut() else {
            continue;
        };
        for desired in part.as_array().into_iter().flatten() {
            let at = interfaces.iter().position(|it| it["name"] == desired["name"]);
            if desired["state"] == "absent" {
                if let Some(at) = at {
                    interfaces.remove(at);
                }
                continue;
            }
            let at = at.unwrap_or_else(|| {
                interfaces.push(json!({}));
                interfaces.len() - 1
            });
            for (key, value) in desired.as_object().into_iter().flatten() {
                interfaces[at][key] = value.clone();
            }
        }
        interfaces.sort_by_key(|interface| interface["name"].to_string());
    }
}

/// Expressions and references as the library has them.
fn fill(template: Template, current: &Value) -> Result<Filled, Error> {
    let Template {
        capture,
        desired,
        captured,
    } = template;
    let policy: NetworkPolicy = read(json!({ "capture": capture, "desiredState": desired }))?;
    let found = if captured.is_empty() {
        policy.capture.execute(&read(current.clone())?).map_err(own)?
    } else {
        let states = captured.into_iter().map(|(name, state)| Ok((name, read(state)?)));
        states.collect::<Result<_, Error>>()?
    };
    let filled = policy.desired.fill_with_captured_data(&found).map_err(own)?;
    let captured = found
        .iter()
        .map(|(name, state)| Ok((name.clone(), write(state)?)));
    Ok(Filled {
        desired: write(&filled)?,
        captured: captured.collect::<Result<Map<_, _>, Error>>()?,
    })
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn own(error: NmstateError) -> Error {
    Error {
        kind: error.kind().to_string(),
        text: error.to_string(),
        log: String::new(),
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| own(error.into()))
}

fn write<T: Serialize>(value: &T) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| own(error.into()))
}
