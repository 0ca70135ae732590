//! Calls of IPAM plugins: our own in this process, others by running them (cni-plugins §1.6).

use cni::{
    Error,
    env::Verb,
    exec,
    plugin::{Call, Plugin},
    result::CniResult,
};

use serde::Deserialize;

use crate::{
    dhcp::Dhcp,
    host_local::HostLocal,
    names::{DHCP, HOST_LOCAL, STATIC},
    plugin_by_name,
    static_ipam::StaticIpam,
};

/// Addresses that are asked for in `args`, in a config of any of our own IPAM plugins.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireArgs {
    pub(crate) cni: WireIps,
}

/// A list of addresses, each perhaps with the length of its prefix.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireIps {
    pub(crate) ips: Vec<String>,
}

/// Our own IPAM plugins. They run in this process whatever lies under their name in `CNI_PATH`: what they
/// store and print is the same, and starting a process would be the dearest part of an attachment.
fn own(plugin: &str) -> Option<&'static dyn Plugin> {
    match plugin {
        DHCP => Some(&Dhcp),
        HOST_LOCAL => Some(&HostLocal),
        STATIC => Some(&StaticIpam),
        _ => None,
    }
}

/// An error for those of our plugins that assign no addresses: one that is named as its own IPAM plugin would call
/// itself until the node has no processes left.
fn require_ipam(plugin: &str) -> Result<(), Error> {
    match plugin_by_name(plugin) {
        Some(ours) if own(ours.name()).is_none() => {
            Err(Error::internal(format!("\"{plugin}\" assigns no addresses")))
        }
        _ => Ok(()),
    }
}

/// The IPAM plugin of a call's config; `None` for a layer 2 attachment.
fn plugin(call: &Call) -> Option<&str> {
    Some(call.config.ipam_plugin()).filter(|name| !name.is_empty())
}

/// Whether the config asks for addresses.
pub(crate) fn is_wanted(call: &Call) -> bool {
    plugin(call).is_some()
}

/// Whether the IPAM plugin gives addresses back through the link, as DHCP tells its server. All others give them back when
/// the link is gone: the next owner must not meet it.
pub(crate) fn needs_link(call: &Call) -> bool {
    plugin(call) == Some(DHCP)
}

/// Asks for addresses. Without an IPAM plugin the result is empty.
pub(crate) fn add(call: &Call) -> Result<CniResult, Error> {
    let Some(name) = plugin(call) else {
        return Ok(CniResult::default());
    };
    require_ipam(name)?;
    match own(name) {
        Some(plugin) => plugin.add(call),
        None => Ok(exec::delegate(call, name, Verb::Add)?.unwrap_or_default()),
    }
}

/// Gives addresses back. Without an IPAM plugin there are none.
pub(crate) fn del(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Del, |plugin| plugin.del(call))
}

/// Asks whether the addresses are still this attachment's.
pub(crate) fn check(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Check, |plugin| plugin.check(call))
}

/// Asks whether addresses could be assigned.
pub(crate) fn status(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Status, |plugin| plugin.status(call))
}

/// Has addresses of attachments that are not valid any more given back.
pub(crate) fn gc(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Gc, |plugin| plugin.gc(call))
}

fn delegate(
    call: &Call,
    verb: Verb,
    in_process: impl FnOnce(&'static dyn Plugin) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(name) = plugin(call) else { return Ok(()) };
    match require_ipam(name) {
        // It never assigned any.
        Err(_) if matches!(verb, Verb::Del | Verb::Gc) => return Ok(()),
        usable => usable?,
    }
    match own(name) {
        Some(plugin) => in_process(plugin),
        None => exec::delegate(call, name, verb).map(drop),
    }
}
