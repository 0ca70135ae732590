//! The definitions of the operator's own kinds.

use serde_json::json;

use crate::{
    metrics,
    stage::{ACCOUNT, KUBE_PROXY, MULTUS, OPERATOR, POD_NETWORK, Stage, install_definitions, until},
};

// cluster-network#203
#[test]
fn operator_waits_for_definitions_that_are_installed_after_it() {
    let stage = Stage::without_definitions();
    let mark = stage.mark();
    let (_operator, address) = stage.operator_with_probes();
    let readiness = || metrics::get(address, "/readyz", None).map(|(code, _)| code);
    let lists = |uri: &str| {
        let requests = stage.requests_of(ACCOUNT, mark);
        requests.iter().filter(|it| it.uri.starts_with(uri)).count()
    };
    // A second attempt shows that the first one did not end the operator.
    until("two attempts", || {
        match lists("/apis/operator.openshift.io/v1/networks") {
            0 | 1 => Err("too few"),
            _ => Ok(()),
        }
    });
    assert_eq!(readiness(), Ok(503));
    let writes: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| !["get", "list"].contains(&it.verb.as_str()))
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");

    install_definitions(&stage);
    stage.configure("Weft");
    for path in [OPERATOR, MULTUS, POD_NETWORK, KUBE_PROXY] {
        stage.there(path);
    }
    until("readiness", || match readiness() {
        Ok(200) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // It watches the kinds from now on.
    stage.change(OPERATOR, &json!({ "spec": { "deployKubeProxy": false } }));
    stage.gone(KUBE_PROXY);
}
