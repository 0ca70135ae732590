//! ADD, DEL and CHECK of a sandbox's networks, in order and with rollback (multus.md §5.2 to §5.4).
//!
//! ```text
//! delegates ──> add: prepare ──> scratch file          del <── recorded <── scratch file, result cache
//!               add: one network after the other        │                        stale: a sandbox without a DEL
//!                 │    device_info, plugin, routes      └──> plugins in reverse order
//!                 └── failure ──> del
//!
//! plug: the same for one network of a running sandbox
//! ```
//!
//! All functions block while plugins run. They work on delegates that [`crate::networks::resolve`] decided; plugins are
//! behind [`Runner`], and the pod's namespace is behind [`netns::PodNetns`].

mod add;
mod check;
mod del;
mod device_info;
pub mod netns;
pub(crate) mod plug;
mod recorded;
mod routes;
mod stale;

pub(crate) use add::{AddError, Attached, NetworkFailure};
pub(crate) use recorded::ScratchState;
pub(crate) use stale::CleanUp;

use crate::networks::delegate::{self, Delegate};
use crate::networks::net_conf::MultusConfig;
use crate::sandbox::{PodVerb, Sandbox};
use crate::store::scratch::Scratch;
use cni::Error;
use cni::cache::{Cache, Key};
use cni::chain::{Attachment, Chain, Runner};

/// Attaches and detaches the networks of one sandbox.
pub(crate) struct Attacher<'a, R> {
    /// Runs the plugins.
    pub runner: &'a R,
    /// The call's configuration.
    pub config: &'a MultusConfig,
    pub sandbox: &'a Sandbox,
}

impl<R: Runner> Attacher<'_, R> {
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
    ) -> Result<Attachment, delegate::Error> {
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
}

#[cfg(test)]
mod tests;
