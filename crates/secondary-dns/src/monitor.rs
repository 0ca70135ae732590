//! Watches the instances of the cluster, and publishes their names (secondary-dns §3, §9).
//!
//! ```text
//! list, watch ──> Vmi ──> records ──> Model ──┬──> zones in memory, at once
//!  (watches)          (state)                 └─ changes ──> Files ──> zone files, not more often than needed
//! ```

mod directory;
mod files;
mod state;
mod watches;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use kube::Client;
use kube_kit::client::chain;
use kube_kit::lock;
use kube_kit::serve::Readiness;
use tokio::sync::Notify;

use crate::answer::SharedZones;
use crate::claims::{self, Early};
use crate::configuration::Configuration;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::publish::Publisher;
use crate::settings::{Settings, Sources};
use directory::Directory;
use files::{Files, keep_written};
use state::State;
use watches::{follow_claims, follow_instances, follow_pods, watch_instances, watch_pods};

/// Destinations of the zones.
#[derive(Clone, Debug)]
pub struct Places {
    /// Zones of the server in this process.
    pub memory: Option<SharedZones>,
    /// Directory of zone files.
    pub directory: Option<PathBuf>,
}

/// A monitor before its start.
#[derive(Debug)]
pub struct Monitor {
    state: Arc<Mutex<State>>,
    estate: Estate,
    changed: Arc<Notify>,
    files: Option<Files>,
    early: Sources,
    readiness: Readiness,
    metrics: Metrics,
}

/// The state that a monitor with other settings takes over.
#[derive(Clone, Debug)]
struct Estate {
    state: Arc<Mutex<State>>,
    places: Places,
    directory: Directory,
    metrics: Metrics,
}

/// Runs a monitor, and replaces it after each change of the configuration. The former monitor continues until the new
/// one has all instances, so that no name is denied in between.
pub async fn run(
    first: Monitor,
    client: Client,
    mut configuration: Configuration,
    environment: impl Fn(&str) -> Option<String>,
) {
    if let (true, Some(files)) = (configuration.is_mounted(), &first.files) {
        files.find_former();
    }
    let ready = first.readiness.clone();
    let mut estate = first.estate.clone();
    let mut current = Box::pin(first.run(client.clone()));
    let mut is_changed = false;
    loop {
        if !is_changed {
            tokio::select! {
                () = &mut current => return,
                () = configuration.changed() => {}
            }
        }
        is_changed = false;
        let settings = match Settings::read(configuration.lookup(&environment)) {
            Ok(settings) => settings,
            Err(error) => {
                tracing::error!("{}; the former settings stay", chain(&error));
                continue;
            }
        };
        tracing::info!(zone = settings.header.zone, "the configuration has changed");
        let next = estate.successor(settings);
        let (complete, heir) = (next.readiness.clone(), next.estate.clone());
        let mut next = Box::pin(next.run(client.clone()));
        tokio::select! {
            () = &mut current => return,
            () = &mut next => return,
            () = complete.wait() => {
                ready.set(true);
                current = next;
                estate = heir;
            }
            () = configuration.changed() => is_changed = true,
        }
    }
}

impl Estate {
    /// A monitor with other settings for the same destinations.
    fn successor(&self, settings: Settings) -> Monitor {
        let Self {
            state,
            places,
            directory,
            metrics,
        } = self;
        let monitor = Monitor::at(
            settings,
            places.clone(),
            directory.clone(),
            Readiness::new(),
            metrics.clone(),
        );
        lock(&monitor.state).predecessor = Some(Arc::clone(state));
        monitor
    }
}

impl Monitor {
    /// A monitor without instances. It continues the serial of the zone file, if one exists.
    pub fn new(settings: Settings, places: Places, readiness: Readiness, metrics: Metrics) -> Self {
        Self::at(settings, places, Directory::default(), readiness, metrics)
    }

    fn at(
        settings: Settings,
        places: Places,
        writers: Directory,
        readiness: Readiness,
        metrics: Metrics,
    ) -> Self {
        let Settings {
            header,
            policy,
            counter,
            early,
            complaint,
        } = settings;
        if let Some(complaint) = complaint {
            tracing::error!("{complaint}");
        }
        let Places { memory, directory } = places.clone();
        let publisher = directory.map(Publisher::new);
        let continued = publisher
            .as_ref()
            .and_then(|publisher| publisher.serial(&header.zone));
        let serial = match continued {
            Some(serial) => serial,
            None if counter => 0,
            None => now(),
        };
        let model = Model::new(header.clone(), serial);
        let files = publisher.map(|publisher| {
            let model = Model::new(header, serial);
            Files::new(publisher, writers.clone(), model, counter)
        });
        if let Some(memory) = &memory {
            let mut memory = lock(memory);
            for origin in model.origins() {
                memory.expect(origin);
            }
        }
        let state = State::new(model, policy, memory, files.is_some(), writers.clone());
        let state = Arc::new(Mutex::new(state));
        Self {
            estate: Estate {
                state: Arc::clone(&state),
                places,
                directory: writers,
                metrics: metrics.clone(),
            },
            state,
            changed: Arc::new(Notify::new()),
            files,
            early,
            readiness,
            metrics,
        }
    }

    /// Watches the instances forever.
    pub async fn run(self, client: Client) {
        let Self {
            state,
            estate: _,
            changed,
            files,
            early,
            readiness,
            metrics,
        } = self;
        // These lists come before the instances, so that no name with an address is denied.
        let (mut claims, mut pods) = (None, None);
        if early != Sources::default() {
            lock(&state).early = Some(Early::default());
        }
        if early.claims {
            let watch = claims.insert(claims::watch(client.clone()).await);
            if let Some(early) = &mut lock(&state).early {
                early.claims = Some(watch.store());
            }
        }
        if early.network_status {
            let watch = pods.insert(watch_pods(client.clone(), &state, &changed));
            claims::first_list(watch, "pods of virtual machine instances").await;
        }
        let mut watch = watch_instances(client, &state, &changed);
        let publishing = async {
            readiness.wait().await;
            match files {
                Some(files) => keep_written(files, &state, &changed).await,
                None => std::future::pending().await,
            }
        };
        let claiming = async {
            match claims.as_mut() {
                Some(watch) => follow_claims(watch, &state, &changed).await,
                None => std::future::pending().await,
            }
        };
        let launching = async {
            match pods.as_mut() {
                Some(watch) => follow_pods(watch, &state, &changed).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(
            follow_instances(&mut watch, &state, &changed, &readiness, &metrics),
            claiming,
            launching,
            publishing
        );
    }
}

/// Seconds since 1970, as a serial.
fn now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The value wraps in the manner of serials.
    u32::try_from(since.as_secs() & u64::from(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
