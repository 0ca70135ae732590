//! Conditions for the webhook that guards the identity of nodes (§17.2): without its server, the webhook would keep
//! every node from reporting its state.

/// State of the webhook's server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Server {
    /// `ConfigMap` `kube-system/bootstrap` reports the end of the installation.
    pub is_bootstrapped: bool,
    /// The `ConfigMap` with the certificate authority of the server exists.
    pub has_authority: bool,
    /// The `DaemonSet` of the server is rolled out.
    pub is_rolled_out: bool,
}

/// Action for the webhook's configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Webhook {
    /// Apply the configuration.
    Apply,
    /// Leave the configuration unchanged: neither create nor delete it (`create-wait`).
    Hold,
}

/// Decides the action for the webhook's configuration.
pub fn webhook(server: Server) -> Webhook {
    let Server {
        is_bootstrapped,
        has_authority,
        is_rolled_out,
    } = server;
    if is_bootstrapped && has_authority && is_rolled_out {
        Webhook::Apply
    } else {
        Webhook::Hold
    }
}

/// True if the feature is enabled: `ConfigMap` `network-node-identity` has no value for `enabled`, or the value `true`.
pub fn is_enabled(enabled: Option<&str>) -> bool {
    enabled.is_none_or(|enabled| enabled == "true")
}

/// True if the status of `ConfigMap` `kube-system/bootstrap` means a complete installation.
pub fn is_bootstrapped(status: Option<&str>) -> bool {
    status == Some("complete")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_waits_for_all_that_it_stands_on() {
        for bits in 0..8_u8 {
            let has = |bit: u8| bits & (1 << bit) != 0;
            let server = Server {
                is_bootstrapped: is_bootstrapped(has(0).then_some("complete")),
                has_authority: has(1),
                is_rolled_out: has(2),
            };
            let expected = if bits == 7 { Webhook::Apply } else { Webhook::Hold };
            assert_eq!(webhook(server), expected, "{server:?}");
        }
        assert!(!is_bootstrapped(Some("running")));
    }

    #[test]
    fn feature_is_on_unless_it_is_switched_off() {
        for (enabled, expected) in [
            (None, true),
            (Some("true"), true),
            (Some("false"), false),
            (Some(""), false),
            (Some("yes"), false),
        ] {
            assert_eq!(is_enabled(enabled), expected, "{enabled:?}");
        }
    }
}
