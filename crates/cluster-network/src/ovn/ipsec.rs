//! Which workloads encrypt the traffic between nodes (§7.8).

use api::cluster_network::operator::OvnKubernetesConfig;

/// What users want to be encrypted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Nothing.
    Disabled,
    /// Traffic that leaves the cluster, by configurations of their own.
    External,
    /// That, and all traffic between pods.
    Full,
}

impl Mode {
    /// What a configuration says. One without a mode is of an old version, and means all.
    pub fn of(config: &OvnKubernetesConfig) -> Self {
        match config.ipsec_config.as_ref().map(|ipsec| ipsec.mode.as_str()) {
            None | Some("Disabled") => Self::Disabled,
            Some("External") => Self::External,
            Some(_) => Self::Full,
        }
    }
}

/// Whether packets are encapsulated in UDP also where no NAT is found.
pub fn is_always_encapsulated(config: &OvnKubernetesConfig, platform: &str) -> bool {
    const DROPS_ESP: &str = "IBMCloud";
    let full = config.ipsec_config.as_ref().and_then(|ipsec| ipsec.full.as_ref());
    full.is_some_and(|full| full.encapsulation == "Always") || platform == DROPS_ESP
}

/// What is known about `ovnkube-node`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// Whether it is rolling out, or its status is about another generation.
    pub is_progressing: bool,
    /// Whether it says that it encrypts.
    pub says_so: bool,
    /// Whether it is of a version before 4.15, and encrypts.
    pub is_old_and_encrypts: bool,
}

/// What is known.
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are observed independently of each other"
)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// Nothing if there is no `ovnkube-node`.
    pub node: Option<Node>,
    /// Whether our configurations of machines exist for both roles.
    pub has_ours: bool,
    /// Whether users have configurations of machines for both roles.
    pub has_users: bool,
    /// Whether the control plane is hosted by another cluster.
    pub is_hosted: bool,
    /// Whether all machines have what is configured.
    pub are_machines_ready: bool,
    /// Whether the operator of machines works, and can do it.
    pub can_configure_machines: bool,
}

/// What is rendered.
#[allow(clippy::struct_excessive_bools, reason = "one for each object")]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Configurations of machines.
    pub machine_configs: bool,
    /// `DaemonSet` that drives the host's own service.
    pub host: bool,
    /// `DaemonSet` that brings a service along.
    pub containerized: bool,
    /// Whether both are left as they are: what they encrypt is to be switched off first.
    pub hold: bool,
    /// Whether OVN encrypts.
    pub ovn: bool,
}

/// Decides what is rendered.
pub fn decide(mode: Mode, facts: &Facts) -> Decision {
    let encrypts = facts
        .node
        .is_some_and(|node| node.is_progressing || node.says_so || node.is_old_and_encrypts);
    let active = encrypts && (facts.has_ours || facts.has_users || facts.is_hosted);
    let full = mode == Mode::Full;
    let daemon_set = active || full;
    Decision {
        machine_configs: (mode != Mode::Disabled || daemon_set)
            && !facts.is_hosted
            && !facts.has_users
            && (facts.has_ours || facts.can_configure_machines),
        host: daemon_set && !facts.is_hosted,
        containerized: daemon_set && (facts.is_hosted || !facts.are_machines_ready),
        hold: active && !full,
        ovn: full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn config(ipsec: &Value) -> OvnKubernetesConfig {
        serde_json::from_value(json!({ "ipsecConfig": ipsec })).expect("a configuration")
    }

    #[test]
    fn configuration_without_a_mode_means_all() {
        for (ipsec, mode) in [
            (json!(null), Mode::Disabled),
            (json!({ "mode": "Disabled" }), Mode::Disabled),
            (json!({}), Mode::Full),
            (json!({ "mode": "Full" }), Mode::Full),
            (json!({ "mode": "External" }), Mode::External),
        ] {
            assert_eq!(Mode::of(&config(&ipsec)), mode, "{ipsec}");
        }
        let always = config(&json!({ "mode": "Full", "full": { "encapsulation": "Always" } }));
        let auto = config(&json!({ "mode": "Full", "full": { "encapsulation": "Auto" } }));
        assert!(is_always_encapsulated(&always, "AWS"));
        assert!(!is_always_encapsulated(&auto, "AWS"));
        assert!(is_always_encapsulated(&auto, "IBMCloud"));
    }

    /// Machine configurations, host, containerized, hold, OVN.
    fn decided(mode: Mode, facts: Facts) -> [bool; 5] {
        let Decision {
            machine_configs,
            host,
            containerized,
            hold,
            ovn,
        } = decide(mode, &facts);
        [machine_configs, host, containerized, hold, ovn]
    }

    #[test]
    fn workloads_come_and_go_in_order() {
        let able = Facts {
            node: Some(Node::default()),
            can_configure_machines: true,
            ..Facts::default()
        };
        let encrypting = Node {
            says_so: true,
            ..Node::default()
        };
        let none = [false; 5];
        assert_eq!(decided(Mode::Disabled, able), none);
        // Both, until the machines are ready.
        assert_eq!(decided(Mode::Full, able), [true, true, true, false, true]);
        let unable = Facts {
            can_configure_machines: false,
            ..able
        };
        assert_eq!(decided(Mode::Full, unable), [false, true, true, false, true]);
        let ready = Facts {
            node: Some(encrypting),
            has_ours: true,
            are_machines_ready: true,
            ..able
        };
        assert_eq!(decided(Mode::Full, ready), [true, true, false, false, true]);
        // Switched off: first OVN, then the rest.
        assert_eq!(decided(Mode::Disabled, ready), [true, true, false, true, false]);
        let off = Facts {
            node: Some(Node::default()),
            ..ready
        };
        assert_eq!(decided(Mode::Disabled, off), none);
        assert_eq!(decided(Mode::External, off), [true, false, false, false, false]);
        let users = Facts {
            has_users: true,
            has_ours: false,
            ..able
        };
        assert_eq!(decided(Mode::Full, users), [false, true, true, false, true]);
        let hosted = Facts {
            is_hosted: true,
            ..able
        };
        assert_eq!(decided(Mode::Full, hosted), [false, false, true, false, true]);
        let old = Facts {
            node: Some(Node {
                is_old_and_encrypts: true,
                ..Node::default()
            }),
            ..ready
        };
        assert_eq!(decided(Mode::Full, old), [true, true, false, false, true]);
    }
}
