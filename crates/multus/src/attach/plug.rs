//! Hot plug: attaches, detaches and checks one network of a running sandbox (multus.md §7.4).
//!
//! A plugged network is recorded in the sandbox's scratch file, as ADD records its networks, and before its plugin is
//! called. So the pod's DEL detaches it, even after a crash in between.

use super::add::{Refusal, check_free, refused};
use super::netns::PodNetns;
use super::recorded::{RecordError, ScratchRecord};
use super::routes::replaced_by;
use super::{Attached, Attacher};
use crate::names::MASTER_INTERFACE;
use crate::networks::default_route::{self, DefaultRoute, RouteActions};
use crate::networks::delegate::Delegate;
use crate::store::scratch::Elements;
use cni::Error;
use cni::chain::{self, Runner};
use cni::error::{code, internal};
use cni::result::CniResult;
use std::{fmt, io};

/// The list index that plugged networks are called with: any but the master's.
const SECONDARY: usize = 1;

fn unsaved(error: &RecordError) -> Error {
    internal(format!(
        "error saving the delegates: {}",
        kube_kit::client::chain(error)
    ))
}

fn unsynced(error: io::Error) -> Error {
    unsaved(&RecordError::File(error))
}

/// How a caller identifies a network. Both fields are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkId {
    /// `<namespace>/<name>` of the NAD.
    pub nad: Option<String>,
    /// Name of the CNI configuration.
    pub network: Option<String>,
}

impl NetworkId {
    /// Whether it identifies this network. NADs are compared by NAD name, because many NADs may share the name of a
    /// configuration. The configuration's name decides if only one side has a NAD.
    fn matches(&self, recorded: &Delegate) -> bool {
        match self {
            Self { nad: Some(nad), .. } if is_nad(recorded) => *nad == recorded.display_name,
            Self { network, .. } => network
                .as_ref()
                .is_none_or(|network| *network == recorded.config.name()),
        }
    }
}

impl fmt::Display for NetworkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.nad
                .as_ref()
                .or(self.network.as_ref())
                .map_or("", |name| name),
        )
    }
}

/// The outcome of plugging a network.
#[derive(Debug)]
pub(crate) enum Plugged {
    /// It was attached now.
    Now(Box<Attached>),
    /// It was attached before, with this result.
    Before(CniResult),
}

impl Plugged {
    /// The result of the plugins.
    pub(crate) fn result(&self) -> &CniResult {
        match self {
            Self::Now(attached) => &attached.result,
            Self::Before(result) => result,
        }
    }
}

/// The owner of a sandbox's interface, by the node's records.
enum Owner {
    /// No recorded network.
    Unknown,
    /// The pod's own network, the master.
    Pod,
    /// The network at this index.
    Network(usize, Box<Delegate>),
}

/// The recorded networks of a sandbox, to which one is added.
struct SandboxNetworks {
    elements: Elements,
    delegates: Vec<Delegate>,
    /// There is no scratch file yet.
    is_new: bool,
}

