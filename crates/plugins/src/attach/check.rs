//! CHECK and STATUS of the link plugins.

use cni::{Error, plugin::Call};
use linux::{link::Link, route::Socket};

use super::{Addressing, Inspection, LinkPlugin};
use crate::{
    check, ipam, masquerade, messages::NO_PLUGIN_NAME, pod::Pod, record::AttachmentId, ruleset::Ruleset,
};

/// Compares the attachment with its config. The error describes the first difference.
pub(super) fn check(plugin: &dyn LinkPlugin, call: &Call) -> Result<(), Error> {
    let mut link_request = plugin.read(call)?;
    let pod = Pod::open(call)?;
    plugin.addressing().ask(ipam::check, call)?;
    let mut here = Inspection {
        call,
        previous: check::previous(call)?,
        host: Socket::open().map_err(cni::error::internal)?,
        pod,
        rules: Ruleset::of(call),
    };
    link_request.check_host(&mut here)?;
    if !link_request.has_link() {
        return Ok(());
    }
    let interface = check::sandbox_interface(call, &here.previous, &here.pod.path)?;
    let link = check::sandbox_link(&mut here.pod.socket, interface)?;
    if let Some(kind) = link_request.kind() {
        require_kind(&link, kind)?;
    }
    link_request.check_link(&mut here, &link)?;
    let settings = link_request.settings();
    if !settings.leave_down && !link.is_up() {
        return Err(Error::internal(format!("Interface {} is down", link.name)));
    }
    if let Some(choice) = settings.masquerade {
        let key = AttachmentId::of(call);
        let addresses: Vec<_> = here.previous.ips.iter().map(|ip| ip.address).collect();
        let owner = key.to(call.config.name());
        masquerade::check(&mut here.rules, choice, owner, &addresses)?;
    }
    check::addresses(&mut here.pod.socket, &link, &here.previous.ips)?;
    check::routes(&mut here.pod.socket, &here.previous.routes)
}

/// An error if the node does not meet the requirements of ADD.
pub(super) fn status(plugin: &dyn LinkPlugin, call: &Call) -> Result<(), Error> {
    plugin.status(call)?;
    let addressing = plugin.addressing();
    if addressing == Addressing::Required && !ipam::is_wanted(call) {
        return Err(Error::internal(NO_PLUGIN_NAME));
    }
    addressing.ask(ipam::status, call)
}

fn require_kind(link: &Link, kind: &str) -> Result<(), Error> {
    if link.is_kind(kind) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "Error: Container interface {} not of type {kind}",
        link.name
    )))
}
