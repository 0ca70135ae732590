//! Removes leftovers, each by a DEL about it alone: unlike GC, which removes all but a list, a DEL can't reach an attachment
//! that is being made meanwhile. Blocks, and sees the node's files at their own paths.

use super::decide::Leftover;
use super::facts::Netns;
use super::look::{self, RUNTIME_CACHE, netns};
use super::report::Repair;
use crate::attach::{Attacher, Buried};
use crate::in_process::Plugins;
use crate::names;
use crate::net_conf::MultusConfig;
use crate::records::Records;
use crate::request::Sandbox;
use cni::Error;
use cni::cache::{Cache, Key};
use cni::chain::Chain;
use cni::config::NetworkList;
use cni::env::{Variables, Verb};
use cni::error::internal;
use cni::exec::Resident;
use cni::names as cni_names;
use cni::plugin::run_resident;
use plugins::names::HOST_LOCAL;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a DEL by a record may take.
const LIMIT: Duration = Duration::from_mins(1);
/// The version of the configurations that are made up for records.
const VERSION: &str = "1.0.0";

/// Removes these. One that fails keeps no other from being removed.
pub(super) fn remove(plugins: &Plugins, config: &MultusConfig, leftovers: &BTreeSet<Leftover>) -> Repair {
    let mut repair = Repair::default();
    for leftover in leftovers {
        let removed = match leftover {
            Leftover::Sandbox { id } => sandbox(plugins, config, id),
            Leftover::Cached {
                network,
                sandbox,
                interface,
            } => {
                let key = Key {
                    network,
                    container_id: sandbox,
                    ifname: interface,
                };
                cached(plugins, key)
            }
            Leftover::Trace { .. } => trace(plugins, leftover),
        };
        let about = about(leftover);
        match removed {
            Ok(()) => repair.removed.push(about),
            Err(error) => repair.failed.push(format!("{about}: {error}")),
        }
    }
    repair
}

fn about(leftover: &Leftover) -> String {
    match leftover {
        Leftover::Sandbox { id } => format!("networks of sandbox {id}"),
        Leftover::Cached {
            network,
            sandbox,
            interface,
        } => {
            format!("{interface} of sandbox {sandbox}, network {network}")
        }
        Leftover::Trace {
            plugin,
            network,
            sandbox,
            interface,
        } => {
            format!("state of plugin {plugin} for {interface} of sandbox {sandbox}, network {network}")
        }
    }
}

/// All that multus saved of a sandbox.
fn sandbox(plugins: &Plugins, config: &MultusConfig, id: &str) -> Result<(), Error> {
    let Records { mut sandboxes, .. } = Records::read(&config.cni_dir, &BTreeSet::new()).map_err(internal)?;
    let Some(record) = sandboxes.remove(id) else {
        // Somebody else was faster.
        return Ok(());
    };
    let is_there = |path: &str| netns(path) == Netns::There;
    if record.netns.as_deref().is_some_and(is_there) {
        return Err(came_back());
    }
    let sandbox = Sandbox {
        container_id: id.to_owned(),
        netns: String::new(),
        ifname: names::MASTER_INTERFACE.to_owned(),
        args: String::new(),
        pod: record.pod,
    };
    let attacher = Attacher {
        runner: plugins,
        config,
        sandbox: &sandbox,
    };
    match attacher.bury(&record.results)? {
        Buried::Done => Ok(()),
        Buried::Unknown => Err(Error::internal(
            "its saved networks are unreadable; the multus daemon detaches the cluster network when it starts",
        )),
    }
}

/// An attachment in the runtime's own cache.
fn cached(plugins: &Plugins, key: Key<'_>) -> Result<(), Error> {
    let cache = Cache::new(Path::new(RUNTIME_CACHE));
    let Some(entry) = cache.load(key).map_err(internal)? else {
        return Ok(());
    };
    if netns(&entry.netns) != Netns::Gone {
        return Err(came_back());
    }
    let network = NetworkList::parse_any(&entry.config).map_err(internal)?;
    let chain = Chain {
        runner: plugins,
        cache: &cache,
    };
    let mut attachment = look::of(&entry);
    // Not all plugins take a path that leads nowhere for one that is gone.
    attachment.netns.clear();
    chain.del(&network, &attachment)
}

/// State that a plugin of ours wrote down, which needs no configuration.
fn trace(plugins: &Plugins, leftover: &Leftover) -> Result<(), Error> {
    let Leftover::Trace {
        plugin,
        network,
        sandbox,
        interface,
    } = leftover
    else {
        return Ok(());
    };
    let Some(ours) = plugins::plugin_by_name(plugin) else {
        return Err(Error::internal("no plugin of this version has that name"));
    };
    let mut config = json!({"cniVersion": VERSION, "name": network, "type": plugin});
    if plugin == HOST_LOCAL {
        config["ipam"] = json!({"type": plugin});
    }
    // Leases of old versions name no interface, and are found by any.
    let interface = match interface.as_str() {
        "" => names::MASTER_INTERFACE,
        interface => interface,
    };
    let variables: Variables = [
        (cni_names::CNI_COMMAND, Verb::Del.as_str().to_owned()),
        (cni_names::CNI_CONTAINERID, sandbox.clone()),
        (cni_names::CNI_IFNAME, interface.to_owned()),
        (cni_names::CNI_NETNS, String::new()),
        (cni_names::CNI_ARGS, String::new()),
        (cni_names::CNI_PATH, cni::chain::Runner::path(plugins)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    let resident = Resident {
        prepare: None,
        deadline: Instant::now() + LIMIT,
    };
    run_resident(ours, &variables, config.to_string().as_bytes(), resident).map(drop)
}

fn came_back() -> Error {
    Error::internal("its network namespace is there again")
}
