//! Calls IPAM plugins: ours in this process, others as programs (cni-plugins §1.6).

use cni::{
    Error,
    env::Verb,
    plugin::{Call, Plugin},
    result::CniResult,
};

use crate::{
    dhcp::Dhcp,
    host_local::HostLocal,
    names::{DHCP, HOST_LOCAL, STATIC},
    plugin_by_name,
    static_ipam::StaticIpam,
};

/// Our IPAM plugins. They run in this process regardless of files in `CNI_PATH`: their files and results are
/// compatible, and starting a process would be the most expensive part of an attachment.
fn own(plugin: &str) -> Option<&'static dyn Plugin> {
    match plugin {
        DHCP => Some(&Dhcp),
        HOST_LOCAL => Some(&HostLocal),
        STATIC => Some(&StaticIpam),
        _ => None,
    }
}

/// An error for our plugins that assign no addresses. A plugin configured as its own IPAM plugin would otherwise call
/// itself endlessly.
fn require_ipam(plugin: &str) -> Result<(), Error> {
    match plugin_by_name(plugin) {
        Some(ours) if own(ours.name()).is_none() => {
            Err(Error::internal(format!("\"{plugin}\" assigns no addresses")))
        }
        _ => Ok(()),
    }
}

/// The IPAM plugin of a call's config. `None` for a layer 2 attachment.
fn plugin(call: &Call) -> Option<&str> {
    Some(call.config.ipam_plugin()).filter(|name| !name.is_empty())
}

/// Whether the config requests addresses.
pub(crate) fn is_wanted(call: &Call) -> bool {
    plugin(call).is_some()
}

/// Whether the IPAM plugin needs the link to release addresses, as DHCP does. All others release them after the link
/// is deleted, so that the next owner cannot conflict with it.
pub(crate) fn needs_link(call: &Call) -> bool {
    plugin(call) == Some(DHCP)
}

/// Requests addresses. The result is empty without an IPAM plugin.
pub(crate) fn add(call: &Call) -> Result<CniResult, Error> {
    let Some(name) = plugin(call) else {
        return Ok(CniResult::default());
    };
    require_ipam(name)?;
    match own(name) {
        Some(plugin) => plugin.add(call),
        None => Ok(call.delegate(name, Verb::Add)?.unwrap_or_default()),
    }
}

/// Releases addresses. No-op without an IPAM plugin.
pub(crate) fn del(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Del, |plugin| plugin.del(call))
}

/// Checks that the addresses are still leased to this attachment.
pub(crate) fn check(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Check, |plugin| plugin.check(call))
}

/// Checks that the IPAM plugin can assign addresses.
pub(crate) fn status(call: &Call) -> Result<(), Error> {
    delegate(call, Verb::Status, |plugin| plugin.status(call))
}

/// Releases the addresses of attachments that are no longer valid.
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
        // A missing plugin cannot have assigned addresses.
        Err(_) if matches!(verb, Verb::Del | Verb::Gc) => return Ok(()),
        usable => usable?,
    }
    match own(name) {
        Some(plugin) => in_process(plugin),
        None => call.delegate(name, verb).map(drop),
    }
}
