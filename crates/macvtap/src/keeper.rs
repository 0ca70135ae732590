//! Keeps one plugin per resource while kubelet runs.
//!
//! ```text
//! link events ───────────────┐
//!                            ├─ plan ──> stop, start plugins; tell them of their lower device
//! inotify: kubelet.sock ─────┘
//!          a plugin's socket ──> that plugin looks after it
//! ```

use crate::config::Config;
use crate::links::Links;
use crate::names::{DOMAIN, KUBELET_SOCKET};
use crate::plugin::{Places, Plugin, hint, pause};
use crate::resource::Resource;
use kube_kit::watch_dir::{Change, DirWatcher, Event};
use std::collections::{BTreeMap, BTreeSet};

/// Which plugins to stop and to start.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    stop: Vec<String>,
    start: Vec<Resource>,
}

/// Compares the running plugins with the resources to offer. Resources of one name do not differ: the configuration is
/// read once.
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

/// What an event in kubelet's directory is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// Kubelet's socket is there, or is a new one.
    KubeletStarted,
    /// Kubelet's socket is gone.
    KubeletStopped,
    /// A socket of a plugin is another one, or gone.
    PluginSocket,
    /// Anything may have happened.
    Unclear,
    /// Nothing of ours.
    Foreign,
}

fn news(event: &Event) -> News {
    let name = event
        .path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    match event.change {
        Change::Unknown => News::Unclear,
        Change::Written if name == KUBELET_SOCKET => News::KubeletStarted,
        Change::Gone if name == KUBELET_SOCKET => News::KubeletStopped,
        Change::Gone | Change::Written if name.starts_with(DOMAIN) => News::PluginSocket,
        Change::Gone | Change::Written => News::Foreign,
    }
}

/// The running plugins.
pub(crate) struct Keeper {
    config: Config,
    places: Places,
    links: Links,
    kubelet_runs: bool,
    plugins: BTreeMap<String, Plugin>,
}

impl Keeper {
    pub(crate) fn new(config: Config, places: Places, links: Links) -> Self {
        Self {
            config,
            places,
            links,
            kubelet_runs: false,
            plugins: BTreeMap::new(),
        }
    }

    /// Follows links and kubelet, for ever.
    ///
    /// # Errors
    /// Only when the kernel refuses events.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let mut directory = self.watch().await?;
        self.set_kubelet(self.kubelet_socket_exists()).await;
        loop {
            tokio::select! {
                changed = self.links.changed() => {
                    changed?;
                    self.carry_out().await;
                }
                events = directory.next() => {
                    for event in events? {
                        self.follow(&event).await;
                    }
                }
            }
        }
    }

    /// Watches kubelet's directory, as soon as it is there.
    async fn watch(&self) -> anyhow::Result<DirWatcher> {
        let mut watcher = DirWatcher::new()?;
        let mut failures = 0;
        while let Err(error) = watcher.add(&self.places.kubelet_dir) {
            let hint = hint(&error);
            let path = self.places.kubelet_dir.display();
            tracing::error!(%path, %error, "cannot watch kubelet's directory{hint}");
            pause(&mut failures).await;
        }
        Ok(watcher)
    }

    fn kubelet_socket_exists(&self) -> bool {
        self.places.kubelet_dir.join(KUBELET_SOCKET).exists()
    }

    async fn follow(&mut self, event: &Event) {
        match news(event) {
            News::KubeletStarted => self.restart_all().await,
            News::KubeletStopped => self.set_kubelet(self.kubelet_socket_exists()).await,
            News::PluginSocket => self.plugins.values().for_each(Plugin::look),
            News::Unclear => {
                if self.kubelet_socket_exists() {
                    self.restart_all().await;
                } else {
                    self.set_kubelet(false).await;
                }
            }
            News::Foreign => {}
        }
    }

    /// Registers everything at a kubelet that is new.
    async fn restart_all(&mut self) {
        self.set_kubelet(false).await;
        self.set_kubelet(true).await;
    }

    async fn set_kubelet(&mut self, runs: bool) {
        if self.kubelet_runs && !runs {
            tracing::info!("kubelet's socket is gone or new, stopping the plugins");
        }
        if !runs && !self.kubelet_socket_exists() {
            let socket = self.places.kubelet_dir.join(KUBELET_SOCKET);
            tracing::info!(socket = %socket.display(), "waiting for kubelet");
        }
        self.kubelet_runs = runs;
        self.carry_out().await;
    }

    async fn carry_out(&mut self) {
        let links = self.links.names();
        let wanted = match self.kubelet_runs {
            true => self.config.resources(&links),
            false => BTreeMap::new(),
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
                .insert(name, Plugin::start(resource, present, &self.places));
        }
    }

    /// Ends all plugins. Their socket files are gone afterwards.
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

    fn planned(running: &[&str], wish: &[&str]) -> (Vec<String>, Vec<String>) {
        let running: Vec<String> = running.iter().map(|name| (*name).to_owned()).collect();
        let Plan { stop, start } = plan(running.iter(), wanted(wish));
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
    fn news_of_other_plugins_are_foreign() {
        let event = |name: &str, change| Event {
            path: std::path::Path::new("/d").join(name),
            change,
        };
        let own = "macvtap.network.kubevirt.io_a";
        for (name, change, expected) in [
            ("kubelet.sock", Change::Written, News::KubeletStarted),
            ("kubelet.sock", Change::Gone, News::KubeletStopped),
            (own, Change::Gone, News::PluginSocket),
            ("nvidia.sock", Change::Gone, News::Foreign),
            ("kubelet_internal_checkpoint", Change::Written, News::Foreign),
            ("", Change::Unknown, News::Unclear),
        ] {
            assert_eq!(news(&event(name, change)), expected, "{name}");
        }
    }
}
