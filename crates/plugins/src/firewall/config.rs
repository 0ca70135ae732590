//! The config of `firewall`.

use cni::{Error, json, plugin::Call};
use serde::{Deserialize, Serialize};

use crate::{
    config::read_config,
    names::firewall::{ADMIN, ZONE},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    backend: String,
    #[serde(rename = "iptablesAdminChainName")]
    admin_chain: String,
    firewalld_zone: String,
    ingress_policy: String,
}

/// The backend of the accept rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Backend {
    /// nftables, over netlink.
    Nftables,
    /// The programs `iptables` and `ip6tables`.
    Iptables,
    /// The firewalld daemon.
    Firewalld,
}

/// The permitted senders to pods of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// All senders.
    Open,
    /// All senders except pods of other bridges with a policy.
    SameBridge,
    /// Like [`Policy::SameBridge`], without pods of the same bridge.
    Isolated,
}

impl Policy {
    fn named(name: &str) -> Option<Self> {
        match name {
            "" | "open" => Some(Policy::Open),
            "same-bridge" => Some(Policy::SameBridge),
            "isolated" => Some(Policy::Isolated),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Policy::Open => "open",
            Policy::SameBridge => "same-bridge",
            Policy::Isolated => "isolated",
        }
    }
}

/// A validated config.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// The configured backend. Unknown names are ignored.
    pub(super) backend: Option<Backend>,
    /// The chain for the administrator's own rules.
    pub(super) admin_chain: String,
    /// firewalld: the zone.
    pub(super) zone: String,
    pub(super) policy: Policy,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

impl Config {
    /// Reads and validates a config.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        Config::new(read_config(call)?)
    }

    fn new(wire: Wire) -> Result<Self, Error> {
        let policy = Policy::named(&wire.ingress_policy)
            .ok_or_else(|| Error::internal(format!("unknown ingress policy: \"{}\"", wire.ingress_policy)))?;
        let or = |text: String, default: &str| {
            if text.is_empty() { default.to_owned() } else { text }
        };
        Ok(Config {
            backend: match wire.backend.as_str() {
                "nftables" => Some(Backend::Nftables),
                "iptables" => Some(Backend::Iptables),
                "firewalld" => Some(Backend::Firewalld),
                _ => None,
            },
            admin_chain: or(wire.admin_chain, ADMIN),
            zone: or(wire.firewalld_zone, ZONE),
            policy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // cni-plugins#52
    #[test]
    fn missing_keys_have_upstreams_defaults() {
        let read = |config: &str| Config::new(json::from_str(config).unwrap());
        let config = read("{}").unwrap();
        assert_eq!(
            config,
            Config {
                backend: None,
                admin_chain: "CNI-ADMIN".into(),
                zone: "trusted".into(),
                policy: Policy::Open,
            }
        );
        for (name, policy) in [
            ("open", Policy::Open),
            ("same-bridge", Policy::SameBridge),
            ("isolated", Policy::Isolated),
        ] {
            let config = read(&format!(r#"{{"ingressPolicy":"{name}"}}"#)).unwrap();
            assert_eq!((config.policy, config.policy.name()), (policy, name));
        }
        let error = read(r#"{"ingresspolicy":"closed"}"#).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (999, "unknown ingress policy: \"closed\"")
        );
        assert_eq!(
            read(r#"{"backend":"firewalld"}"#).unwrap().backend,
            Some(Backend::Firewalld)
        );
        assert_eq!(read(r#"{"backend":"other"}"#).unwrap().backend, None);
    }
}
