//! The device-info file of an attachment: written before ADD, read after it, removed by DEL (multus.md §5.6).

use super::Attacher;
use crate::networks::delegate::{DEVICE_INFO_FILE, Delegate};
use cni::chain::{Attachment, Runner};
use serde_json::value::RawValue;
use std::path::PathBuf;

impl<R: Runner> Attacher<'_, R> {
    /// Copies the device plugin's file for the CNI plugin. Errors are only logged: they never fail the attachment.
    pub(super) fn hand_over_device(&self, delegate: &Delegate, attachment: &Attachment) {
        if let Some(file) = self.device_info_file(attachment)
            && let (Some(resource), Some(device)) = (&delegate.resource_name, &delegate.device_id)
            && let Err(error) = self.config.own.device_info.hand_over(resource, device, &file)
        {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "cannot hand the device-info file to the plugin");
        }
    }

    /// The device-info for the pod's network status.
    pub(super) fn read_device_info(&self, attachment: &Attachment) -> Option<Box<RawValue>> {
        let file = self.device_info_file(attachment)?;
        self.config.own.device_info.read(&file).unwrap_or_else(|error| {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "cannot read the device-info file, the network status lacks it");
            None
        })
    }

    /// Removes the attachment's device-info file, even if DEL failed.
    pub(super) fn remove_device_info(&self, attachment: &Attachment) {
        if let Some(file) = self.device_info_file(attachment)
            && let Err(error) = self.config.own.device_info.remove(&file)
        {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "cannot remove the device-info file");
        }
    }

    /// The attachment's device-info file; `None` without a device.
    fn device_info_file(&self, attachment: &Attachment) -> Option<PathBuf> {
        let file = PathBuf::from(attachment.capability_args.text(DEVICE_INFO_FILE)?);
        self.config
            .own
            .device_info
            .is_of_attachment(&file)
            .then_some(file)
    }
}
