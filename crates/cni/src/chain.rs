//! The runtime's side: calls a network's plugins in order, each with the previous plugin's result (multus §10.3 to
//! §10.7).

use serde_json::value::RawValue;

use crate::args::CniArgs;
use crate::cache::{Cache, Entry, Key};
use crate::config::{NetworkConfig, NetworkList, ValidAttachment};
use crate::env::{Variables, Verb, is_identifier, validate_ifname};
use crate::error::{Error, code, internal};
use crate::exec::Invoker;
use crate::json::Object;
use crate::names::{CNI_ARGS, CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS, CNI_PATH, key};
use crate::result::CniResult;
use crate::version::Version;

/// The sandbox and interface of an attachment, and its arguments.
#[derive(Debug, Clone, Default)]
pub struct Attachment {
    /// The sandbox.
    pub container_id: String,
    /// Path of the sandbox's network namespace; empty when it is gone.
    pub netns: String,
    /// The interface in it.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: CniArgs,
    /// Capability arguments by name; a plugin gets those that its config declares.
    pub capability_args: Object,
}

/// Runs a plugin: as a program, in-process, or as a fake in tests.
pub trait Runner {
    /// Runs `plugin` with the `CNI_*` variables and the config on standard input; returns its standard output.
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error>;

    /// The value of `CNI_PATH` for plugins.
    fn path(&self) -> String;
}

impl Runner for Invoker {
    fn run(&self, plugin: &str, variables: &Variables, config: &[u8]) -> Result<Vec<u8>, Error> {
        Self::run(self, plugin, variables, config)
    }

    fn path(&self) -> String {
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.to_string_lossy()).collect();
        dirs.join(":")
    }
}

/// Calls networks by way of a runner and remembers results in a cache.
#[derive(Debug)]
pub struct Chain<'a, R> {
    /// Runs the plugins.
    pub runner: &'a R,
    /// Where results are kept.
    pub cache: &'a Cache,
}

