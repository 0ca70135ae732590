//! One network more or less in a sandbox that runs (multus.md §7.4).
//!
//! What is plugged in stands in the sandbox's scratch file like what ADD attached, and that before its plugin is called:
//! so the pod's DEL detaches it, whatever happens in between.

use super::{Attacher, PodNetns, Refusal, Stored, check_free};
use crate::delegate::Delegate;
use crate::scratch::{self, Records};
use cni::Error;
use cni::cache::Key;
use cni::chain::Runner;
use cni::error::internal;
use cni::result::CniResult;
use std::io;

/// The place that counts as that of a plugged network: any but the master's.
const PLACE: usize = 1;

/// Why the record of a sandbox can't be kept.
#[derive(Debug, thiserror::Error)]
enum RecordError {
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

impl<R: Runner> Attacher<'_, R> {
    /// The networks of the sandbox as far as the node knows them; `None` when it knows nothing. That is so of a sandbox
    /// that was attached while multus was not on the node.
    pub fn known(&self) -> Option<Vec<Delegate>> {
        match self.scratch_delegates() {
            Stored::Delegates(delegates) if !delegates.is_empty() => Some(delegates),
            Stored::Delegates(_) | Stored::Missing | Stored::Corrupt => {
                Some(self.cached_delegates()).filter(|delegates| !delegates.is_empty())
            }
        }
    }

    /// Attaches one network, which names its interface. `others` are those that the sandbox has, for the case that no
    /// file says so: a file that named this one alone would make DEL forget them. What is attached in the same way
    /// already is not attached again, so that a caller who missed the answer may ask once more.
    pub fn plug(
        &self,
        delegate: &Delegate,
        others: &[Delegate],
        netns: &mut impl PodNetns,
    ) -> Result<CniResult, Error> {
        let ifname = delegate.interface_name(PLACE, self.sandbox);
        if let Err(refused) = check_free(delegate, &ifname, netns) {
            return self.attached(delegate, &ifname).ok_or(refused);
        }
        let records = || -> Result<(), RecordError> {
            let mut records = self.records(others)?;
            records.put(delegate)?;
            Ok(self.keep(&records)?)
        };
        records().map_err(|error| unsaved(&error))?;
        match self.invoke_add(PLACE, delegate) {
            Ok((result, _)) => {
                self.sync_one(delegate, &ifname)
                    .map_err(|error| unsaved(&RecordError::File(error)))?;
                Ok(result)
            }
            Err(Refusal::Before(error)) => {
                self.forget(&ifname);
                Err(error)
            }
            Err(Refusal::ByPlugin(error)) => {
                match self.del_one(PLACE, delegate) {
                    Ok(()) => self.forget(&ifname),
                    // The record stays: the pod's DEL tries again.
                    Err(left) => {
                        tracing::warn!(sandbox = %self.sandbox, error = %left, "cannot undo the attachment");
                    }
                }
                Err(error)
            }
        }
    }

    /// Detaches the network of the sandbox's interface, as it was attached. `asked` is what the caller takes it for, if
    /// he says so. An interface that nobody attached here is not touched: it is somebody else's.
    pub fn unplug(&self, asked: Option<&Delegate>) -> Result<(), Error> {
        let ifname = &self.sandbox.ifname;
        let Some((place, delegate)) = self.network_of(ifname) else {
            tracing::info!(sandbox = %self.sandbox, "no network is attached to this interface");
            return Ok(());
        };
        if let Some(asked) = asked.filter(|asked| !is_same(asked, &delegate)) {
            return Err(Error::internal(format!(
                "interface {ifname} is attached to network {}, not to {}",
                delegate.display_name, asked.display_name
            )));
        }
        self.del_one(place, &delegate)?;
        self.forget(ifname);
        Ok(())
    }

    /// The network of an interface, with its place in the list.
    pub fn network_of(&self, ifname: &str) -> Option<(usize, Delegate)> {
        let of = |delegates: Vec<Delegate>| {
            let mut places = delegates.into_iter().enumerate();
            // The master's interface has no name in the file, and a call about one network does not tell it.
            places.find(|(place, delegate)| match &delegate.requests.interface {
                Some(name) => name == ifname,
                None => *place > 0 && delegate.interface_name(*place, self.sandbox) == ifname,
            })
        };
        let recorded = match self.scratch_delegates() {
            Stored::Delegates(delegates) => of(delegates),
            Stored::Missing | Stored::Corrupt => None,
        };
        // What the established daemon plugged in is in no scratch file. The pod's own interface is nobody's to take.
        let cached = || {
            let all = Some(self.cached_delegates()).filter(|_| ifname != crate::names::MASTER_INTERFACE)?;
            of(all).map(|(_, delegate)| (PLACE, delegate))
        };
        recorded.or_else(cached)
    }

    /// What was said when this very network was attached, if it was.
    fn attached(&self, delegate: &Delegate, ifname: &str) -> Option<CniResult> {
        let text = self.scratch()?.read().ok()??;
        if !Records::parse(&text).ok()?.has(delegate).ok()? {
            return None;
        }
        let network = delegate.config.network().ok()?;
        let key = Key {
            network: &network.name,
            container_id: &self.sandbox.container_id,
            ifname,
        };
        let entry = self.cache().load(key).ok()??;
        entry.cni_result(network.version()?).ok()?
    }

    fn records(&self, others: &[Delegate]) -> Result<Records, RecordError> {
        let text = self
            .scratch()
            .map(|scratch| scratch.read())
            .transpose()?
            .flatten();
        let records = text.map(|text| Records::parse(&text)).transpose()?;
        match records.filter(|records| !records.is_empty()) {
            Some(records) => Ok(records),
            None => Ok(Records::of(others)?),
        }
    }

    fn keep(&self, records: &Records) -> io::Result<()> {
        match self.scratch() {
            Some(scratch) => scratch.write(&records.to_text()),
            // The plugin's call is about to be refused for the same reason, in better words.
            None => Ok(()),
        }
    }

    /// Takes the network of an interface out of the record. A record too many is harmless: DEL of what is gone succeeds.
    fn forget(&self, ifname: &str) {
        let forget = || -> Result<(), RecordError> {
            let mut records = self.records(&[])?;
            records.remove(ifname)?;
            match self.scratch() {
                Some(scratch) if records.is_empty() => Ok(scratch.remove()?),
                _ => Ok(self.keep(&records)?),
            }
        };
        if let Err(error) = forget() {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, ifname, error, "a network stays recorded that is detached");
        }
    }

    fn sync_one(&self, delegate: &Delegate, ifname: &str) -> io::Result<()> {
        self.scratch().map_or(Ok(()), |scratch| scratch.sync())?;
        let key = Key {
            network: &delegate.config.name(),
            container_id: &self.sandbox.container_id,
            ifname,
        };
        self.cache().sync(key).map_err(io::Error::other)
    }
}

/// Whether two are the same network, by the name that users know or by that of the configuration.
fn is_same(one: &Delegate, other: &Delegate) -> bool {
    one.display_name == other.display_name || one.config.name() == other.config.name()
}
