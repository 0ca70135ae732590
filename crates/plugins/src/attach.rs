//! The driver of all plugins that give the container a link, from an ADD to its DEL or GC.
//!
//! ```text
//!                 LinkPlugin::read ──> Wish: the link that the config asks for, and what is special about it
//!                                        │
//! ADD     record ──> Wish::make ──> IPAM ──> addresses, routes ──> Wish::route ──> masquerading ──> Wish::finish
//!            │  each step is recorded before it is taken, and taken back when a later one fails
//! DEL, GC    └──> Step::undo, the last one first, whatever has become of the namespace ──> IPAM
//! CHECK   Wish::check_host, Wish::check_link, then addresses, routes, masquerading
//! ```
//!
//! A plugin on it states its keys, the link it wants and where it differs. The driver reads `prevResult`, keeps the
//! records, asks IPAM, and answers CHECK, STATUS and GC.

mod add;
mod check;
mod child;
mod parent;
mod remove;
mod steps;
mod wire;

use cni::{
    Error,
    plugin::{Call, Plugin},
    result::{CniResult, Dns, Interface},
    version::Version,
};
use linux::{link::Link, route::Socket};

pub(crate) use add::{NewLink, Stage};
pub(crate) use child::{Child, mode};
pub(crate) use parent::{Parent, status as parent_status};
pub(crate) use remove::Rules;
pub(crate) use steps::{Sandbox, Step};
pub(crate) use wire::{WireDns, WireMac, mac};

use crate::{ipam, masquerade::Choice, pod::Pod, veth};

/// A plugin that gives the container a link.
pub(crate) trait LinkPlugin: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Its name in the line that people see who call it by hand.
    fn title(&self) -> &'static str {
        self.name()
    }

    /// The config versions that it supports.
    fn versions(&self) -> &'static [Version] {
        &Version::ALL
    }

    /// The keys of a config.
    fn keys(&self) -> &'static [&'static str];

    /// Reads and validates the config of an ADD or CHECK. It looks at nothing but the config and the node's defaults.
    fn read(&self, call: &Call) -> Result<Box<dyn Wish>, Error>;

    /// What the config's IPAM plugin is to it.
    fn addressing(&self) -> Addressing {
        Addressing::Optional
    }

    /// The kinds of host rules that attachments by this config have. It must not fail: a config that made ADD fail must not
    /// keep a pod from going.
    fn rules(&self, call: &Call) -> Rules {
        let _ = call;
        Rules::default()
    }

    /// Takes back an attachment that has no record: the established plugin's, or one that lost its record.
    fn remove_unrecorded(&self, call: &Call) -> Result<(), Error> {
        let ifname = &call.request.ifname;
        let Some(mut pod) = Pod::find_remaining(call)? else {
            return Ok(());
        };
        pod.inside(|socket| veth::delete(call, socket, ifname))
    }

    /// Removes attachments that ended without a DEL and have no record, as far as the node shows them. It runs at the end of
    /// DEL and GC, and an error is none of theirs.
    fn sweep(&self, call: &Call) {
        let _ = call;
    }

    /// An error if ADD could do nothing with the node as it is.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// GC of links on the host that belong to no attachment of any network.
    fn collect(&self, call: &Call, host: &mut Socket) -> Result<(), Error> {
        let _ = (call, host);
        Ok(())
    }
}

/// Whether attachments have addresses of an IPAM plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// Never: an IPAM plugin in the config is not called.
    None,
    /// Where the config names one.
    Optional,
    /// Always: a config without one is refused.
    Required,
}

impl Addressing {
    /// Calls the IPAM plugin for an attachment that can have addresses of it.
    fn ask(self, ask: fn(&Call) -> Result<(), Error>, call: &Call) -> Result<(), Error> {
        match self {
            Addressing::None => Ok(()),
            Addressing::Optional | Addressing::Required => ask(call),
        }
    }
}

/// A link that was made.
pub(crate) struct Made {
    /// The container's; `None` for a device that is none to the kernel.
    pub(crate) link: Option<Link>,
    /// The interfaces of the attachment on the host, for the result.
    pub(crate) outside: Vec<Interface>,
}

