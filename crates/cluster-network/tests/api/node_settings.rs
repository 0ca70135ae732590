//! Settings of nodes and of the operator itself.

use program::logging::{self, Format};
use serde_json::json;
use tracing::Level;

use crate::stage::{MULTUS, OPERATOR, Stage, until};

const ALLOW_LIST: &str = "/api/v1/namespaces/openshift-multus/configmaps/cni-sysctl-allowlist";

// cluster-network#87-88
#[test]
fn sysctl_allow_list_is_created_once_and_never_changed() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Weft");
    let lines = |list: &serde_json::Value| {
        list["data"]["allowlist.conf"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let default = lines(&stage.there(ALLOW_LIST));
    assert_eq!(
        default.lines().next(),
        Some("^net.ipv4.conf.IFNAME.accept_redirects$")
    );
    assert_eq!(default.lines().count(), 14);

    let edited = "^net.core.somaxconn$\n";
    stage.change(ALLOW_LIST, &json!({ "data": { "allowlist.conf": edited } }));
    // Triggers a reconciliation of all objects.
    stage.remove(MULTUS);
    stage.there(MULTUS);
    assert_eq!(lines(&stage.there(ALLOW_LIST)), edited);

    stage.remove(ALLOW_LIST);
    assert_eq!(lines(&stage.there(ALLOW_LIST)), default);
}

// cluster-network#89, cluster-network#97
#[test]
fn operator_log_level_changes_at_run_time() {
    logging::start(Format::Text, "error");
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Weft");
    // The first edit must not come before the operator has written the defaults.
    stage.there(OPERATOR);
    let levels = || {
        [
            tracing::enabled!(Level::INFO),
            tracing::enabled!(Level::DEBUG),
            tracing::enabled!(Level::TRACE),
        ]
    };
    for (level, expected) in [
        ("Debug", [true, true, false]),
        ("TraceAll", [true, true, true]),
        ("Normal", [false, false, false]),
    ] {
        stage.change(OPERATOR, &json!({ "spec": { "operatorLogLevel": level } }));
        until(level, || {
            let found = levels();
            if found == expected {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        });
    }
    // The log level applies to an unmanaged configuration too.
    let patch = json!({ "spec": { "managementState": "Unmanaged", "operatorLogLevel": "Debug" } });
    stage.change(OPERATOR, &patch);
    until("debug lines of an unmanaged configuration", || match levels() {
        [_, true, _] => Ok(()),
        found => Err(format!("{found:?}")),
    });
    logging::set_level(None);
}
