//! DEL: all networks in reverse order, whatever fails (multus.md §5.3).

use super::Attacher;
use crate::networks::delegate::{self, Config, Delegate};
use crate::sandbox::PodVerb;
use cni::Error;
use cni::cache::Entry;
use cni::chain::{Attachment, Runner};
use cni::error::{code, internal};

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

    /// The config and the arguments of a recorded network, completed from the result cache.
    pub(super) fn as_added(&self, index: usize, delegate: &Delegate) -> Result<(Config, Attachment), Error> {
        let mut attachment = self.attachment(index, delegate, false).map_err(internal)?;
        let mut config = delegate.config.clone();
        let name = config.name();
        // The chain itself handles a cache entry that cannot be read.
        if let Ok(Some(entry)) = self.cache().load(self.key(&name, &attachment.ifname)) {
            // Without the scratch file, another network may be the first.
            let is_master = index == 0 && attachment.ifname == self.sandbox.ifname;
            complete(is_master, &mut config, &mut attachment, entry).map_err(internal)?;
        }
        Ok((config, attachment))
    }

    pub(super) fn del_one(&self, index: usize, delegate: &Delegate) -> Result<(), Error> {
        let (mut config, attachment) = self.as_added(index, delegate)?;
        if config.chain().is_some() && config.cni_version().is_empty() {
            config
                .set("cniVersion", &self.config.cni_version)
                .map_err(internal)?;
        }
        let cache = self.cache();
        let name = config.name();
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

    /// Detaches a pod from `delegates`: those of its scratch file or of the result cache. The error's code tells the shim
    /// whether an attachment is left, for which it sends the call again.
    pub(crate) fn del(&self, delegates: &[Delegate]) -> Result<(), Error> {
        let errors = self.del_all(delegates);
        // A network that was never attached may fail every DEL.
        let is_left =
            self.config.own.repeats_dels && !errors.is_empty() && !self.cached_delegates().is_empty();
        let keep = (self.config.retry_delete_on_error || is_left)
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
            return Ok(());
        }
        let code = if is_left {
            code::TRY_AGAIN_LATER
        } else {
            code::INTERNAL
        };
        Err(Error::new(code, format!("errors: {}", texts.join(" / "))))
    }
}

/// Completes a delegate from the result cache: old scratch files hold lists without most of their keys, and no
/// scratch file holds port mappings and bandwidth.
fn complete(
    is_master: bool,
    config: &mut Config,
    attachment: &mut Attachment,
    entry: Entry,
) -> Result<(), delegate::Error> {
    if let Ok(cached) = Config::parse(&entry.config) {
        config.complete_from(&cached)?;
    }
    let called = std::mem::take(&mut attachment.capability_args);
    // The call has the runtime's values, which are those of the master. Another network may have requested its own.
    let (mut args, over) = if is_master {
        (entry.capability_args, called)
    } else {
        (called, entry.capability_args)
    };
    for (key, value) in over.iter() {
        args.set_raw(key, value.to_owned());
    }
    attachment.capability_args = args;
    Ok(())
}