impl<R: Runner> Attacher<'_, R> {
    /// Whether the networks of the sandbox are recorded in its scratch file. An unreadable file counts as no record.
    pub(crate) fn has_record(&self) -> bool {
        matches!(self.record(), Ok(ScratchRecord::Whole(..)))
    }

    /// Attaches one network, which names its interface. `defaults` are the networks that every pod gets: they are
    /// recorded for a sandbox without records, because otherwise the pod's DEL would not detach them. They may be an
    /// error: it is returned only if they are needed, and never [with a record](Self::has_record).
    ///
    /// A network that is already attached is not attached again, so a caller that missed the answer may repeat the
    /// call.
    pub(crate) fn plug(
        &self,
        delegate: &Delegate,
        defaults: Result<Vec<Delegate>, Error>,
        netns: &mut impl PodNetns,
    ) -> Result<Plugged, Error> {
        let ifname = delegate.interface_name(SECONDARY, self.sandbox);
        self.validate(delegate)?;
        let exists = netns
            .has(&ifname)
            .map_err(|error| refused(delegate, &ifname, &error))?;
        match self.owner_of(&ifname)? {
            Owner::Unknown => {}
            Owner::Pod => return Err(of_the_pod(&ifname)),
            Owner::Network(index, old) => match self.cached_result(&old, &ifname, exists) {
                Some(result) if is_same(delegate, &old) => {
                    return Ok(Plugged::Before(result));
                }
                Some(_) => return Err(other_network(&ifname, &old, &delegate.display_name)),
                // Interrupted, or its interface is gone: detach the leftovers before the record goes.
                None => self.detach(index, &old, &ifname, netns)?,
            },
        }
        check_free(delegate, &ifname, netns)?;
        let recorded_networks = self.recorded_networks(defaults, netns)?;
        let attached = self.plug_beside(recorded_networks, delegate, &ifname, netns)?;
        Ok(Plugged::Now(Box::new(attached)))
    }

    /// Detaches a network whose plugin returned after its call was given up, unless it is still recorded: then the next
    /// call or the pod's DEL finds it, and a repeated call may own it by now. Errors are only logged.
    pub(crate) fn undo_late_plug(&self, delegate: &Delegate) {
        let ifname = delegate.interface_name(SECONDARY, self.sandbox);
        let undo = || {
            let is_recorded = match self.record().map_err(unsynced)? {
                ScratchRecord::Whole(_, recorded) => self.on_interface(recorded, &ifname).is_some(),
                ScratchRecord::Missing => false,
                // The pod's DEL detaches by the result cache.
                ScratchRecord::Corrupt => true,
            };
            if is_recorded {
                return Ok(());
            }
            self.del_one(SECONDARY, delegate)
        };
        if let Err(error) = undo() {
            tracing::error!(sandbox = %self.sandbox, ifname, %error, "cannot detach a network whose call was given up");
        }
    }

    /// Detaches the network of the sandbox's interface, as it was attached. `id` is the network that the caller
    /// expects there. An interface without a record is never touched: while it exists, it is an error.
    pub(crate) fn unplug(&self, id: &NetworkId, netns: &mut impl PodNetns) -> Result<(), Error> {
        let ifname = &self.sandbox.ifname;
        match self.owner_of(ifname)? {
            Owner::Network(index, delegate) if id.matches(&delegate) => {
                self.detach(index, &delegate, ifname, netns)
            }
            Owner::Network(_, delegate) => Err(other_network(ifname, &delegate, id)),
            Owner::Pod => Err(of_the_pod(ifname)),
            // A namespace that cannot be opened is gone with its interfaces.
            Owner::Unknown if netns.has(ifname).unwrap_or(false) => Err(Error::internal(format!(
                "interface {ifname} is there, and no network is known that it belongs to"
            ))),
            Owner::Unknown => {
                tracing::info!(sandbox = %self.sandbox, "no network is attached to this interface");
                Ok(())
            }
        }
    }

    /// Calls CHECK for the network of the sandbox's interface, which must be `id`. `sent` is the network as the
    /// caller sent it: it is used when no record exists.
    pub(crate) fn check_plugged(&self, id: &NetworkId, sent: Result<Delegate, Error>) -> Result<(), Error> {
        let ifname = &self.sandbox.ifname;
        match self.owner_of(ifname)? {
            Owner::Network(index, recorded) if id.matches(&recorded) => self.check_one(index, &recorded),
            Owner::Network(_, recorded) => Err(other_network(ifname, &recorded, id)),
            Owner::Pod => Err(of_the_pod(ifname)),
            Owner::Unknown => self.check_one(SECONDARY, &sent?),
        }
    }

    /// Detaches a recorded network, and removes its record on success.
    fn detach(
        &self,
        index: usize,
        delegate: &Delegate,
        ifname: &str,
        netns: &mut impl PodNetns,
    ) -> Result<(), Error> {
        self.del_one(index, delegate)?;
        if let ScratchRecord::Whole(elements, delegates) = self.record().map_err(unsynced)? {
            self.restore_routes(&elements.replaced(ifname), &delegates, netns);
        }
        self.forget(ifname);
        Ok(())
    }

    /// Validates the plugin call before anything is written.
    fn validate(&self, delegate: &Delegate) -> Result<(), Error> {
        let network = delegate.config.network().map_err(internal)?;
        let attachment = self.attachment(SECONDARY, delegate, true).map_err(internal)?;
        chain::validate(&network, &attachment)
    }

    /// The network of an interface other than the pod's own, and its index.
    fn on_interface(&self, recorded: Vec<Delegate>, ifname: &str) -> Option<(usize, Delegate)> {
        let mut networks = recorded.into_iter().enumerate().skip(1);
        networks.find(|(index, delegate)| delegate.interface_name(*index, self.sandbox) == ifname)
    }

    fn owner_of(&self, ifname: &str) -> Result<Owner, Error> {
        let recorded = match self.record().map_err(unsynced)? {
            ScratchRecord::Whole(_, delegates) => delegates,
            ScratchRecord::Missing | ScratchRecord::Corrupt => Vec::new(),
        };
        let master = recorded
            .first()
            .and_then(|master| master.requests.interface.as_deref());
        if ifname == master.unwrap_or(MASTER_INTERFACE) {
            return Ok(Owner::Pod);
        }
        if let Some((index, found)) = self.on_interface(recorded, ifname) {
            return Ok(Owner::Network(index, Box::new(found)));
        }
        if ifname == MASTER_INTERFACE {
            return Ok(Owner::Unknown);
        }
        // The upstream daemon does not record plugged networks in the scratch file.
        let cached = self.cached_delegates().into_iter();
        let mut cached = cached.filter(|delegate| delegate.requests.interface.as_deref() == Some(ifname));
        Ok(cached.next().map_or(Owner::Unknown, |delegate| {
            Owner::Network(SECONDARY, Box::new(delegate))
        }))
    }

    /// The cached result of a network; `None` without one, or if its interface is gone. A network without an
    /// interface in the namespace, such as one of a user-space switch, counts as attached.
    fn cached_result(&self, recorded: &Delegate, ifname: &str, exists: bool) -> Option<CniResult> {
        let network = recorded.config.network().ok()?;
        let entry = self.cache().load(self.key(&network.name, ifname)).ok()??;
        let result = entry.cni_result(network.version()?).ok()??;
        let has_interface = result.interfaces.iter().any(|interface| interface.name == ifname);
        (exists || !has_interface).then_some(result)
    }

    /// The recorded networks of the sandbox. `defaults` come first when the pod's own network is not recorded.
    fn recorded_networks(
        &self,
        defaults: Result<Vec<Delegate>, Error>,
        netns: &mut impl PodNetns,
    ) -> Result<SandboxNetworks, Error> {
        let is_new = match self.record().map_err(unsynced)? {
            ScratchRecord::Whole(elements, delegates) => {
                return Ok(SandboxNetworks {
                    elements,
                    delegates,
                    is_new: false,
                });
            }
            ScratchRecord::Missing => true,
            ScratchRecord::Corrupt => false,
        };
        let is_master = |found: &Delegate| found.requests.interface.as_deref() == Some(MASTER_INTERFACE);
        let mut recorded_networks = self.cached_delegates();
        recorded_networks.sort_by_key(|found| !is_master(found));
        match recorded_networks.first_mut() {
            // As ADD records it: the runtime names the master's interface.
            Some(master) if is_master(master) => master.requests.interface = None,
            _ => {
                let is_attached = netns.has(MASTER_INTERFACE).map_err(internal)?;
                if !is_attached {
                    let text = format!(
                        "the sandbox has no records and no {MASTER_INTERFACE}: it was detached, or never attached"
                    );
                    return Err(Error::new(code::UNKNOWN_CONTAINER, text));
                }
                recorded_networks.splice(..0, defaults?);
            }
        }
        let elements = Elements::of(&recorded_networks).map_err(|error| unsaved(&error.into()))?;
        if !is_new && let Some(scratch) = self.scratch() {
            scratch.set_aside().map_err(unsynced)?;
        }
        Ok(SandboxNetworks {
            elements,
            delegates: recorded_networks,
            is_new,
        })
    }

    fn plug_beside(
        &self,
        recorded_networks: SandboxNetworks,
        delegate: &Delegate,
        ifname: &str,
        netns: &mut impl PodNetns,
    ) -> Result<Attached, Error> {
        let SandboxNetworks {
            mut elements,
            delegates,
            is_new,
        } = recorded_networks;
        let mut all = delegates.clone();
        all.push(delegate.clone());
        let actions = default_route::plan(&all).map_err(internal)?;
        let actions = actions.last().copied().filter(|actions| !actions.keeps_all());
        let replaced = replaced_by(delegate, netns).map_err(internal)?;
        elements
            .put(delegate, &replaced)
            .map_err(|error| unsaved(&error.into()))?;
        self.keep(&elements).map_err(unsynced)?;
        let forget = || match self.scratch() {
            Some(scratch) if is_new => {
                if let Err(error) = scratch.remove() {
                    tracing::warn!(sandbox = %self.sandbox, %error, "cannot remove the record of a network that is not attached");
                }
            }
            _ => self.forget(ifname),
        };
        let error = match self.begin(delegate, &replaced, &delegates, actions, netns) {
            Ok(attached) => return Ok(attached),
            Err(Refusal::Before(error)) => {
                self.restore_routes(&replaced, &delegates, netns);
                forget();
                return Err(error);
            }
            Err(Refusal::ByPlugin(error)) => error,
        };
        let undone = self.del_one(SECONDARY, delegate);
        self.restore_routes(&replaced, &delegates, netns);
        match undone {
            Ok(()) => forget(),
            // The record is kept: the next attempt or the pod's DEL detaches it.
            Err(left) => {
                tracing::warn!(sandbox = %self.sandbox, error = %left, "rollback: cannot detach the network");
            }
        }
        Err(error)
    }

    /// Attaches a recorded network. An error after the plugin was called is [`Refusal::ByPlugin`], because it needs a
    /// rollback.
    fn begin(
        &self,
        delegate: &Delegate,
        replaced: &[DefaultRoute],
        others: &[Delegate],
        actions: Option<RouteActions>,
        netns: &mut impl PodNetns,
    ) -> Result<Attached, Refusal> {
        let ifname = delegate.interface_name(SECONDARY, self.sandbox);
        self.remove_replaced(replaced, others, netns)
            .map_err(|error| Refusal::Before(internal(error)))?;
        let (mut result, device_info) = self.invoke_add(SECONDARY, delegate)?;
        if let Some(actions) = actions.filter(|_| !result.interfaces.is_empty() || !result.ips.is_empty()) {
            result = self
                .reroute(delegate, &ifname, actions, netns)
                .map_err(|error| Refusal::ByPlugin(Error::internal(error)))?;
        }
        Ok(Attached {
            display_name: delegate.display_name.clone(),
            network: delegate.config.name(),
            ifname,
            result,
            device_info,
        })
    }

    /// Replaces the scratch file and waits for the disk.
    pub(super) fn keep(&self, elements: &Elements) -> io::Result<()> {
        let Some(scratch) = self.scratch() else {
            return Ok(());
        };
        scratch.write(&elements.to_text())?;
        scratch.sync()
    }

    /// Removes the record of an interface's network. Errors are only logged: DEL of a detached network succeeds.
    fn forget(&self, ifname: &str) {
        let forget = || -> Result<(), RecordError> {
            if let ScratchRecord::Whole(mut elements, _) = self.record()? {
                elements.remove(ifname)?;
                self.keep(&elements)?;
            }
            Ok(())
        };
        if let Err(error) = forget() {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, ifname, error, "cannot remove the record of a detached network");
        }
    }
}

fn other_network(ifname: &str, recorded: &Delegate, id: impl fmt::Display) -> Error {
    Error::internal(format!(
        "interface {ifname} is attached to network {}, not to {id}",
        recorded.display_name
    ))
}

fn of_the_pod(ifname: &str) -> Error {
    Error::internal(format!("interface {ifname} is the pod's own"))
}

fn is_nad(delegate: &Delegate) -> bool {
    delegate.display_name.contains('/')
}

/// Whether both are the same network. Two NADs are compared by name, even if the definition changed since; otherwise
/// the configurations are compared.
fn is_same(requested: &Delegate, recorded: &Delegate) -> bool {
    if is_nad(requested) && is_nad(recorded) {
        return requested.display_name == recorded.display_name;
    }
    requested.config.is_like(&recorded.config)
}
