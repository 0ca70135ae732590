//! The definitions in `deploy/crds/` are the generated definitions.

use std::{env, fs, path::Path};

use serde::Serialize;

#[test]
fn definitions_in_deploy_are_fresh() {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    check(
        &crds.join("network-addons-config.crd.yaml"),
        &api::network_addons::crd().expect("a definition"),
    );
    check(
        &crds.join("network-attachment-definition.crd.yaml"),
        &api::net_attach_def::crd().expect("a definition"),
    );
    check(
        &crds.join("ipam-claim.crd.yaml"),
        &api::ipam_claim::crd().expect("a definition"),
    );
    check(
        &crds.join("operator-pki.crd.yaml"),
        &api::operator_pki::crd().expect("a definition"),
    );
    check(
        &crds.join("pod-network-connectivity-check.crd.yaml"),
        &api::connectivity_check::crd().expect("a definition"),
    );
    check(
        &crds.join("nmstate.crd.yaml"),
        &api::node_state::crd().expect("a definition"),
    );
    check(
        &crds.join("node-network-state.crd.yaml"),
        &api::node_state::network_state_crd().expect("a definition"),
    );
    check(
        &crds.join("node-network-configuration-policy.crd.yaml"),
        &api::node_state::policy_crd().expect("a definition"),
    );
    check(
        &crds.join("node-network-configuration-enactment.crd.yaml"),
        &api::node_state::enactment_crd().expect("a definition"),
    );
    check(
        &crds.join("network-config.crd.yaml"),
        &api::cluster_network::config::crd().expect("a definition"),
    );
    check(
        &crds.join("network-operator.crd.yaml"),
        &api::cluster_network::operator::crd().expect("a definition"),
    );
    check(
        &crds.join("cluster-operator.crd.yaml"),
        &api::cluster_network::cluster_operator::crd().expect("a definition"),
    );
    check(
        &crds.join("egress-router.crd.yaml"),
        &api::cluster_network::egress_router::crd().expect("a definition"),
    );
}

fn check(path: &Path, definition: &impl Serialize) {
    let fresh = serde_saphyr::to_string(definition).expect("YAML");
    if env::var_os("UPDATE_GENERATED").is_some() {
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, &fresh).expect("a written file");
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == fresh,
        "{} is stale: run the tests of this crate once with UPDATE_GENERATED=1, and review the difference",
        path.display()
    );
}
