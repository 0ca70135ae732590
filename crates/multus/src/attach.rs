//! ADD, DEL and CHECK of a sandbox's networks, in order and with rollback (multus.md §5.2 to §5.4).
//!
//! All functions block while plugins run. They work on delegates that [`crate::resolve`] decided; plugins are behind
//! [`Runner`], and the pod's namespace is behind [`PodNetns`].

mod device_info;
pub(crate) mod plug;
mod plug_routes;
mod scratch_record;
mod stale;

pub(crate) use stale::CleanUp;

use crate::default_route::{self, Ecmp, RouteActions};
use crate::delegate::{Config, Delegate};
use crate::net_conf::MultusConfig;
use crate::netns::PodNetns;
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

#[derive(Debug, Clone)]
pub(crate) struct Attached {
    /// The network's name for users.
    pub display_name: String,
    /// The network's own name.
    pub network: String,
    /// The interface in the pod.
    pub ifname: String,
    /// The result of the plugins.
    pub result: CniResult,
    /// The device-info of its device.
    pub device_info: Option<Box<RawValue>>,
}

/// A network that could not be attached.
#[derive(Debug)]
pub(crate) struct NetworkFailure {
    /// The network's name for users.
    pub display_name: String,
    /// The network's own name.
    pub network: String,
    /// The interface in the pod.
    pub ifname: String,
    /// The plugin's error, with its code.
    pub error: Error,
}

/// A pod could not be attached. Everything but the scratch file was rolled back.
#[derive(Debug)]
pub(crate) enum AddError {
    /// An error before any plugin ran.
    Prepare(String),
    /// A network failed; the networks before it were detached again.
    Network(Box<NetworkFailure>),
    /// The default routes could not be set; all networks were detached again.
    Route(String),
}

/// The stage at which a network's ADD failed.
enum Refusal {
    /// Before any plugin ran.
    Before(Error),
    /// A plugin failed, or the validation of its call.
    ByPlugin(Error),
}

/// Attaches and detaches the networks of one sandbox.
pub(crate) struct Attacher<'a, R> {
    /// Runs the plugins.
    pub runner: &'a R,
    /// The call's configuration.
    pub config: &'a MultusConfig,
    pub sandbox: &'a Sandbox,
}

