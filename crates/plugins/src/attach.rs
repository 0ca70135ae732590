//! The shared driver of the link plugins: implements all verbs for plugins that create an interface in the pod.
//!
//! ```text
//!               LinkPlugin::read ──> LinkRequest: the requested link and its plugin-specific steps
//!                                         │
//! ADD     record ──> make ──> IPAM ──> addresses, routes ──> route ──> masquerading ──> finish
//!            │  each step is recorded before it runs, and undone when a later step fails
//! DEL, GC    └──> Step::undo in reverse order, with or without the namespace ──> IPAM
//! CHECK   check_host, check_link, then addresses, routes, masquerading
//! ```
//!
//! A plugin provides its config keys, the requested link and its deviations. The driver reads `prevResult`, keeps the
//! records, calls IPAM, and implements CHECK, STATUS and GC.

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
pub(crate) use steps::{Sandbox, Step, occupied_pair};
pub(crate) use wire::{WireDns, WireMac, mac};

use crate::{ipam, masquerade::Choice, pod::Pod, veth};

/// A plugin that creates an interface in the pod.
pub(crate) trait LinkPlugin: Sync {
    /// The plugin's name, the `type` in configs.
    fn name(&self) -> &'static str;

    /// The name in the plugin's `about` line.
    fn title(&self) -> &'static str {
        self.name()
    }

    /// The supported config versions.
    fn versions(&self) -> &'static [Version] {
        &Version::ALL
    }

    /// The config keys that the plugin reads.
    fn keys(&self) -> &'static [&'static str];

    /// Parses and validates the config of an ADD or CHECK. Reads only the config and the node's defaults.
    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error>;

    /// Whether the plugin calls IPAM.
    fn addressing(&self) -> Addressing {
        Addressing::Optional
    }

    /// The kinds of host rules that this config creates. Infallible, because a DEL must succeed also with a
    /// config that made ADD fail.
    fn rules(&self, call: &Call) -> Rules {
        let _ = call;
        Rules::default()
    }

    /// Removes an attachment without a record: one of the upstream plugin, or one whose record is lost.
    fn remove_unrecorded(&self, call: &Call) -> Result<(), Error> {
        let ifname = &call.request.ifname;
        let Some(mut pod) = Pod::find_remaining(call)? else {
            return Ok(());
        };
        pod.inside(|socket| veth::delete(call, socket, ifname))
    }

    /// Removes traces of attachments without a DEL and without a record. Runs at the end of DEL and GC, and does
    /// not fail them.
    fn sweep(&self, call: &Call) {
        let _ = call;
    }

    /// STATUS: an error if the node does not meet the requirements of ADD.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// GC of host links that belong to no attachment of any network.
    fn collect(&self, call: &Call, host: &mut Socket) -> Result<(), Error> {
        let _ = (call, host);
        Ok(())
    }
}

/// Whether attachments get addresses from an IPAM plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// Never, even if the config has an IPAM plugin.
    None,
    /// If the config has an IPAM plugin.
    Optional,
    /// Always: a config without an IPAM plugin is an error.
    Required,
}

impl Addressing {
    /// Calls the IPAM plugin unless the attachment cannot have addresses.
    fn ask(self, ask: fn(&Call) -> Result<(), Error>, call: &Call) -> Result<(), Error> {
        match self {
            Addressing::None => Ok(()),
            Addressing::Optional | Addressing::Required => ask(call),
        }
    }
}

/// A created link.
pub(crate) struct CreatedLink {
    /// The pod's link. `None` for a device without a kernel link.
    pub(crate) link: Option<Link>,
    /// The attachment's host interfaces, for the result.
    pub(crate) outside: Vec<Interface>,
}

/// The interface of a link on the host, for the result.
pub(crate) fn interface_of(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()),
        mtu: Some(link.mtu),
        ..Interface::default()
    }
}

impl CreatedLink {
    /// A link without host interfaces.
    pub(crate) fn inside(link: Link) -> Self {
        CreatedLink {
            link: Some(link),
            outside: Vec::new(),
        }
    }
}

/// Config values for the common steps of the driver.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// DNS settings that replace those of IPAM.
    pub(crate) dns: Option<Dns>,
    /// Masquerades packets that leave the pod's subnet.
    pub(crate) masquerade: Option<Choice>,
    /// Leaves the pod's link down and without addresses.
    pub(crate) leave_down: bool,
}

impl Settings {
    /// Only the config's DNS settings.
    pub(crate) fn with_dns(dns: &Dns) -> Self {
        Settings {
            dns: Some(dns.clone()),
            ..Settings::default()
        }
    }
}

/// The attachment that a config requests.
pub(crate) trait LinkRequest {
    /// Values for the common steps of the driver.
    fn settings(&self) -> Settings;

    /// The kernel's kind of the pod's link. `None` permits any kind.
    fn kind(&self) -> Option<&'static str>;

    /// Creates the pod's link, down, and its prerequisites. Records steps that need an undo with [`Stage::begin`]
    /// first.
    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error>;

    /// The error for a pod that already has a link with this name.
    fn occupied(&self, ifname: &str, left: &[Step]) -> Error {
        let _ = left;
        let kind = self.kind().unwrap_or("link");
        Error::internal(format!("failed to rename {kind} to \"{ifname}\": file exists"))
    }

    /// Addresses, routes and DNS settings. `None` for a link without addresses.
    fn lease(&self, call: &Call) -> Result<Option<CniResult>, Error> {
        if ipam::is_wanted(call) {
            ipam::add(call).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Completes the IPAM result.
    fn complete(&self, leased: &mut CniResult) -> Result<(), Error> {
        let _ = leased;
        Ok(())
    }

    /// Prepares the link for the addresses of `leased`. Runs in the host namespace.
    fn prepare(&mut self, stage: &mut Stage<'_>, link: &Link, leased: &CniResult) -> Result<(), Error> {
        let _ = (stage, link, leased);
        Ok(())
    }

    /// Applies settings of the link that must precede its addresses. Runs in the pod's namespace. Best effort:
    /// kernels may lack any of them.
    fn tune(&self, ifname: &str) {
        let _ = ifname;
    }

    /// Sets up routing for the link's addresses.
    fn route(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let _ = (stage, link, result);
        Ok(())
    }

    /// Rolls back changes that have no recorded step.
    fn restore(&mut self, stage: &mut Stage<'_>) {
        let _ = stage;
    }

    /// Whether the attachment has a kernel link.
    fn has_link(&self) -> bool {
        true
    }

    /// Waits for pending changes and completes the result.
    fn finish(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let _ = (stage, link, result);
        Ok(())
    }

    /// CHECK of the link's prerequisites on the host.
    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        let _ = here;
        Ok(())
    }

    /// CHECK of the pod's link, after the driver's check of its MAC.
    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        let _ = (here, link);
        Ok(())
    }
}

/// The input of CHECK.
pub(crate) struct Inspection<'a> {
    pub(crate) call: &'a Call,
    /// Socket in the host namespace.
    pub(crate) host: Socket,

    pub(crate) pod: Pod,
    /// The result of ADD.
    pub(crate) previous: CniResult,

    pub(crate) rules: crate::ruleset::Ruleset,
}

/// Implements [`Plugin`] for a link plugin.
pub(crate) struct LinkDriver(pub(crate) &'static dyn LinkPlugin);

impl Plugin for LinkDriver {
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
