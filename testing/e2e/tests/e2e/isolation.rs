//! Networks of other namespaces, where the configuration isolates namespaces.

use serde_json::json;

use crate::components::Components;
use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::Stage;

/// Annotation of multus' pods.
const ANNOTATION: &str = "networkaddonsoperator.network.kubevirt.io/multus-isolation";

// operands#36
#[test]
fn network_of_another_namespace_is_refused_until_isolation_ends() {
    let Some(stage) = Stage::enter() else { return };
    let [own, other, shared] =
        ["e2e-own", "e2e-other", "e2e-shared"].map(|name| TestNamespace::create(&stage, name));
    for namespace in [&own, &other, &shared] {
        namespace.apply(&bridge_network("lan", "br1"));
    }
    let is_isolated = || {
        let set = stage.daemonset("multus");
        !set["spec"]["template"]["metadata"]["annotations"][ANNOTATION].is_null()
    };

    let spec = json!({ "multus": { "namespaceIsolation": true, "globalNamespaces": ["e2e-shared"] } });
    let isolated = Components::deploy(&stage, &spec, &[]);
    stage.wait("multus with isolation", || is_isolated().then_some(()));
    stage.available_on_all_nodes(&["multus"]);
    let element =
        |namespace: &str, address: &str| json!({ "name": "lan", "namespace": namespace, "ips": [address] });
    let allowed = json!([
        element("e2e-own", "10.77.21.1/24"),
        element("e2e-shared", "10.77.22.1/24"),
    ]);
    own.apply(&pod("allowed", None, &allowed));
    let refused = json!([element("e2e-other", "10.77.23.1/24")]);
    own.apply(&pod("refused", None, &refused));
    own.ready("allowed");
    own.wait_for_event(
        "refused",
        "FailedCreatePodSandBox",
        "pod is in namespace e2e-own but refers to target namespace e2e-other",
    );

    drop(isolated);
    stage.wait("multus without isolation", || (!is_isolated()).then_some(()));
    stage.available_on_all_nodes(&["multus"]);
    own.ready("refused");
}
