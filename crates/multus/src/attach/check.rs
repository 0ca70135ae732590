//! CHECK of a sandbox's networks (multus.md §5.4).

use super::Attacher;
use crate::networks::delegate::Delegate;
use crate::sandbox::PodVerb;
use cni::Error;
use cni::chain::Runner;
use cni::error::internal;

impl<R: Runner> Attacher<'_, R> {
    /// Calls CHECK for all networks. A secondary network whose version has no CHECK is skipped.
    pub(crate) fn check(&self, delegates: &[Delegate]) -> Result<(), Error> {
        for (index, delegate) in delegates.iter().enumerate() {
            self.check_one(index, delegate)?;
        }
        Ok(())
    }

    pub(super) fn check_one(&self, index: usize, delegate: &Delegate) -> Result<(), Error> {
        let (config, attachment) = self.as_added(index, delegate)?;
        let network = config.network().map_err(internal)?;
        if index > 0 && network.version().is_some_and(|version| !version.has_check()) {
            return Ok(());
        }
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
}
