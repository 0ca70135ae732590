//! When the webhook that guards the identity of nodes may be applied (§17.2): a webhook without its server would keep every
//! node from reporting its state.

/// What there is of the webhook's server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Server {
    /// `ConfigMap` `kube-system/bootstrap` says that the cluster has been brought up.
    pub is_bootstrapped: bool,
    /// The `ConfigMap` with the authority of the server's certificate exists.
    pub has_authority: bool,
    /// The `DaemonSet` of the server is rolled out.
    pub is_rolled_out: bool,
}

/// What becomes of the webhook's configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Webhook {
    /// It is applied.
    Apply,
    /// It is left as it is: not created, and not removed if it exists (`create-wait`).
    Hold,
}

/// Whether the webhook's configuration is applied.
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

/// Whether the feature is on: it is unless `ConfigMap` `network-node-identity` says anything but `true` for `enabled`.
pub fn is_enabled(enabled: Option<&str>) -> bool {
    enabled.is_none_or(|enabled| enabled == "true")
}

/// Whether a `ConfigMap` `kube-system/bootstrap` says that the cluster has been brought up.
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
