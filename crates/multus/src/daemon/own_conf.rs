//! Multus' own configuration comes from the node's file, not from the call (multus.md §3).
//!
//! Runtimes send the content of that file. But a network's plugin can call multus too, with a configuration by the
//! network's author. So the daemon takes only the keys from a call that runtimes fill in.

use super::Daemon;
use crate::cluster::ClusterView;
use crate::names;
use crate::networks::net_conf::{self, MultusConfig};
use cni::Error;
use cni::error::code;
use cni::json::{self, Object};
use cni::names::key;
use std::fmt::Display;
use std::fs;
use std::sync::Mutex;

/// Keys that runtimes fill in.
const OF_THE_CALL: [&str; 3] = [key::CNI_VERSION, key::RUNTIME_CONFIG, key::PREV_RESULT];

/// The last usable content of the file.
#[derive(Debug, Default)]
pub(super) struct OwnFile(Mutex<Option<(Vec<u8>, Object)>>);

impl OwnFile {
    fn last(&self) -> Option<Object> {
        kube_kit::lock(&self.0).as_ref().map(|(_, own)| own.clone())
    }

    /// Multus' part of a text. Cached, because the text rarely changes.
    fn parsed(&self, text: Vec<u8>) -> Result<Object, json::Error> {
        let mut last = kube_kit::lock(&self.0);
        if let Some((_, own)) = last.as_ref().filter(|(known, _)| *known == text) {
            return Ok(own.clone());
        }
        let own = own_plugin(&text)?;
        *last = Some((text, own.clone()));
        Ok(own)
    }
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// The configuration for a runtime's call. Without a file on the node, the daemon uses the last one that it read.
    /// A daemon that never read one uses the call's own configuration, so that a runtime with a cached file can still
    /// delete its pods.
    pub(super) fn net_conf(&self, call: &[u8]) -> Result<MultusConfig, Error> {
        let call = Object::parse(call).map_err(|error| unusable(&net_conf::Error::Parse(error)))?;
        // A thin-mode process has no file of its own.
        let own = match self.config.one_shot {
            Some(_) => None,
            None => self.own().ok().or_else(|| self.own_file.last()),
        };
        let Some(mut own) = own else {
            return self.complete(call);
        };
        for key in OF_THE_CALL {
            match call.get(key) {
                Some(value) => own.set_raw(key, value.to_owned()),
                None => own.remove(key),
            }
        }
        self.complete(own)
    }

    /// The configuration for a `/delegate` call, which sends none. It holds the state directory and the network that
    /// every pod gets.
    pub(super) fn own_conf(&self) -> Result<MultusConfig, Error> {
        self.complete(self.own()?)
    }

    fn own(&self) -> Result<Object, Error> {
        let file = self.config.runtime_conf();
        let missing = |cause: &dyn Display| {
            Error::new(
                code::TRY_AGAIN_LATER,
                format!("Multus: no usable configuration at {}: {cause}", file.display()),
            )
        };
        let text = fs::read(&file).map_err(|error| missing(&error))?;
        self.own_file.parsed(text).map_err(|error| missing(&error))
    }

    /// Overlays the daemon's keys.
    fn complete(&self, own: Object) -> Result<MultusConfig, Error> {
        let object = net_conf::overlay(own, &self.config.object, self.config.manages_readiness());
        let mut config = MultusConfig::parse(&object).map_err(|error| unusable(&error))?;
        config.own.clone_from(&self.own);
        Ok(config)
    }
}

fn unusable(error: &net_conf::Error) -> Error {
    Error::new(code::INVALID_NETWORK_CONFIG, error.to_string())
}

/// Multus' own part of a configuration file. In a list, it inherits the keys that the runtime would pass to the
/// plugin.
fn own_plugin(text: &[u8]) -> Result<Object, json::Error> {
    let whole = Object::parse(text)?;
    let Some(plugins) = whole.get(key::PLUGINS) else {
        return Ok(whole);
    };
    let mut plugins: Vec<Object> = serde_json::from_str(plugins.get())?;
    let is_ours = |plugin: &Object| plugin.text(key::TYPE).as_deref() == Some(names::SHIM);
    let place = plugins.iter().position(is_ours).unwrap_or_default();
    if place >= plugins.len() {
        return Ok(whole);
    }
    let mut own = plugins.swap_remove(place);
    for key in [key::CNI_VERSION, key::NAME] {
        if let Some(value) = whole.get(key) {
            own.set_raw(key, value.to_owned());
        }
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str) -> String {
        own_plugin(text.as_bytes()).unwrap().to_json()
    }

    #[test]
    fn own_configuration_may_be_part_of_list() {
        let single = r#"{"cniVersion":"0.3.1","type":"multus-shim"}"#;
        assert_eq!(own(single), single);
        assert_eq!(
            own(
                r#"{"cniVersion":"1.0.0","name":"m","plugins":[{"type":"x"},{"type":"multus-shim","cniDir":"/d","n":9007199254740993}]}"#
            ),
            r#"{"type":"multus-shim","cniDir":"/d","n":9007199254740993,"cniVersion":"1.0.0","name":"m"}"#
        );
        assert_eq!(
            own(r#"{"plugins":[{"type":"multus"},{"type":"y"}]}"#),
            r#"{"type":"multus"}"#
        );
        assert_eq!(own(r#"{"plugins":[]}"#), r#"{"plugins":[]}"#);
        own_plugin(br#"{"plugins":7}"#).unwrap_err();
    }
}
