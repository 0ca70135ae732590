//! ADD: one network after the other; the first failure detaches the networks before it (multus.md §5.2).

use super::Attacher;
use super::netns::PodNetns;
use crate::networks::default_route::{self, Ecmp, RouteActions};
use crate::networks::delegate::Delegate;
use crate::sandbox::PodVerb;
use crate::store::scratch;
use cni::Error;
use cni::chain::Runner;
use cni::error::internal;
use cni::result::CniResult;
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
pub(super) enum Refusal {
    /// Before any plugin ran.
    Before(Error),
    /// A plugin failed, or the validation of its call.
    ByPlugin(Error),
}

impl<R: Runner> Attacher<'_, R> {
    /// Records the delegates in the scratch file, which is all that DEL needs, and returns the route actions for
    /// [`Self::add`]. The file is not [synced](scratch::Scratch::sync) yet: the disk may take as long as a plugin, so sync it
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

    /// Attaches all networks in order. After the first failure, detaches the attached networks in reverse order.
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

    pub(super) fn invoke_add(
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
}

/// Refuses an interface name that the pod already has.
pub(super) fn check_free(delegate: &Delegate, ifname: &str, netns: &mut impl PodNetns) -> Result<(), Error> {
    if netns
        .has(ifname)
        .map_err(|error| refused(delegate, ifname, &error))?
    {
        let taken = format!("validateIfName: interface name {ifname} already exists");
        return Err(refused(delegate, ifname, &taken));
    }
    Ok(())
}

pub(super) fn refused(delegate: &Delegate, ifname: &str, cause: &dyn std::fmt::Display) -> Error {
    let plugin = delegate.config.plugin_type();
    Error::internal(format!(
        "DelegateAdd: cannot set \"{plugin}\" interface name to \"{ifname}\": {cause}"
    ))
}
