//! Removes each leftover by its own DEL: unlike GC, which removes everything except a list, a DEL cannot affect an
//! attachment whose ADD runs at the same time. Blocks; must run in the host's root.

use super::decide::Leftover;
use super::facts::Netns;
use super::inspect::{self, RUNTIME_CACHE, netns};
use super::report::Repair;
use crate::attach::{Attacher, CleanUp};
use crate::execution::in_process::Plugins;
use crate::names;
use crate::networks::net_conf::MultusConfig;
use crate::sandbox::Sandbox;
use crate::store::records::Records;
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

/// Timeout of a DEL by a plugin's record.
const LIMIT: Duration = Duration::from_mins(1);
/// CNI version of the configurations that are generated for records.
const VERSION: &str = "1.0.0";

/// Removes the leftovers. An error does not stop the others.
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

/// Detaches all networks in multus' records of a sandbox.
fn sandbox(plugins: &Plugins, config: &MultusConfig, id: &str) -> Result<(), Error> {
    let Records { mut sandboxes, .. } = Records::read(&config.cni_dir, &BTreeSet::new()).map_err(internal)?;
    let Some(record) = sandboxes.remove(id) else {
        // Cleaned up in the meantime.
        return Ok(());
    };
    let exists = |path: &str| netns(path) == Netns::There;
    if record.netns.as_deref().is_some_and(exists) {
        return Err(namespace_exists_again());
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
    match attacher.clean_up(&record.results)? {
        CleanUp::Done => Ok(()),
        CleanUp::Unknown => Err(Error::internal(
            "its records are unreadable; the multus daemon detaches the cluster network when it starts",
        )),
    }
}

/// Detaches an attachment in the runtime's own cache.
fn cached(plugins: &Plugins, key: Key<'_>) -> Result<(), Error> {
    let cache = Cache::new(Path::new(RUNTIME_CACHE));
    let Some(entry) = cache.load(key).map_err(internal)? else {
        return Ok(());
    };
    if netns(&entry.netns) != Netns::Gone {
        return Err(namespace_exists_again());
    }
    let network = NetworkList::parse_any(&entry.config).map_err(internal)?;
    let chain = Chain {
        runner: plugins,
        cache: &cache,
    };
    let mut attachment = inspect::of(&entry);
    // Not all plugins accept the path of a namespace that is gone.
    attachment.netns.clear();
    chain.del(&network, &attachment)
}

/// Detaches an attachment by one of our plugins' records, which need no configuration.
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
    // Leases of old versions have no interface, and match any.
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
        repeats_dels: false,
    };
    run_resident(ours, &variables, config.to_string().as_bytes(), resident).map(drop)
}

fn namespace_exists_again() -> Error {
    Error::internal("its network namespace exists again")
}
