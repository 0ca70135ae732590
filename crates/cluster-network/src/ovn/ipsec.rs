//! Decides which workloads encrypt the traffic between nodes (§7.8).

use api::cluster_network::operator::OvnKubernetesConfig;

/// Traffic that the spec selects for encryption.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// No traffic.
    Disabled,
    /// Traffic that leaves the cluster, with configurations of the users.
    External,
    /// Traffic that leaves the cluster, and all traffic between pods.
    Full,
}

impl Mode {
    /// The mode of a configuration. An empty mode comes from an old version, and means `Full`.
    pub fn of(config: &OvnKubernetesConfig) -> Self {
        match config.ipsec_config.as_ref().map(|ipsec| ipsec.mode.as_str()) {
            None | Some("Disabled") => Self::Disabled,
            Some("External") => Self::External,
            Some(_) => Self::Full,
        }
    }
}

/// True if packets are encapsulated in UDP even without NAT.
pub fn is_always_encapsulated(config: &OvnKubernetesConfig, platform: &str) -> bool {
    const DROPS_ESP: &str = "IBMCloud";
    let full = config.ipsec_config.as_ref().and_then(|ipsec| ipsec.full.as_ref());
    full.is_some_and(|full| full.encapsulation == "Always") || platform == DROPS_ESP
}

/// Observed state of `ovnkube-node`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// True while the rollout is in progress, or while the status is stale.
    pub is_progressing: bool,
    /// True with the annotation of encryption.
    pub says_so: bool,
    /// True for a version before 4.15 that encrypts.
    pub is_old_and_encrypts: bool,
}

/// Observed state that decides the encryption.
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are observed independently of each other"
)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// State of `ovnkube-node`. `None` if the `DaemonSet` does not exist.
    pub node: Option<Node>,
    /// True if machine configurations of the operator exist for both roles.
    pub has_ours: bool,
    /// True if machine configurations of users exist for both roles.
    pub has_users: bool,
    /// True if another cluster hosts the control plane.
    pub is_hosted: bool,
    /// True if all machines have the machine configurations.
    pub are_machines_ready: bool,
    /// True if the machine config operator is available and new enough.
    pub can_configure_machines: bool,
}

/// Objects to render.
#[allow(clippy::struct_excessive_bools, reason = "one for each object")]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Machine configurations.
    pub machine_configs: bool,
    /// `DaemonSet` that configures the service of the host.
    pub host: bool,
    /// `DaemonSet` that contains the service.
    pub containerized: bool,
    /// True if both `DaemonSet`s stay unchanged: OVN has to stop the encryption first.
    pub hold: bool,
    /// True if OVN encrypts.
    pub ovn: bool,
}

/// Decides which objects are rendered.
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

    /// The decision, as machine configurations, host, containerized, hold, OVN.
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
        // Both `DaemonSet`s exist until the machines are ready.
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
        // `IPsec` is disabled: OVN stops first, then the rest.
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
