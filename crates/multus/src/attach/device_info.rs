//! What is said about the device of an attachment, around the calls of its plugins (multus.md §5.6).

use super::Attacher;
use crate::delegate::{DEVICE_INFO_FILE, Delegate};
use cni::chain::{Attachment, Runner};
use serde_json::value::RawValue;
use std::path::PathBuf;

impl<R: Runner> Attacher<'_, R> {
    /// Tells the plugin what is known of its device. What goes wrong with that never fails the attachment.
    pub(super) fn hand_over_device(&self, delegate: &Delegate, attachment: &Attachment) {
        if let Some(file) = self.device_info_file(attachment)
            && let (Some(resource), Some(device)) = (&delegate.resource_name, &delegate.device_id)
            && let Err(error) = self.config.own.device_info.hand_over(resource, device, &file)
        {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "a plugin is not told about its device");
        }
    }

    /// What the pod's status says about the device.
    pub(super) fn read_device_info(&self, attachment: &Attachment) -> Option<Box<RawValue>> {
        let file = self.device_info_file(attachment)?;
        self.config.own.device_info.read(&file).unwrap_or_else(|error| {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "the status says nothing about a device");
            None
        })
    }

    /// Forgets what was said about the device, whatever became of it.
    pub(super) fn remove_device_info(&self, attachment: &Attachment) {
        if let Some(file) = self.device_info_file(attachment)
            && let Err(error) = self.config.own.device_info.remove(&file)
        {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "what was said about a device stays");
        }
    }

    /// The device-info file that a plugin is told of, when it has a device.
    fn device_info_file(&self, attachment: &Attachment) -> Option<PathBuf> {
        let file = PathBuf::from(attachment.capability_args.text(DEVICE_INFO_FILE)?);
        self.config
            .own
            .device_info
            .is_of_attachment(&file)
            .then_some(file)
    }
}
