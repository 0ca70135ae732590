//! kube-proxy: validation of its settings, and its configuration (§9).

mod configuration;

use std::collections::BTreeMap;

use api::cluster_network::operator::{NetworkSpec, ProxyConfig};
use kube_kit::duration::GoDuration;

use crate::{cidr, messages, names};

/// Arguments of kube-proxy, each with one value.
pub type Arguments = BTreeMap<String, String>;

/// Arguments with all their values. The last value of a list applies.
type Lists = BTreeMap<String, Vec<String>>;

/// Ports of the probes: the default, and the only other allowed value.
const HEALTH_PORT: &str = "10255";
const OTHER_HEALTH_PORT: &str = "10256";
/// Port of the metrics within the pod.
const INNER_METRICS_PORT: &str = "29102";
/// Ports of the metrics: the default, and the only other allowed value.
const METRICS_PORT: u16 = 9102;
const OTHER_METRICS_PORT: u16 = 9101;

/// All errors in the settings of kube-proxy (§9.1).
pub fn errors(spec: &NetworkSpec) -> Vec<String> {
    let Some(config) = &spec.kube_proxy_config else {
        return Vec::new();
    };
    if spec.default_network.kind == names::OVN_KUBERNETES {
        return if is_open(config) {
            Vec::new()
        } else {
            vec![r#"network type "OVNKubernetes" does not allow specifying kube-proxy options"#.to_owned()]
        };
    }
    let mut errors = Vec::new();
    let period = &config.iptables_sync_period;
    if !period.is_empty()
        && let Err(error) = GoDuration::parse(period)
    {
        errors.push(format!("IptablesSyncPeriod is not a valid duration ({error})"));
    }
    if !config.bind_address.is_empty() && !cidr::is_address(&config.bind_address) {
        errors.push("BindAddress must be a valid IP address".to_owned());
    }
    let is_only = |argument: &str, allowed: Option<&str>| match config.proxy_arguments.get(argument) {
        None => true,
        Some(values) => allowed.is_some_and(|allowed| matches!(values.as_slice(), [one] if one == allowed)),
    };
    for (argument, allowed) in [
        ("metrics-port", Some("9101")),
        ("healthz-port", Some(OTHER_HEALTH_PORT)),
        ("feature-gates", None),
    ] {
        if !is_only(argument, allowed) {
            errors.push(format!("kube-proxy --{argument} cannot be overridden"));
        }
    }
    errors
}

/// True if a configuration has only defaults.
fn is_open(config: &ProxyConfig) -> bool {
    config.iptables_sync_period.is_empty()
        && config.proxy_arguments.is_empty()
        && ["", "0.0.0.0", "::"].contains(&config.bind_address.as_str())
}

/// Merges layers of arguments. A later list replaces an earlier one unless it is empty, and the last value of a list
/// applies.
fn merge(layers: &[&Lists]) -> Arguments {
    let mut merged = Arguments::new();
    for (name, values) in layers.iter().copied().flatten() {
        if let Some(last) = values.last() {
            merged.insert(name.clone(), last.clone());
        }
    }
    merged
}

fn lists(pairs: &[(&str, &str)]) -> Lists {
    let entry = |(name, value): &(&str, &str)| ((*name).to_owned(), vec![(*value).to_owned()]);
    pairs.iter().map(entry).collect()
}

/// Settings of the kube-proxy pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Configuration file, as YAML.
    pub file: String,
    /// Port of the probes.
    pub health_port: u16,
    /// Port of the metrics, for clients with the right to read them.
    pub metrics_port: u16,
}

impl Proxy {
    /// The settings from a configuration with defaults.
    ///
    /// # Errors
    /// If an argument is unknown or has an invalid value. The message names all of them.
    pub fn of(spec: &NetworkSpec) -> Result<Self, String> {
        let config = spec.kube_proxy_config.clone().unwrap_or_default();
        let mut own = lists(&[("bind-address", &config.bind_address)]);
        if let [only] = spec.cluster_network.as_slice() {
            own.insert("cluster-cidr".to_owned(), vec![only.cidr.clone()]);
        }
        if !config.iptables_sync_period.is_empty() {
            own.insert(
                "iptables-sync-period".to_owned(),
                vec![config.iptables_sync_period.clone()],
            );
        }
        let defaults = lists(&[
            ("metrics-bind-address", "0.0.0.0"),
            ("healthz-port", HEALTH_PORT),
            ("proxy-mode", "iptables"),
        ]);
        let overrides = lists(&[("metrics-port", INNER_METRICS_PORT)]);
        let arguments = merge(&[&own, &defaults, &config.proxy_arguments, &overrides]);
        let wanted = |name: &str, value: &str| {
            let values = config.proxy_arguments.get(name);
            values
                .and_then(|values| values.last())
                .is_some_and(|last| last == value)
        };
        let file = configuration::file(&arguments).map_err(|errors| messages::invalid_kube_proxy(&errors))?;
        Ok(Self {
            file,
            health_port: if wanted("healthz-port", OTHER_HEALTH_PORT) {
                10256
            } else {
                10255
            },
            metrics_port: if wanted("metrics-port", "9101") {
                OTHER_METRICS_PORT
            } else {
                METRICS_PORT
            },
        })
    }
}

#[cfg(test)]
mod tests;
