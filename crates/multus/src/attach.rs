//! Carrying out ADD, DEL and CHECK of a pod's networks, in order and with the way back (multus.md §5.2 to §5.4).
//!
//! Everything here blocks: plugins are waited for. What it works on are values that were decided before, the plugins
//! themselves sit behind [`Runner`] and the pod's namespace behind [`PodNetns`].

mod dead;
mod device_info;
pub mod plug;
mod plug_routes;

pub use dead::Buried;

use crate::default_route::{self, DefaultRoute, Ecmp, Fates};
use crate::delegate::{Config, Delegate};
use crate::net_conf::MultusConfig;
use crate::request::{PodVerb, Sandbox};
use crate::scratch::{self, Scratch};
use cni::Error;
use cni::cache::{Cache, Entry, Key};
use cni::chain::{Attachment, Chain, Runner};
use cni::error::{code, internal};
use cni::json::Object;
use cni::result::CniResult;
use cni::version::Version;
use serde_json::value::RawValue;
use std::io;

/// The pod's network namespace, as far as multus itself looks at it.
pub trait PodNetns {
    /// Whether an interface of this name is there already.
    fn has(&mut self, interface: &str) -> Result<bool, NetnsError>;

    /// Gives the interface's default routes their fate.
    fn reroute(&mut self, interface: &str, fates: Fates) -> Result<(), RouteError>;

    /// All default routes.
    fn defaults(&mut self) -> Result<Vec<DefaultRoute>, RouteError>;

    /// Adds a default route that was there before; that it is there is fine.
    fn restore(&mut self, route: &DefaultRoute) -> Result<(), RouteError>;
}

/// The namespace can't be looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("validateIfName: no net namespace {netns} found: {cause}")]
pub struct NetnsError {
    /// Its path.
    pub netns: String,
    /// Why.
    pub cause: String,
}

/// A default route could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Removing one.
    #[error("error deleting default gateway: {0}")]
    Delete(String),
    /// Setting one.
    #[error("error setting default gateway: {0}")]
    Set(String),
}

/// One network that was attached.
#[derive(Debug, Clone)]
pub struct Attached {
    /// What users call the network.
    pub display_name: String,
    /// The network's own name.
    pub network: String,
    /// Interface in the pod.
    pub ifname: String,
    /// What the plugins said.
    pub result: CniResult,
    /// What is known of the device behind it.
    pub device_info: Option<Box<RawValue>>,
}

/// Which network could not be attached, and why.
#[derive(Debug)]
pub struct NetworkFailure {
    /// What users call the network.
    pub display_name: String,
    /// The network's own name.
    pub network: String,
    /// Interface in the pod.
    pub ifname: String,
    /// The plugin's error, with its code.
    pub error: Error,
}

/// A pod could not be attached. Nothing is left behind but the scratch file.
#[derive(Debug)]
pub enum AddError {
    /// Before any plugin ran.
    Prepare(String),
    /// One network failed; those before it were detached again.
    Network(Box<NetworkFailure>),
    /// Its default routes could not be set; all networks were detached again.
    Route(String),
}

/// Who refused to attach one network.
enum Refusal {
    /// We did; no plugin ran.
    Before(Error),
    /// A plugin, or what checks its call.
    ByPlugin(Error),
}

/// A pod's sandbox and how to work on it.
pub struct Attacher<'a, R> {
    /// Runs the plugins.
    pub runner: &'a R,
    /// The call's configuration.
    pub config: &'a MultusConfig,
    /// The sandbox.
    pub sandbox: &'a Sandbox,
}

