//! The config of the mirror plugins (cni-plugins §10.8).

use std::collections::HashMap;

use cni::{Error, json, plugin::Call};
use serde::Deserialize;

use crate::{
    config::read_config,
    messages::{OVS_MIRROR_IDLE, OVS_NO_BRIDGE_NAME},
    ovs::{flat_file, socket},
};

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Wire {
    bridge: String,
    socket_file: String,
    configuration_path: String,
    mirrors: Vec<Mirror>,
}

/// A side of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The source of the copies.
    Producer,
    /// The receiver of the copies.
    Consumer,
}

/// A configured mirror.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Mirror {
    pub(super) name: String,
    /// Copies the producer's packets to the switch.
    pub(super) ingress: bool,
    /// Copies the producer's packets from the switch.
    pub(super) egress: bool,
}

/// A config before the flat file is applied.
#[derive(Debug, Clone)]
pub(super) struct Config {
    wire: Wire,
    mirrors: Vec<Mirror>,
}

/// The resolved config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) bridge: String,
    /// The database's address.
    pub(super) socket: String,
    /// The mirrors, with distinct names.
    pub(super) mirrors: Vec<Mirror>,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

impl Config {
    /// Parses and validates a config. Does not access the node.
    pub(super) fn read(call: &Call, role: Role) -> Result<Self, Error> {
        Config::new(read_config(call)?, role)
    }

    fn new(wire: Wire, role: Role) -> Result<Self, Error> {
        let mut mirrors: Vec<Mirror> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for mirror in &wire.mirrors {
            if mirror.name.is_empty() {
                return Err(Error::internal("a mirror has no name"));
            }
            if role == Role::Producer && !mirror.ingress && !mirror.egress {
                return Err(Error::internal(OVS_MIRROR_IDLE));
            }
            let place = places.get(&mirror.name).copied();
            if let Some(known) = place.and_then(|place| mirrors.get_mut(place)) {
                known.ingress |= mirror.ingress;
                known.egress |= mirror.egress;
            } else {
                places.insert(mirror.name.clone(), mirrors.len());
                mirrors.push(mirror.clone());
            }
        }
        Ok(Config { wire, mirrors })
    }

    /// Applies the defaults of the flat file and resolves the target.
    pub(super) fn complete(mut self) -> Result<Target, Error> {
        if let Some(file) = flat_file::read::<Wire>(&self.wire.configuration_path)? {
            for (own, other) in [
                (&mut self.wire.bridge, file.bridge),
                (&mut self.wire.socket_file, file.socket_file),
            ] {
                if own.is_empty() {
                    *own = other;
                }
            }
        }
        if self.wire.bridge.is_empty() {
            return Err(Error::internal(OVS_NO_BRIDGE_NAME));
        }
        Ok(Target {
            bridge: self.wire.bridge,
            socket: socket(self.wire.socket_file),
            mirrors: self.mirrors,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn mirrors(config: &str, role: Role) -> Result<Vec<Mirror>, String> {
        let config = Config::new(json::from_str(config).unwrap(), role);
        config.map(|config| config.mirrors).map_err(|error| error.msg)
    }

    // cni-plugins#61
    #[test]
    fn producer_without_direction_is_rejected() {
        let idle = r#"{"mirrors":[{"name":"m"}]}"#;
        assert_eq!(
            mirrors(idle, Role::Producer).unwrap_err(),
            "a mirror producer must have either a ingress or an egress or both"
        );
        assert_eq!(mirrors(idle, Role::Consumer).unwrap().len(), 1);
        assert_eq!(
            mirrors(r#"{"mirrors":[{"ingress":true}]}"#, Role::Producer).unwrap_err(),
            "a mirror has no name"
        );
    }

    #[test]
    fn duplicate_mirrors_are_merged() {
        let twice = r#"{"mirrors":[{"name":"m","ingress":true},{"name":"m","Egress":true}]}"#;
        let both = Mirror {
            name: "m".into(),
            ingress: true,
            egress: true,
        };
        assert_eq!(mirrors(twice, Role::Producer), Ok(vec![both]));
    }

    #[test]
    fn many_mirrors_are_merged_in_little_time() {
        // cni-plugins#90
        let mirror = |number: usize| Mirror {
            name: format!("a mirror with a long common name {number}"),
            ingress: true,
            egress: false,
        };
        let wire = Wire {
            mirrors: (0..50_000).chain(0..50_000).map(mirror).collect(),
            ..Wire::default()
        };
        let started = Instant::now();
        assert_eq!(Config::new(wire, Role::Producer).unwrap().mirrors.len(), 50_000);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
