//! DEL: all networks in reverse order, whatever fails (multus.md §5.3).

use super::Attacher;
use crate::networks::delegate::{self, Config, Delegate};
use crate::sandbox::PodVerb;
use cni::Error;
use cni::cache::Entry;
use cni::chain::{Attachment, Runner};
use cni::error::internal;
use cni::json::Object;

impl<R: Runner> Attacher<'_, R> {
    /// Detaches all networks in reverse order. An error does not stop the others; returns the errors by network.
    pub(super) fn del_all(&self, delegates: &[Delegate]) -> Vec<(String, Error)> {
        let mut errors = Vec::new();
        for (index, delegate) in delegates.iter().enumerate().rev() {
            if let Err(error) = self.del_one(index, delegate) {
                errors.push((delegate.config.name(), error));
            }
        }
        errors
    }

    pub(super) fn del_one(&self, index: usize, delegate: &Delegate) -> Result<(), Error> {
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
}

/// Completes a delegate from the result cache: old scratch files hold lists without most of their keys, and no
/// scratch file holds port mappings and bandwidth.
fn complete(config: &mut Config, attachment: &mut Attachment, entry: Entry) -> Result<(), delegate::Error> {
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