impl<R: Runner> Attacher<'_, R> {
    /// Writes down what is about to be attached, which is all that DEL needs. What comes back is for [`Self::add`]; the
    /// disk may take as long as a plugin, so [sync](Scratch::sync) it meanwhile.
    pub fn prepare(&self, delegates: &[Delegate]) -> Result<Vec<Fates>, AddError> {
        let fates =
            default_route::plan(delegates).map_err(|error: Ecmp| AddError::Prepare(error.to_string()))?;
        self.save(delegates, &fates)
            .map_err(|error| AddError::Prepare(format!("error saving the delegates: {error}")))?;
        Ok(fates)
    }

    fn save(&self, delegates: &[Delegate], fates: &[Fates]) -> io::Result<()> {
        let Some(scratch) = self.scratch() else {
            // Every delegate's ADD is about to be refused for the same reason, in better words.
            return Ok(());
        };
        let filters: Vec<_> = fates.iter().map(|fates| fates.filters()).collect();
        scratch.write(&scratch::encode(delegates, &filters)?)
    }

    /// Attaches all networks in order. The first failure detaches what was attached, in reverse order.
    pub fn add(
        &self,
        delegates: &[Delegate],
        fates: &[Fates],
        netns: &mut impl PodNetns,
    ) -> Result<Vec<Attached>, AddError> {
        let mut attached: Vec<Attached> = Vec::with_capacity(delegates.len());
        let mut replaced = Vec::new();
        for (index, delegate) in delegates.iter().enumerate() {
            let ifname = delegate.interface_name(index, self.sandbox);
            let network = delegate.config.name();
            let (mut result, device_info) = match self.add_one(index, delegate, &ifname, netns) {
                Ok(added) => added,
                Err(error) => {
                    // What was refused did not run, and the interface of its name is somebody else's.
                    let (begun, error) = match error {
                        Refusal::Before(error) => (index, error),
                        Refusal::ByPlugin(error) => (index + 1, error),
                    };
                    self.roll_back(&delegates[..begun]);
                    let display_name = delegate.display_name.clone();
                    let failure = NetworkFailure {
                        display_name,
                        network,
                        ifname,
                        error,
                    };
                    return Err(AddError::Network(Box::new(failure)));
                }
            };
            let fates = fates.get(index).copied().filter(|fates| !fates.keeps_all());
            if let Some(fates) = fates.filter(|_| !result.interfaces.is_empty() || !result.ips.is_empty()) {
                replaced.append(&mut self.taken_away(&ifname, fates, netns));
                match self.reroute(delegate, &ifname, fates, netns) {
                    Ok(rerouted) => result = rerouted,
                    Err(error) => {
                        self.roll_back(&delegates[..=index]);
                        return Err(AddError::Route(error));
                    }
                }
            }
            attached.push(Attached {
                display_name: delegate.display_name.clone(),
                network,
                ifname,
                result,
                device_info,
            });
        }
        self.note_replaced(&replaced, delegates);
        Ok(attached)
    }

    fn add_one(
        &self,
        index: usize,
        delegate: &Delegate,
        ifname: &str,
        netns: &mut impl PodNetns,
    ) -> Result<(CniResult, Option<Box<RawValue>>), Refusal> {
        check_free(delegate, ifname, netns).map_err(Refusal::Before)?;
        self.invoke_add(index, delegate)
    }

    fn invoke_add(
        &self,
        index: usize,
        delegate: &Delegate,
    ) -> Result<(CniResult, Option<Box<RawValue>>), Refusal> {
        let unusable = |error: &dyn std::fmt::Display| Refusal::Before(internal(error));
        let network = delegate.config.network().map_err(|error| unusable(&error))?;
        let attachment = self
            .attachment(index, delegate, true)
            .map_err(|error| unusable(&error))?;
        self.hand_over_device(delegate, &attachment);
        let result = self
            .measure(PodVerb::Add, delegate, || {
                self.chain(&self.cache()).add(&network, &attachment)
            })
            .map_err(Refusal::ByPlugin)?;
        Ok((result, self.read_device_info(&attachment)))
    }

    /// Detaches a list of networks from its end. Errors change nothing: the one that led here is what counts.
    fn roll_back(&self, delegates: &[Delegate]) {
        for (network, error) in self.del_all(delegates) {
            tracing::warn!(sandbox = %self.sandbox, network, %error, "cannot undo the attachment");
        }
    }

    /// Detaches all networks, the last one first, and goes on after errors, which are returned by network.
    fn del_all(&self, delegates: &[Delegate]) -> Vec<(String, Error)> {
        let mut errors = Vec::new();
        for (index, delegate) in delegates.iter().enumerate().rev() {
            if let Err(error) = self.del_one(index, delegate) {
                errors.push((delegate.config.name(), error));
            }
        }
        errors
    }

    fn del_one(&self, index: usize, delegate: &Delegate) -> Result<(), Error> {
        let mut attachment = self.attachment(index, delegate, false).map_err(internal)?;
        let mut config = delegate.config.clone();
        if config.chain().is_some() && config.cni_version().is_empty() {
            config
                .set("cniVersion", &self.config.cni_version)
                .map_err(internal)?;
        }
        let cache = self.cache();
        let name = config.name();
        let key = self.key(&name, &attachment.ifname);
        // A cache that can't be read has nothing to add; the chain deals with it.
        if let Ok(Some(entry)) = cache.load(key) {
            complete(&mut config, &mut attachment, entry).map_err(internal)?;
        }
        let pod = &self.sandbox.pod;
        let uid = pod.uid.as_deref().unwrap_or_default();
        tracing::info!(
            "Del: {}:{}:{uid}:{name}:{} {}",
            pod.namespace,
            pod.name,
            attachment.ifname,
            cni::json::compact(&config.object().to_json())
        );
        let network = config.network().map_err(internal)?;
        let outcome = self.measure(PodVerb::Del, delegate, || {
            self.chain(&cache).del(&network, &attachment)
        });
        self.remove_device_info(&attachment);
        outcome
    }

    /// Detaches a pod. `delegates` are those of its scratch file, or what else is known of it.
    pub fn del(&self, delegates: &[Delegate]) -> Result<(), Error> {
        let errors = self.del_all(delegates);
        let keep = self.config.retry_delete_on_error
            && errors
                .iter()
                .any(|(_, error)| !error.to_string().contains("no such file or directory"));
        let mut texts: Vec<_> = errors
            .iter()
            .map(|(network, error)| format!("error deleting container from network \"{network}\": {error}"))
            .collect();
        if !keep
            && let Some(scratch) = self.scratch()
            && let Err(error) = scratch.remove()
        {
            texts.push(format!("cannot remove the scratch file: {error}"));
        }
        if texts.is_empty() {
            Ok(())
        } else {
            Err(Error::internal(format!("errors: {}", texts.join(" / "))))
        }
    }

    /// Whether all networks are as ADD left them. A secondary network whose version has no CHECK can't be asked.
    pub fn check(&self, delegates: &[Delegate]) -> Result<(), Error> {
        for (index, delegate) in delegates.iter().enumerate() {
            self.check_one(index, delegate)?;
        }
        Ok(())
    }

    fn check_one(&self, index: usize, delegate: &Delegate) -> Result<(), Error> {
        let network = delegate.config.network().map_err(internal)?;
        if index > 0 && network.version().is_some_and(|version| !version.has_check()) {
            return Ok(());
        }
        let attachment = self.attachment(index, delegate, false).map_err(internal)?;
        let check = || self.chain(&self.cache()).check(&network, &attachment);
        self.measure(PodVerb::Check, delegate, check).map_err(|error| {
            let what = if network.single {
                format!("DelegateCheck - \"{}\"", delegate.config.plugin_type())
            } else {
                format!("ConflistCheck - \"{}\"", network.name)
            };
            error.prefixed(&format!("DelegateCheck: error invoking {what}"))
        })
    }

    /// What the scratch file says. Looking changes nothing.
    ///
    /// An error when the file can't be read now: its content may be good.
    pub fn scratch_delegates(&self) -> Result<Stored, Error> {
        let Some(scratch) = self.scratch() else {
            return Ok(Stored::Missing);
        };
        let decoded = match scratch.read() {
            Ok(Some(text)) => scratch::decode(&text).map_err(|error| kube_kit::client::chain(&error)),
            Ok(None) => return Ok(Stored::Missing),
            // The next read would say the same.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(error.to_string()),
            Err(error) => {
                let text = format!("Multus: cannot read {}: {error}", scratch.path().display());
                return Err(Error::new(code::IO, text));
            }
        };
        Ok(match decoded {
            Ok(delegates) => Stored::Delegates(delegates),
            Err(error) => {
                tracing::error!(sandbox = %self.sandbox, error, "unusable scratch file");
                Stored::Corrupt
            }
        })
    }

    /// Sets a scratch file aside that is [of no use](Stored::Corrupt), for people to look at.
    pub fn set_scratch_aside(&self) {
        if let Some(scratch) = self.scratch()
            && let Err(error) = scratch.set_aside()
        {
            tracing::error!(sandbox = %self.sandbox, %error, "cannot set the scratch file aside");
        }
    }

    /// The networks of this sandbox that the result cache knows, the master first.
    pub fn cached_delegates(&self) -> Vec<Delegate> {
        let names: Vec<_> = match std::fs::read_dir(self.config.results_dir()) {
            Ok(files) => files
                .filter_map(Result::ok)
                .filter_map(|file| file.file_name().into_string().ok())
                .collect(),
            Err(_) => Vec::new(),
        };
        self.cached_in(&names)
    }

    /// The same of those of these files of the result cache that are its own.
    fn cached_in(&self, names: &[String]) -> Vec<Delegate> {
        let cache = self.cache();
        let infix = format!("-{}-", self.sandbox.container_id);
        let mut entries: Vec<_> = names
            .iter()
            .filter_map(|name: &String| name.split_once(infix.as_str()))
            .map(|(network, ifname)| self.key(network, ifname))
            .filter_map(|key| {
                cache.load(key).unwrap_or_else(|error| {
                    tracing::warn!(sandbox = %self.sandbox, %error, "an attachment can't be told");
                    None
                })
            })
            .collect();
        entries.sort_by_key(|entry| (entry.ifname != self.sandbox.ifname, entry.ifname.clone()));
        entries.into_iter().filter_map(from_cache).collect()
    }

    fn scratch(&self) -> Option<Scratch> {
        Scratch::new(&self.config.cni_dir, &self.sandbox.container_id)
    }

    fn cache(&self) -> Cache {
        Cache::new(&self.config.cni_dir)
    }

    fn chain<'c>(&'c self, cache: &'c Cache) -> Chain<'c, R> {
        Chain {
            runner: self.runner,
            cache,
        }
    }

    fn key<'k>(&'k self, network: &'k str, ifname: &'k str) -> Key<'k> {
        Key {
            network,
            container_id: &self.sandbox.container_id,
            ifname,
        }
    }

    fn measure<T>(
        &self,
        verb: PodVerb,
        delegate: &Delegate,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.config
            .own
            .metrics
            .network(verb.text(), &delegate.display_name, work)
    }

    fn attachment(
        &self,
        index: usize,
        delegate: &Delegate,
        adding: bool,
    ) -> Result<Attachment, crate::delegate::Error> {
        Ok(Attachment {
            container_id: self.sandbox.container_id.clone(),
            netns: self.sandbox.netns.clone(),
            ifname: delegate.interface_name(index, self.sandbox),
            args: delegate.cni_args(self.sandbox, &self.config.own.args, adding),
            capability_args: delegate.capability_args(
                index,
                &self.config.runtime_config,
                self.sandbox,
                &self.config.own.device_info,
            )?,
        })
    }

    /// Gives the default routes of a network their fate, in the namespace and in its result, which comes back so.
    fn reroute(
        &self,
        delegate: &Delegate,
        ifname: &str,
        fates: Fates,
        netns: &mut impl PodNetns,
    ) -> Result<CniResult, String> {
        netns.reroute(ifname, fates).map_err(|error| error.to_string())?;
        let name = delegate.config.name();
        let key = self.key(&name, ifname);
        let mut text = String::new();
        let edited = self.cache().edit_result(key, |result| {
            default_route::edit(result, fates)?;
            text = result.to_json();
            Ok(())
        });
        let failed = |cause: &dyn std::fmt::Display| {
            let replaces = [fates.v4, fates.v6]
                .iter()
                .any(|fate| matches!(fate, default_route::Fate::Replace(_)));
            format!(
                "error {} default gateway in cache: {cause}",
                if replaces { "setting" } else { "deleting" }
            )
        };
        match edited {
            Ok(true) => {
                // The cache holds what was converted to a version that we know.
                CniResult::parse(text.as_bytes(), Version::LATEST).map_err(|error| failed(&error))
            }
            Ok(false) => Err(failed(&"cannot get result from cache")),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Refuses an interface that the pod has already.
fn check_free(delegate: &Delegate, ifname: &str, netns: &mut impl PodNetns) -> Result<(), Error> {
    if netns
        .has(ifname)
        .map_err(|error| refused(delegate, ifname, &error))?
    {
        let taken = format!("validateIfName: interface name {ifname} already exists");
        return Err(refused(delegate, ifname, &taken));
    }
    Ok(())
}

fn refused(delegate: &Delegate, ifname: &str, cause: &dyn std::fmt::Display) -> Error {
    let plugin = delegate.config.plugin_type();
    Error::internal(format!(
        "DelegateAdd: cannot set \"{plugin}\" interface name to \"{ifname}\": {cause}"
    ))
}

/// What a scratch file had to say.
#[derive(Debug)]
pub enum Stored {
    /// These were attached.
    Delegates(Vec<Delegate>),
    /// There is no file: nothing was attached, or it is detached already.
    Missing,
    /// There was one, and it is of no use.
    Corrupt,
}

/// Scratch files of old hold lists without most of their keys, and no scratch file holds port mappings and bandwidth:
/// the result cache has both.
fn complete(
    config: &mut Config,
    attachment: &mut Attachment,
    entry: Entry,
) -> Result<(), crate::delegate::Error> {
    if let Ok(cached) = Config::parse(&entry.config) {
        config.complete_from(&cached)?;
    }
    let mut args: Object = entry.capability_args;
    for (key, value) in attachment.capability_args.iter() {
        args.set_raw(key, value.to_owned());
    }
    attachment.capability_args = args;
    Ok(())
}

fn from_cache(entry: Entry) -> Option<Delegate> {
    let config = Config::parse_named(&entry.config, &entry.network).ok()?;
    let mut delegate = Delegate::new(entry.network, config);
    delegate.requests.interface = Some(entry.ifname);
    Some(delegate)
}

#[cfg(test)]
mod tests;