impl<R: Runner> Attacher<'_, R> {
    /// Records the delegates in the scratch file, which is all that DEL needs, and returns the route actions for
    /// [`Self::add`]. The file is not [synced](Scratch::sync) yet: the disk may take as long as a plugin, so sync it
    /// while the plugins run.
    pub(crate) fn prepare(&self, delegates: &[Delegate]) -> Result<Vec<RouteActions>, AddError> {
        let actions =
            default_route::plan(delegates).map_err(|error: Ecmp| AddError::Prepare(error.to_string()))?;
        self.save(delegates, &actions)
            .map_err(|error| AddError::Prepare(format!("error saving the delegates: {error}")))?;
        Ok(actions)
    }

    fn save(&self, delegates: &[Delegate], actions: &[RouteActions]) -> io::Result<()> {
        let Some(scratch) = self.scratch() else {
            // The ID is invalid: every delegate's ADD fails for that reason, with a better error.
            return Ok(());
        };
        let filters: Vec<_> = actions.iter().map(|actions| actions.filters()).collect();
        scratch.write(&scratch::encode(delegates, &filters)?)
    }

    /// Attaches all networks in order. The first failure detaches what was attached, in reverse order.
    pub(crate) fn add(
        &self,
        delegates: &[Delegate],
        actions: &[RouteActions],
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
                    // A delegate that failed before its plugin ran owns nothing: another network owns the interface.
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
            let actions = actions.get(index).copied().filter(|actions| !actions.keeps_all());
            if let Some(actions) = actions.filter(|_| !result.interfaces.is_empty() || !result.ips.is_empty())
            {
                replaced.append(&mut self.removed_routes(&ifname, actions, netns));
                match self.reroute(delegate, &ifname, actions, netns) {
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
        self.record_replaced(&replaced, delegates);
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

    /// Detaches networks in reverse order. Errors are only logged: the caller returns the error that caused the
    /// rollback.
    fn roll_back(&self, delegates: &[Delegate]) {
        for (network, error) in self.del_all(delegates) {
            tracing::warn!(sandbox = %self.sandbox, network, %error, "rollback: cannot detach the network");
        }
    }

    /// Detaches all networks in reverse order. An error does not stop the others; returns the errors by network.
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
        // The chain itself handles a cache entry that cannot be read.
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

    /// Detaches a pod from `delegates`: those of its scratch file or of the result cache.
    pub(crate) fn del(&self, delegates: &[Delegate]) -> Result<(), Error> {
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

    /// Calls CHECK for all networks. A secondary network whose version has no CHECK is skipped.
    pub(crate) fn check(&self, delegates: &[Delegate]) -> Result<(), Error> {
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

    /// Reads the scratch file. Never changes it.
    ///
    /// An error when the file cannot be read now: its content may be good.
    pub(crate) fn scratch_delegates(&self) -> Result<ScratchState, Error> {
        let Some(scratch) = self.scratch() else {
            return Ok(ScratchState::Missing);
        };
        let decoded = match scratch.read() {
            Ok(Some(text)) => scratch::decode(&text).map_err(|error| kube_kit::client::chain(&error)),
            Ok(None) => return Ok(ScratchState::Missing),
            // Permanent, unlike the other I/O errors.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(error.to_string()),
            Err(error) => {
                let text = format!("Multus: cannot read {}: {error}", scratch.path().display());
                return Err(Error::new(code::IO, text));
            }
        };
        Ok(match decoded {
            Ok(delegates) => ScratchState::Delegates(delegates),
            Err(error) => {
                tracing::error!(sandbox = %self.sandbox, error, "unusable scratch file");
                ScratchState::Corrupt
            }
        })
    }

    /// Sets a [corrupt](ScratchState::Corrupt) scratch file aside for inspection.
    pub(crate) fn set_scratch_aside(&self) {
        if let Some(scratch) = self.scratch()
            && let Err(error) = scratch.set_aside()
        {
            tracing::error!(sandbox = %self.sandbox, %error, "cannot set the scratch file aside");
        }
    }

    /// The networks of this sandbox in the result cache, the master first.
    pub(crate) fn cached_delegates(&self) -> Vec<Delegate> {
        let names: Vec<_> = match std::fs::read_dir(self.config.results_dir()) {
            Ok(files) => files
                .filter_map(Result::ok)
                .filter_map(|file| file.file_name().into_string().ok())
                .collect(),
            Err(_) => Vec::new(),
        };
        self.cached_in(&names)
    }

    /// The same, among these file names of the result cache.
    fn cached_in(&self, names: &[String]) -> Vec<Delegate> {
        let cache = self.cache();
        let infix = format!("-{}-", self.sandbox.container_id);
        let mut entries: Vec<_> = names
            .iter()
            .filter_map(|name: &String| name.split_once(infix.as_str()))
            .map(|(network, ifname)| self.key(network, ifname))
            .filter_map(|key| {
                cache.load(key).unwrap_or_else(|error| {
                    tracing::warn!(sandbox = %self.sandbox, %error, "cannot read a cached attachment, skipping it");
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

    /// Applies the actions to a network's default routes, in the namespace and in its cached result. Returns the new
    /// result.
    fn reroute(
        &self,
        delegate: &Delegate,
        ifname: &str,
        actions: RouteActions,
        netns: &mut impl PodNetns,
    ) -> Result<CniResult, String> {
        netns
            .reroute(ifname, actions)
            .map_err(|error| error.to_string())?;
        let name = delegate.config.name();
        let key = self.key(&name, ifname);
        let mut text = String::new();
        let edited = self.cache().edit_result(key, |result| {
            default_route::edit(result, actions)?;
            text = result.to_json();
            Ok(())
        });
        let failed = |cause: &dyn std::fmt::Display| {
            let replaces = [actions.v4, actions.v6]
                .iter()
                .any(|action| matches!(action, default_route::RouteAction::Replace(_)));
            format!(
                "error {} default gateway in cache: {cause}",
                if replaces { "setting" } else { "deleting" }
            )
        };
        match edited {
            Ok(true) => {
                // The cache holds results in a version that this program knows.
                CniResult::parse(text.as_bytes(), Version::LATEST).map_err(|error| failed(&error))
            }
            Ok(false) => Err(failed(&"cannot get result from cache")),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Refuses an interface name that the pod already has.
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

/// The content of a scratch file.
#[derive(Debug)]
pub(crate) enum ScratchState {
    /// The delegates that were attached.
    Delegates(Vec<Delegate>),
    /// No file: nothing was attached, or it is already detached.
    Missing,
    /// The file is unusable.
    Corrupt,
}

/// Completes a delegate from the result cache: old scratch files hold lists without most of their keys, and no
/// scratch file holds port mappings and bandwidth.
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
