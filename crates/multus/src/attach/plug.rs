//! One network more or less in a sandbox that runs (multus.md §7.4).
//!
//! What is plugged in stands in the sandbox's scratch file like what ADD attached, and that before its plugin is called:
//! so the pod's DEL detaches it, whatever happens in between.

use super::plug_routes::replaced_by;
use super::{Attached, Attacher, PodNetns, Refusal, check_free, refused};
use crate::default_route::{self, DefaultRoute, Fates};
use crate::delegate::Delegate;
use crate::names::MASTER_INTERFACE;
use crate::scratch::{self, Elements};
use cni::Error;
use cni::chain::{self, Runner};
use cni::error::{code, internal};
use cni::result::CniResult;
use std::{fmt, io};

/// The place that counts as that of a plugged network: any but the master's.
const PLACE: usize = 1;

/// Why the record of a sandbox can't be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Content(#[from] scratch::Error),
    #[error(transparent)]
    File(#[from] io::Error),
}

fn unsaved(error: &RecordError) -> Error {
    internal(format!(
        "error saving the delegates: {}",
        kube_kit::client::chain(error)
    ))
}

fn unsynced(error: io::Error) -> Error {
    unsaved(&RecordError::File(error))
}

/// What a caller says of the network that it means, as far as it says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// `<namespace>/<name>` of its NAD.
    pub nad: Option<String>,
    /// Name of its configuration.
    pub network: Option<String>,
}

impl Asked {
    /// Whether this network is meant. NADs are told apart by their names: many share the name of a configuration. That
    /// one decides where only one side knows a NAD.
    fn means(&self, recorded: &Delegate) -> bool {
        match self {
            Self { nad: Some(nad), .. } if is_nad(recorded) => *nad == recorded.display_name,
            Self { network, .. } => network
                .as_ref()
                .is_none_or(|network| *network == recorded.config.name()),
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.nad
                .as_ref()
                .or(self.network.as_ref())
                .map_or("", |name| name),
        )
    }
}

/// What became of a network that is to be attached.
#[derive(Debug)]
pub enum Plugged {
    /// It is attached.
    Now(Box<Attached>),
    /// It was attached before; what was said then.
    Before(CniResult),
}

impl Plugged {
    /// What the plugins said.
    pub fn result(&self) -> &CniResult {
        match self {
            Self::Now(attached) => &attached.result,
            Self::Before(result) => result,
        }
    }
}

/// Whose an interface of a sandbox is, as far as the node knows.
enum Owner {
    /// No network's.
    Nobody,
    /// The pod's own.
    Pod,
    /// That of the network in this place.
    Network(usize, Box<Delegate>),
}

/// What the scratch file says. Looking changes nothing: a file that is of no use is the pod's DEL's to set aside.
pub(super) enum Record {
    Missing,
    Corrupt,
    Whole(Elements, Vec<Delegate>),
}

/// A sandbox's networks, to which one is to be added.
struct Known {
    elements: Elements,
    delegates: Vec<Delegate>,
    /// Whether there is no scratch file yet.
    is_new: bool,
}

