//! Runs one plugin for each resource while kubelet runs.
//!
//! ```text
//! link events ───────────────┐
//!                            ├─ plan ──> stop and start plugins, update the presence of lower devices
//! inotify: kubelet.sock ─────┘
//!          a plugin's socket ──> that plugin listens again
//! ```

use crate::config::Config;
use crate::links::Links;
use crate::names::{DOMAIN, KUBELET_SOCKET};
use crate::plugin::{BACKOFF, Directories, Plugin, hint};
use crate::resource::Resource;
use crate::socket::Identity;
use kube_kit::watch_dir::{Change, DirWatcher, Event};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::sleep;

/// The plugins to stop and the plugins to start.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    stop: Vec<String>,
    start: Vec<Resource>,
}

/// Compares the running plugins with the resources to offer. Resources with equal names are equal, because the
/// configuration is read once.
fn plan<'a>(running: impl Iterator<Item = &'a String>, wanted: BTreeMap<String, Resource>) -> Plan {
    let running: BTreeSet<&String> = running.collect();
    let stop = running.iter().filter(|name| !wanted.contains_key(**name));
    let stop = stop.map(|name| (*name).clone()).collect();
    let start = wanted.into_iter().filter(|(name, _)| !running.contains(name));
    Plan {
        stop,
        start: start.map(|(_, resource)| resource).collect(),
    }
}

/// Returns true if an event in kubelet's directory concerns kubelet's socket or a socket of a plugin.
fn concerns_us(event: &Event) -> bool {
    let name = event
        .path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    event.change == Change::Unknown || name == KUBELET_SOCKET || name.starts_with(DOMAIN)
}

/// The running plugins.
pub(crate) struct Keeper {
    config: Config,
    directories: Directories,
    links: Links,
    /// Kubelet's socket, if it exists.
    kubelet: Option<Identity>,
    plugins: BTreeMap<String, Plugin>,
}

impl Keeper {
    pub(crate) fn new(config: Config, directories: Directories, links: Links) -> Self {
        Self {
            config,
            directories,
            links,
            kubelet: None,
            plugins: BTreeMap::new(),
        }
    }

    /// Follows links and kubelet without end.
    ///
    /// # Errors
    /// If the kernel ends a subscription.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let mut directory = self.watch().await?;
        if !self.check_kubelet().await {
            self.log_wait();
        }
        loop {
            tokio::select! {
                changed = self.links.changed() => {
                    changed?;
                    self.apply().await;
                }
                events = directory.next() => {
                    if events?.iter().any(concerns_us) {
                        // Kubelet comes first: a starting kubelet deletes the sockets of all plugins.
                        self.check_kubelet().await;
                        self.plugins.values().for_each(Plugin::check_socket);
                    }
                }
            }
        }
    }

    /// Watches kubelet's directory, as soon as it exists.
    async fn watch(&self) -> anyhow::Result<DirWatcher> {
        let mut watcher = DirWatcher::new()?;
        let mut backoff = BACKOFF;
        while let Err(error) = watcher.add(&self.directories.kubelet_dir) {
            let hint = hint(&error);
            let path = self.directories.kubelet_dir.display();
            tracing::error!(%path, %error, "cannot watch kubelet's directory, retrying with back-off{hint}");
            sleep(backoff.next_delay()).await;
        }
        Ok(watcher)
    }

    /// Checks for kubelet. Registers all resources at a new kubelet, and stops all plugins without one. Returns true if
    /// kubelet runs.
    async fn check_kubelet(&mut self) -> bool {
        let found = Identity::of(&self.directories.kubelet_dir.join(KUBELET_SOCKET)).ok();
        if found != self.kubelet {
            let previous = self.kubelet.take();
            self.apply().await;
            if previous.is_some() && found.is_none() {
                self.log_wait();
            }
            self.kubelet = found;
            self.apply().await;
        }
        self.kubelet.is_some()
    }

    fn log_wait(&self) {
        let socket = self.directories.kubelet_dir.join(KUBELET_SOCKET);
        tracing::info!(socket = %socket.display(), "waiting for kubelet");
    }

    async fn apply(&mut self) {
        let links = self.links.names();
        let wanted = match self.kubelet {
            Some(_) => self.config.resources(&links),
            None => BTreeMap::new(),
        };
        let Plan { stop, start } = plan(self.plugins.keys(), wanted);
        for name in stop {
            if let Some(plugin) = self.plugins.remove(&name) {
                plugin.stop().await;
            }
        }
        for plugin in self.plugins.values() {
            plugin.set_present(links.contains(plugin.lower_device()));
        }
        for resource in start {
            let present = links.contains(&resource.lower_device);
            let name = resource.name.clone();
            self.plugins
                .insert(name, Plugin::start(resource, present, &self.directories));
        }
    }

    /// Stops all plugins and removes their sockets.
    pub(crate) async fn stop(self) {
        for plugin in self.plugins.into_values() {
            plugin.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::link::MacVlanMode;

    fn wanted(names: &[&str]) -> BTreeMap<String, Resource> {
        let resource = |name: &&str| Resource {
            name: (*name).to_owned(),
            lower_device: (*name).to_owned(),
            mode: Ok(MacVlanMode::Bridge),
            capacity: 1,
        };
        names
            .iter()
            .map(|name| ((*name).to_owned(), resource(name)))
            .collect()
    }

    fn planned(running: &[&str], desired: &[&str]) -> (Vec<String>, Vec<String>) {
        let running: Vec<String> = running.iter().map(|name| (*name).to_owned()).collect();
        let Plan { stop, start } = plan(running.iter(), wanted(desired));
        (stop, start.into_iter().map(|resource| resource.name).collect())
    }

    #[test]
    fn plan_stops_and_starts_only_the_difference() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(planned(&[], &["a", "b"]), (names(&[]), names(&["a", "b"])));
        assert_eq!(planned(&["a", "b"], &["b", "c"]), (names(&["a"]), names(&["c"])));
        assert_eq!(planned(&["a"], &["a"]), (names(&[]), names(&[])));
        assert_eq!(planned(&["a"], &[]), (names(&["a"]), names(&[])));
    }

    #[test]
    fn concerns_us_files_of_others_do_not() {
        let event = |name: &str, change| Event {
            path: std::path::Path::new("/d").join(name),
            change,
        };
        let own = "macvtap.network.kubevirt.io_a";
        for (name, change, expected) in [
            ("kubelet.sock", Change::Written, true),
            ("kubelet.sock", Change::Gone, true),
            (own, Change::Gone, true),
            ("", Change::Unknown, true),
            ("nvidia.sock", Change::Gone, false),
            ("kubelet_internal_checkpoint", Change::Written, false),
        ] {
            assert_eq!(concerns_us(&event(name, change)), expected, "{name}");
        }
    }
}