impl Made {
    /// A link of which nothing is on the host.
    pub(crate) fn inside(link: Link) -> Self {
        Made {
            link: Some(link),
            outside: Vec::new(),
        }
    }
}

/// Choices of a config about the work that the driver does for all plugins alike.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Resolver settings that replace IPAM's.
    pub(crate) dns: Option<Dns>,
    /// Packets that leave the container's subnet take on an address of the host.
    pub(crate) masquerade: Option<Choice>,
    /// The container's link stays down; there are no addresses.
    pub(crate) leave_down: bool,
}

impl Settings {
    /// Those of a plugin that takes the config's resolver settings, and no others.
    pub(crate) fn with_dns(dns: &Dns) -> Self {
        Settings {
            dns: Some(dns.clone()),
            ..Settings::default()
        }
    }
}

/// The attachment that a config asks for.
pub(crate) trait Wish {
    /// Choices about the driver's work for it.
    fn settings(&self) -> Settings;

    /// Kind of the container's link, as the kernel names it; `None` where it may be any.
    fn kind(&self) -> Option<&'static str>;

    /// Makes the container's link, still down, and what it stands on. Steps that have an undo are
    /// [begun](Stage::begin) first.
    fn make(&mut self, stage: &mut Stage<'_>) -> Result<Made, Error>;

    /// The container has a link of the name already.
    fn occupied(&self, ifname: &str, left: &[Step]) -> Error {
        let _ = left;
        let kind = self.kind().unwrap_or("link");
        Error::internal(format!("failed to rename {kind} to \"{ifname}\": file exists"))
    }

    /// Addresses, routes and resolver settings; `None` for a link without.
    fn lease(&self, call: &Call) -> Result<Option<CniResult>, Error> {
        if ipam::is_wanted(call) {
            ipam::add(call).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Completes what was assigned to the interface of the container.
    fn complete(&self, leased: &mut CniResult) -> Result<(), Error> {
        let _ = leased;
        Ok(())
    }

    /// Makes the link ready for the addresses of `leased`, from outside of the container.
    fn prepare(&mut self, stage: &mut Stage<'_>, link: &Link, leased: &CniResult) -> Result<(), Error> {
        let _ = (stage, link, leased);
        Ok(())
    }

    /// Settings of the link that have to be made before it gets addresses; called in its namespace. Kernels may lack any of
    /// them.
    fn tune(&self, ifname: &str) {
        let _ = ifname;
    }

    /// Leads packets to and from the addresses that the link has got.
    fn route(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let _ = (stage, link, result);
        Ok(())
    }

    /// Gives back what taking back the steps does not.
    fn restore(&mut self, stage: &mut Stage<'_>) {
        let _ = stage;
    }

    /// Whether the kernel has a link for the attachment.
    fn has_link(&self) -> bool {
        true
    }

    /// Waits for what is still on its way, and completes the result.
    fn finish(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let _ = (stage, link, result);
        Ok(())
    }

    /// CHECK of what the link stands on.
    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        let _ = here;
        Ok(())
    }

    /// CHECK of the container's link, of which the MAC was compared.
    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        let _ = (here, link);
        Ok(())
    }
}

/// Everything that CHECK looks at.
pub(crate) struct Inspection<'a> {
    /// The call.
    pub(crate) call: &'a Call,
    /// The host.
    pub(crate) host: Socket,
    /// The container.
    pub(crate) pod: Pod,
    /// The result of ADD.
    pub(crate) previous: CniResult,
    /// Rules of the host.
    pub(crate) rules: crate::ruleset::Ruleset,
}

/// A plugin on the driver.
pub(crate) struct Driven(pub(crate) &'static dyn LinkPlugin);

impl Plugin for Driven {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn about(&self) -> String {
        format!("CNI {} plugin {}", self.0.title(), env!("CARGO_PKG_VERSION"))
    }

    fn versions(&self) -> &'static [Version] {
        self.0.versions()
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        add::add(self.0, call)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::del(self.0, call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check::check(self.0, call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        check::status(self.0, call)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        remove::gc(self.0, call)
    }
}