impl<R: Runner> Attacher<'_, R> {
    /// Attaches one network, which names its interface. `defaults` are the networks that every pod gets: they go into the
    /// record of a sandbox whose own network nobody knows, or the pod's DEL would forget it. `None` when that is so and
    /// they were not given.
    ///
    /// What is attached already is not attached again, so that a caller who missed the answer may ask once more.
    pub fn plug(
        &self,
        delegate: &Delegate,
        defaults: Option<&[Delegate]>,
        netns: &mut impl PodNetns,
    ) -> Result<Option<Plugged>, Error> {
        let ifname = delegate.interface_name(PLACE, self.sandbox);
        self.validate(delegate)?;
        let is_there = netns
            .has(&ifname)
            .map_err(|error| refused(delegate, &ifname, &error))?;
        match self.owner_of(&ifname)? {
            Owner::Nobody => {}
            Owner::Pod => return Err(of_the_pod(&ifname)),
            Owner::Network(place, old) => match self.answer_of(&old, &ifname, is_there) {
                Some(result) if is_same(delegate, &old) => {
                    return Ok(Some(Plugged::Before(result)));
                }
                Some(_) => return Err(other_network(&ifname, &old, &delegate.display_name)),
                // Cut off half-way, or its interface is gone: what is left of it goes before it is forgotten.
                None => self.detach(place, &old, &ifname, netns)?,
            },
        }
        check_free(delegate, &ifname, netns)?;
        match self.known(defaults, netns)? {
            Some(known) => {
                let attached = self.plug_beside(known, delegate, &ifname, netns)?;
                Ok(Some(Plugged::Now(Box::new(attached))))
            }
            None => Ok(None),
        }
    }

    /// Detaches the network of the sandbox's interface, as it was attached. `asked` is what the caller takes it for. An
    /// interface that nobody attached here is not touched: it is somebody else's, and an error while it is there.
    pub fn unplug(&self, asked: &Asked, netns: &mut impl PodNetns) -> Result<(), Error> {
        let ifname = &self.sandbox.ifname;
        match self.owner_of(ifname)? {
            Owner::Network(place, delegate) if asked.means(&delegate) => {
                self.detach(place, &delegate, ifname, netns)
            }
            Owner::Network(_, delegate) => Err(other_network(ifname, &delegate, asked)),
            Owner::Pod => Err(of_the_pod(ifname)),
            // A namespace that can't be looked at is gone with all that was in it.
            Owner::Nobody if netns.has(ifname).unwrap_or(false) => Err(Error::internal(format!(
                "interface {ifname} is there, and no network is known that it belongs to"
            ))),
            Owner::Nobody => {
                tracing::info!(sandbox = %self.sandbox, "no network is attached to this interface");
                Ok(())
            }
        }
    }

    /// Whether the network of the sandbox's interface, which is `asked`, is as ADD left it. `told` is what the caller says
    /// of it: that counts where nobody knows better.
    pub fn check_plugged(&self, asked: &Asked, told: Result<Delegate, Error>) -> Result<(), Error> {
        let ifname = &self.sandbox.ifname;
        match self.owner_of(ifname)? {
            Owner::Network(place, recorded) if asked.means(&recorded) => self.check_one(place, &recorded),
            Owner::Network(_, recorded) => Err(other_network(ifname, &recorded, asked)),
            Owner::Pod => Err(of_the_pod(ifname)),
            Owner::Nobody => self.check_one(PLACE, &told?),
        }
    }

    /// Detaches what is recorded, and forgets it when that succeeded.
    fn detach(
        &self,
        place: usize,
        delegate: &Delegate,
        ifname: &str,
        netns: &mut impl PodNetns,
    ) -> Result<(), Error> {
        self.del_one(place, delegate)?;
        if let Record::Whole(elements, delegates) = self.record().map_err(unsynced)? {
            self.give_back(&elements.replaced(ifname), &delegates, netns);
        }
        self.forget(ifname);
        Ok(())
    }

    /// Refuses what no plugin can be called with, before anything is written.
    fn validate(&self, delegate: &Delegate) -> Result<(), Error> {
        let network = delegate.config.network().map_err(internal)?;
        let attachment = self.attachment(PLACE, delegate, true).map_err(internal)?;
        chain::validate(&network, &attachment)
    }

    fn owner_of(&self, ifname: &str) -> Result<Owner, Error> {
        let recorded = match self.record().map_err(unsynced)? {
            Record::Whole(_, delegates) => delegates,
            Record::Missing | Record::Corrupt => Vec::new(),
        };
        let master = recorded
            .first()
            .and_then(|master| master.requests.interface.as_deref());
        if ifname == master.unwrap_or(MASTER_INTERFACE) {
            return Ok(Owner::Pod);
        }
        let mut places = recorded.into_iter().enumerate().skip(1);
        if let Some((place, found)) =
            places.find(|(place, delegate)| delegate.interface_name(*place, self.sandbox) == ifname)
        {
            return Ok(Owner::Network(place, Box::new(found)));
        }
        if ifname == MASTER_INTERFACE {
            return Ok(Owner::Nobody);
        }
        // What the established daemon plugged in is in no scratch file.
        let cached = self.cached_delegates().into_iter();
        let mut cached = cached.filter(|delegate| delegate.requests.interface.as_deref() == Some(ifname));
        Ok(cached.next().map_or(Owner::Nobody, |delegate| {
            Owner::Network(PLACE, Box::new(delegate))
        }))
    }

    /// What was said when a network was attached; `None` when nothing was, or when its interface is gone since. Networks
    /// without one in the namespace, such as those of user-space switches, are taken for attached.
    fn answer_of(&self, recorded: &Delegate, ifname: &str, is_there: bool) -> Option<CniResult> {
        let network = recorded.config.network().ok()?;
        let entry = self.cache().load(self.key(&network.name, ifname)).ok()??;
        let result = entry.cni_result(network.version()?).ok()??;
        let is_seen = result.interfaces.iter().any(|interface| interface.name == ifname);
        (is_there || !is_seen).then_some(result)
    }

    pub(super) fn record(&self) -> io::Result<Record> {
        let Some(text) = self.scratch().map_or(Ok(None), |scratch| scratch.read())? else {
            return Ok(Record::Missing);
        };
        let decoded = Elements::parse(&text).and_then(|elements| Ok((elements, scratch::decode(&text)?)));
        Ok(match decoded {
            Ok((_, delegates)) if delegates.is_empty() => Record::Missing,
            Ok((elements, delegates)) => Record::Whole(elements, delegates),
            Err(error) => {
                let error = kube_kit::client::chain(&error);
                tracing::error!(sandbox = %self.sandbox, error, "unusable scratch file");
                Record::Corrupt
            }
        })
    }

    /// What a network is to be added to. `None` when the pod's own network is known to nobody, and the defaults were not
    /// given either.
    fn known(
        &self,
        defaults: Option<&[Delegate]>,
        netns: &mut impl PodNetns,
    ) -> Result<Option<Known>, Error> {
        let is_new = match self.record().map_err(unsynced)? {
            Record::Whole(elements, delegates) => {
                return Ok(Some(Known {
                    elements,
                    delegates,
                    is_new: false,
                }));
            }
            Record::Missing => true,
            Record::Corrupt => false,
        };
        let is_master = |found: &Delegate| found.requests.interface.as_deref() == Some(MASTER_INTERFACE);
        let mut known = self.cached_delegates();
        known.sort_by_key(|found| !is_master(found));
        match known.first_mut() {
            // As in a file of ADD: the runtime says what its interface is called.
            Some(master) if is_master(master) => master.requests.interface = None,
            _ => {
                let is_attached = netns.has(MASTER_INTERFACE).map_err(internal)?;
                if !is_attached {
                    let text = format!(
                        "nothing is known of this sandbox, and it has no {MASTER_INTERFACE}: it was detached, or never attached"
                    );
                    return Err(Error::new(code::UNKNOWN_CONTAINER, text));
                }
                let Some(defaults) = defaults else {
                    return Ok(None);
                };
                known.splice(..0, defaults.iter().cloned());
            }
        }
        let elements = Elements::of(&known).map_err(|error| unsaved(&error.into()))?;
        if !is_new && let Some(scratch) = self.scratch() {
            scratch.set_aside().map_err(unsynced)?;
        }
        Ok(Some(Known {
            elements,
            delegates: known,
            is_new,
        }))
    }

    fn plug_beside(
        &self,
        known: Known,
        delegate: &Delegate,
        ifname: &str,
        netns: &mut impl PodNetns,
    ) -> Result<Attached, Error> {
        let Known {
            mut elements,
            delegates,
            is_new,
        } = known;
        let mut all = delegates.clone();
        all.push(delegate.clone());
        let fates = default_route::plan(&all).map_err(internal)?;
        let fates = fates.last().copied().filter(|fates| !fates.keeps_all());
        let replaced = replaced_by(delegate, netns).map_err(internal)?;
        elements
            .put(delegate, &replaced)
            .map_err(|error| unsaved(&error.into()))?;
        self.keep(&elements).map_err(unsynced)?;
        let forget = || match self.scratch() {
            Some(scratch) if is_new => {
                if let Err(error) = scratch.remove() {
                    tracing::warn!(sandbox = %self.sandbox, %error, "a record stays of what is detached");
                }
            }
            _ => self.forget(ifname),
        };
        let error = match self.begin(delegate, &replaced, &delegates, fates, netns) {
            Ok(attached) => return Ok(attached),
            Err(Refusal::Before(error)) => {
                self.give_back(&replaced, &delegates, netns);
                forget();
                return Err(error);
            }
            Err(Refusal::ByPlugin(error)) => error,
        };
        let undone = self.del_one(PLACE, delegate);
        self.give_back(&replaced, &delegates, netns);
        match undone {
            Ok(()) => forget(),
            // The record stays: the pod's DEL tries again, and the next attempt before that.
            Err(left) => tracing::warn!(sandbox = %self.sandbox, error = %left, "cannot undo the attachment"),
        }
        Err(error)
    }

    /// Attaches what is recorded. Errors after a plugin was called are its own, as far as undoing goes.
    fn begin(
        &self,
        delegate: &Delegate,
        replaced: &[DefaultRoute],
        others: &[Delegate],
        fates: Option<Fates>,
        netns: &mut impl PodNetns,
    ) -> Result<Attached, Refusal> {
        let ifname = delegate.interface_name(PLACE, self.sandbox);
        self.make_way(replaced, others, netns)
            .map_err(|error| Refusal::Before(internal(error)))?;
        let (mut result, device_info) = self.invoke_add(PLACE, delegate)?;
        if let Some(fates) = fates.filter(|_| !result.interfaces.is_empty() || !result.ips.is_empty()) {
            result = self
                .reroute(delegate, &ifname, fates, netns)
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

    /// Writes what is known of all networks over what was, and waits for the disk.
    pub(super) fn keep(&self, elements: &Elements) -> io::Result<()> {
        let Some(scratch) = self.scratch() else {
            return Ok(());
        };
        scratch.write(&elements.to_text())?;
        scratch.sync()
    }

    /// Takes the network of an interface out of the record. A record too many is harmless: DEL of what is gone succeeds.
    fn forget(&self, ifname: &str) {
        let forget = || -> Result<(), RecordError> {
            if let Record::Whole(mut elements, _) = self.record()? {
                elements.remove(ifname)?;
                self.keep(&elements)?;
            }
            Ok(())
        };
        if let Err(error) = forget() {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, ifname, error, "a network stays recorded that is detached");
        }
    }
}

fn other_network(ifname: &str, recorded: &Delegate, asked: impl fmt::Display) -> Error {
    Error::internal(format!(
        "interface {ifname} is attached to network {}, not to {asked}",
        recorded.display_name
    ))
}

fn of_the_pod(ifname: &str) -> Error {
    Error::internal(format!("interface {ifname} is the pod's own"))
}

fn is_nad(delegate: &Delegate) -> bool {
    delegate.display_name.contains('/')
}

/// Whether to attach the one would be to attach the other once more. NADs say so by their names, whatever has become of
/// them since; a caller that names none has its configuration to be known by.
fn is_same(asked: &Delegate, recorded: &Delegate) -> bool {
    if is_nad(asked) && is_nad(recorded) {
        return asked.display_name == recorded.display_name;
    }
    asked.config.is_like(&recorded.config)
}