impl<R: Runner> Chain<'_, R> {
    /// Attaches: every plugin in order; the first failure stops without any undo. The result is cached. Returns the
    /// last plugin's result.
    pub fn add(&self, network: &NetworkList, attachment: &Attachment) -> Result<CniResult, Error> {
        validate(network, attachment)?;
        let version = network_version(network)?;
        let mut previous: Option<(CniResult, Box<RawValue>)> = None;
        for plugin in &network.plugins {
            let raw = previous.as_ref().map(|(_, raw)| &**raw);
            let config = prepare(network, plugin, attachment, raw)?;
            let result = self
                .call(Verb::Add, plugin.plugin(), attachment, &config)
                .and_then(|printed| CniResult::parse(&printed, version))
                .map_err(|error| named(&error, network, plugin, "add"))?;
            let text = result
                .to_json(version)
                .and_then(|json| serde_json::value::to_raw_value(&json).map_err(internal));
            previous = Some((
                result,
                text.map_err(|error| named(&error, network, plugin, "add"))?,
            ));
        }
        let Some((result, raw)) = previous else {
            return Err(Error::internal(format!(
                "network \"{}\" has no plugins",
                network.name
            )));
        };
        self.cache
            .store(&Entry {
                network: network.name.clone(),
                container_id: attachment.container_id.clone(),
                ifname: attachment.ifname.clone(),
                config: network.text.clone().into_bytes(),
                netns: attachment.netns.clone(),
                args: attachment.args.clone(),
                capability_args: attachment.capability_args.clone(),
                result: Some(raw),
            })
            .map_err(|error| {
                Error::internal(format!(
                    "failed to set network \"{}\" cached result: {error}",
                    network.name
                ))
            })?;
        Ok(result)
    }

    /// Calls DEL of every plugin in reverse order. The first error stops and keeps the cache file; success removes
    /// it. From 0.4.0 on, the plugins get the cached result, unless the cache is unreadable.
    pub fn del(&self, network: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
        let version = network_version(network)?;
        let key = key_of(network, attachment);
        let previous = if version.has_check() {
            self.cached(key, version).ok().flatten()
        } else {
            None
        };
        for plugin in network.plugins.iter().rev() {
            let config = prepare(network, plugin, attachment, previous.as_deref())?;
            self.call(Verb::Del, plugin.plugin(), attachment, &config)
                .map_err(|error| named(&error, network, plugin, "delete"))?;
        }
        self.cache.remove(key).map_err(internal)
    }

    /// Calls CHECK of every plugin in order.
    pub fn check(&self, network: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
        let version = network_version(network)?;
        if !version.has_check() {
            return Err(Error::internal(format!(
                "configuration version \"{}\" does not support the CHECK command",
                network.version_text
            )));
        }
        if network.disable_check {
            return Ok(());
        }
        let previous = self.cached(key_of(network, attachment), version)?;
        for plugin in &network.plugins {
            let config = prepare(network, plugin, attachment, previous.as_deref())?;
            self.call(Verb::Check, plugin.plugin(), attachment, &config)
                .map_err(|error| named(&error, network, plugin, "check"))?;
        }
        Ok(())
    }

    /// Calls STATUS of every plugin in order and returns the first error unchanged. No call before 1.1.0.
    pub fn status(&self, network: &NetworkList) -> Result<(), Error> {
        if !network_version(network)?.has_gc_and_status() {
            return Ok(());
        }
        let nowhere = Attachment::default();
        for plugin in &network.plugins {
            let config = prepare(network, plugin, &nowhere, None)?;
            self.call(Verb::Status, plugin.plugin(), &nowhere, &config)?;
        }
        Ok(())
    }

    /// Detaches every cached attachment of the network that is not in `valid`, then (from 1.1.0) calls GC of each
    /// plugin, for attachments outside the cache. Errors are joined. Unreadable cache files are skipped.
    pub fn gc(&self, network: &NetworkList, valid: &[ValidAttachment]) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let version = network_version(network)?;
        let mut errors = Vec::new();
        for entry in self.cache.each().map_err(internal)?.filter_map(Result::ok) {
            let known = ValidAttachment {
                container_id: entry.container_id.clone(),
                ifname: entry.ifname.clone(),
            };
            if entry.network != network.name || valid.contains(&known) {
                continue;
            }
            let attachment = Attachment {
                container_id: entry.container_id,
                netns: entry.netns,
                ifname: entry.ifname,
                args: entry.args,
                capability_args: entry.capability_args,
            };
            if let Err(error) = self.del(network, &attachment) {
                errors.push(error.to_string());
            }
        }
        if version.has_gc_and_status() {
            let nowhere = Attachment::default();
            for plugin in &network.plugins {
                let mut config = prepare(network, plugin, &nowhere, None)?;
                config.set(key::VALID_ATTACHMENTS, &valid).map_err(internal)?;
                config.set(key::ATTACHMENTS, &valid).map_err(internal)?;
                if let Err(error) = self.call(Verb::Gc, plugin.plugin(), &nowhere, &config) {
                    errors.push(error.to_string());
                }
            }
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Error::internal(errors.join("; ")))
        }
    }

    fn cached(&self, key: Key<'_>, version: Version) -> Result<Option<Box<RawValue>>, Error> {
        let Some(entry) = self.cache.load(key).map_err(internal)? else {
            return Ok(None);
        };
        let Some(result) = entry.cni_result(version)? else {
            return Ok(None);
        };
        serde_json::value::to_raw_value(&result.to_json(version)?)
            .map(Some)
            .map_err(internal)
    }

    fn call(
        &self,
        verb: Verb,
        plugin: &str,
        attachment: &Attachment,
        config: &Object,
    ) -> Result<Vec<u8>, Error> {
        let mut variables: Variables = [
            (CNI_COMMAND, verb.as_str().to_owned()),
            (CNI_ARGS, attachment.args.to_string()),
            (CNI_PATH, self.runner.path()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        // Set even if empty (GC, STATUS), to hide the caller's own environment.
        variables.insert(CNI_CONTAINERID.to_owned(), attachment.container_id.clone());
        variables.insert(CNI_NETNS.to_owned(), attachment.netns.clone());
        variables.insert(CNI_IFNAME.to_owned(), attachment.ifname.clone());
        self.runner.run(plugin, &variables, config.to_json().as_bytes())
    }
}

fn key_of<'a>(network: &'a NetworkList, attachment: &'a Attachment) -> Key<'a> {
    Key {
        network: &network.name,
        container_id: &attachment.container_id,
        ifname: &attachment.ifname,
    }
}

fn network_version(network: &NetworkList) -> Result<Version, Error> {
    network
        .version()
        .ok_or_else(|| Version::unsupported(&network.version_text, &Version::ALL))
}

/// The config for a plugin call: the plugin's config with the network's name and version, the declared capability
/// arguments, and the previous result.
fn prepare(
    network: &NetworkList,
    plugin: &NetworkConfig,
    attachment: &Attachment,
    previous: Option<&RawValue>,
) -> Result<Object, Error> {
    let mut config = plugin.object.clone();
    let edit = |config: &mut Object| {
        if !network.single {
            config.set(key::NAME, &network.name)?;
            config.set(key::CNI_VERSION, &network.version_text)?;
        }
        let mut runtime = Object::default();
        for (name, value) in attachment
            .capability_args
            .iter()
            .filter(|(name, _)| plugin.has_capability(name))
        {
            runtime.set_raw(name, value.to_owned());
        }
        if !runtime.is_empty() {
            config.set(key::RUNTIME_CONFIG, &runtime)?;
        }
        if let Some(previous) = previous {
            config.set_raw(key::PREV_RESULT, previous.to_owned());
        }
        Ok::<(), crate::json::Error>(())
    };
    edit(&mut config).map_err(internal)?;
    Ok(config)
}

/// Prefixes an error with the plugin of a list that failed. Keeps code and details.
fn named(error: &Error, network: &NetworkList, plugin: &NetworkConfig, doing: &str) -> Error {
    if network.single {
        return error.clone();
    }
    let name = match plugin.name() {
        "" => String::new(),
        name => format!(" name=\"{name}\""),
    };
    error.prefixed(&format!(
        "plugin type=\"{}\"{name} failed ({doing})",
        plugin.plugin()
    ))
}

/// Validates the names of an ADD before any plugin is called.
pub fn validate(network: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
    if attachment.container_id.is_empty() {
        return Err(Error::new(code::UNKNOWN_CONTAINER, "missing containerID"));
    }
    crate::env::validate_container_id(&attachment.container_id)?;
    if network.name.is_empty() {
        return Err(Error::new(code::INVALID_NETWORK_CONFIG, "missing network name:"));
    }
    if !is_identifier(&network.name) {
        return Err(Error::new(
            code::INVALID_NETWORK_CONFIG,
            "invalid characters found in network name",
        )
        .with_details(&network.name));
    }
    validate_ifname(&attachment.ifname)
}

#[cfg(test)]
mod tests;
