//! Removal of ports: recorded ones, those of the upstream plugin, and those whose pair is gone (cni-plugins §10.5).

use std::path::Path;

use cni::{Error, note::Level, plugin::Call};
use linux::route::Socket;

use super::{
    cache::CacheFile,
    check::Cached,
    config::{Config, Target, socket},
    database::Database,
    port::{self, Found},
};
use crate::{
    names::kind,
    pod::Pod,
    record::{Attachment, AttachmentId},
    veth,
};

/// Removes a recorded port. Keeps a port of this name with another owner or of another pod.
pub(crate) fn remove_recorded(
    owner: Attachment<'_>,
    name: &str,
    socket: &str,
    netns: &str,
) -> Result<(), Error> {
    let mut database = Database::connect(socket)?;
    for found in port::find(&mut database, netns, owner.ifname)? {
        if found.name == name {
            port::remove(&mut database, &found)?;
        }
    }
    CacheFile::new(owner.container_id, owner.ifname, "").remove()
}

/// Detaches a pod without a record: the upstream plugin attached it, or the node was rebooted.
///
/// An unavailable database does not fail the DEL: [`sweep`] later removes a port without a pair.
pub(super) fn unrecorded(call: &Call) -> Result<(), Error> {
    let file = CacheFile::of(&AttachmentId::of(call), "");
    let cached = file.read::<Cached>().map(|cached| cached.netconf);
    let configured = || {
        let target = Config::read(call).and_then(Config::complete);
        target.map(|target| target.socket).ok()
    };
    let socket = match &cached {
        Some(netconf) if netconf.is_complete() => Some(socket(netconf.socket_file.clone())),
        // An attachment of the upstream plugin exists even if ours refuses its configuration.
        _ => configured().or_else(|| cached.is_some().then(|| socket(String::new()))),
    };
    let removed = match (&socket, &call.request.netns) {
        (Some(socket), Some(netns)) => remove_all(socket, netns, &call.request.ifname),
        // Without a cache file, an invalid configuration made ADD fail, so there is no port. Without a namespace the port
        // is unknown.
        _ => Ok(Vec::new()),
    };
    let ports = removed.unwrap_or_else(|error| {
        call.note(Level::Error, error);
        Vec::new()
    });
    // The kernel returns a hardware device to the host when the namespace ends.
    if cached.is_none_or(|netconf| netconf.device_id.is_empty()) {
        delete_pair(call, &ports)?;
    }
    file.remove()
}

fn remove_all(socket: &str, netns: &Path, ifname: &str) -> Result<Vec<Found>, Error> {
    let mut database = Database::connect(socket)?;
    let ports = port::find(&mut database, &netns.to_string_lossy(), ifname)?;
    for port in &ports {
        port::remove(&mut database, port)?;
    }
    Ok(ports)
}

/// Deletes the pair by whichever end exists.
fn delete_pair(call: &Call, ports: &[Found]) -> Result<(), Error> {
    let ifname = &call.request.ifname;
    if let Some(mut pod) = Pod::find_remaining(call)? {
        return pod.inside(|socket| veth::delete(call, socket, ifname));
    }
    let mut host = Socket::open().map_err(cni::error::internal)?;
    for port in ports {
        if let Ok(Some(link)) = host.find_link(&port.name)
            && link.is_kind(kind::VETH)
        {
            veth::delete(call, &mut host, &port.name)?;
        }
    }
    Ok(())
}

/// Calls [`failed_ports`] if the database is available.
pub(super) fn sweep(call: &Call, target: &Target) {
    match Database::connect(&target.socket) {
        Ok(mut database) => failed_ports(call, &mut database, &target.bridge),
        Err(error) => call.note(Level::Warn, error),
    }
}

/// Removes ports of the bridge whose pair is gone, such as all ports from before a reboot. Keeps a port that the
/// switch cannot open for another reason. Errors do not fail the call.
pub(super) fn failed_ports(call: &Call, database: &mut Database, bridge: &str) {
    let removed = port::failed(database, bridge).and_then(|ports| {
        for port in ports.iter().filter(|port| is_dead(port)) {
            call.note(
                Level::Warn,
                format_args!("interface {} has error: removing corresponding port", port.name),
            );
            port::remove(database, port)?;
        }
        Ok(())
    });
    if let Err(error) = removed {
        call.note(Level::Warn, error);
    }
}

/// Whether the pair is gone.
fn is_dead(port: &Found) -> bool {
    if port.netns.is_empty() {
        return false;
    }
    match Pod::remaining_at(Path::new(&port.netns)) {
        Ok(None) => true,
        Ok(Some(mut pod)) => matches!(pod.socket.find_link(&port.ifname), Ok(None)),
        Err(_) => false,
    }
}
