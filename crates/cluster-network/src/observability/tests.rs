use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::{Observed, Olm, Record, State, Step, awaited, pause, topology, wish};

const NAME: &str = "netobserv-operator";
/// Beginning of texts about an existing installation.
const CHECK: &str = "Failed to check Network Observability Operator status: ";

fn deployed(deployed: Option<bool>) -> Record {
    Record {
        deployed,
        ..Record::default()
    }
}

// cluster-network#194
#[rstest]
#[case("", Some("HighlyAvailable"), true)]
#[case("", Some("External"), true)]
#[case("", Some("SingleReplica"), false)]
#[case("", None, false)]
#[case("InstallAndEnable", Some("HighlyAvailable"), true)]
#[case("InstallAndEnable", Some("SingleReplica"), true)]
#[case("InstallAndEnable", None, true)]
#[case("NoAction", Some("HighlyAvailable"), false)]
fn policy_and_topology_decide(#[case] policy: &str, #[case] topology: Option<&str>, #[case] expected: bool) {
    for (before, has_gate, expected) in [
        (None, true, expected),
        (Some(false), true, expected),
        (None, false, false),
        // Once for all, also with InstallAndEnable.
        (Some(true), true, false),
    ] {
        let wish = wish(policy, has_gate, topology, &deployed(before));
        assert_eq!(wish, Ok(expected), "{before:?} {has_gate}");
    }
}

// cluster-network#195
#[test]
fn unknown_policy_installs_nothing() {
    let error = "spec.networkObservability.installationPolicy \"Install\" of network.config.openshift.io \
                 cluster is not InstallAndEnable or NoAction";
    let wish = |has_gate, record| wish("Install", has_gate, Some("HighlyAvailable"), &record);
    assert_eq!(wish(true, deployed(None)), Err(error.to_owned()));
    assert_eq!(wish(false, deployed(None)), Ok(false));
    assert_eq!(wish(true, deployed(Some(true))), Ok(false));
}

// cluster-network#199
#[test]
fn record_is_that_of_a_written_status() {
    let operator = |conditions: Value, state: &str| {
        Record::of(&json!({ "spec": { "managementState": state }, "status": { "conditions": conditions } }))
    };
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    let degraded = condition("Degraded", "False");
    assert_eq!(Record::of(&json!({})), Record::default());
    for (status, expected) in [
        ("True", Some(true)),
        ("False", Some(false)),
        ("Unknown", Some(false)),
    ] {
        let ours = condition("NetworkObservabilityDeployed", status);
        let record = operator(json!([degraded, ours]), "Managed");
        let expected = Record {
            has_status: true,
            ..deployed(expected)
        };
        assert_eq!(record, expected);
    }
    let record = operator(json!([degraded]), "Unmanaged");
    assert!(record.is_unmanaged && record.has_status && record.deployed.is_none());
    let infrastructure = json!({ "status": { "controlPlaneTopology": "SingleReplica" } });
    assert_eq!(topology(&infrastructure), "SingleReplica");
}

fn failed(text: &str) -> Olm {
    Olm::Failed(format!("{CHECK}{text}"))
}

fn pending(text: &str) -> Olm {
    Olm::Pending(format!("waiting for {text}"))
}

// cluster-network#197
#[test]
fn extension_is_read_from_the_conditions_of_olm() {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let mut condition = json!({ "type": kind, "status": status });
        condition["reason"] = json!(reason);
        condition["message"] = json!(message);
        condition
    };
    let none = |reason: &str| condition("Installed", "False", reason, "No bundle installed");
    let progressing =
        |status: &str, reason: &str, message: &str| condition("Progressing", status, reason, message);
    let error = |reason: &str, text: &str| {
        failed(&format!(
            "OLMv1 installation error: ClusterExtension installation failed: {reason} - {text}"
        ))
    };
    for (conditions, expected) in [
        (
            json!([condition("Installed", "True", "Succeeded", "Installed bundle")]),
            Olm::Installed,
        ),
        (json!([none("Failed")]), error("Failed", "No bundle installed")),
        (
            json!([
                none("Failed"),
                progressing("True", "Retrying", "no package\n  \"netobserv-operator\"\n")
            ]),
            error("Failed", "No bundle installed: no package \"netobserv-operator\""),
        ),
        (
            json!([none("Failed"), progressing("False", "Blocked", "by hand")]),
            error("Failed", "No bundle installed: by hand"),
        ),
        (
            json!([
                none("Failed"),
                progressing("True", "Succeeded", "Desired state reached")
            ]),
            error("Failed", "No bundle installed"),
        ),
        (
            json!([none("Absent"), progressing("True", "RollingOut", "rolling out")]),
            pending("ClusterExtension netobserv-operator: rolling out"),
        ),
        (
            json!([condition("Installed", "Unknown", "Failed", "")]),
            pending("ClusterExtension netobserv-operator"),
        ),
        (json!([]), pending("ClusterExtension netobserv-operator")),
        (json!("text"), pending("ClusterExtension netobserv-operator")),
    ] {
        let extension = json!({ "metadata": { "name": NAME }, "status": { "conditions": conditions } });
        assert_eq!(Olm::of_extension(&extension), expected, "{conditions}");
    }
    assert_eq!(
        Olm::of_extension(&json!({})),
        pending("ClusterExtension netobserv-operator")
    );
    let deleting = json!({
        "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "status": { "conditions": [condition("Installed", "True", "Succeeded", "")] },
    });
    let expected = Olm::Pending("ClusterExtension netobserv-operator is being deleted".to_owned());
    assert_eq!(Olm::of_extension(&deleting), expected);
    let long = "ä".repeat(2000);
    let extension =
        json!({ "status": { "conditions": [none("Failed"), progressing("True", "Retrying", &long)] } });
    let Olm::Failed(text) = Olm::of_extension(&extension) else {
        panic!("no failure");
    };
    assert!(text.len() < 1200 && text.ends_with("ä…"), "{text}");
}

// cluster-network#197
#[test]
fn version_is_read_from_its_phase() {
    let version = |name: &str, status: Value| {
        let metadata = json!({ "name": name, "namespace": "openshift-netobserv-operator" });
        Olm::of_version(&json!({ "metadata": metadata, "status": status }))
    };
    let name = "netobserv-operator.v1.9.0";
    let waiting = pending("ClusterServiceVersion openshift-netobserv-operator/netobserv-operator.v1.9.0");
    for (status, expected) in [
        (json!({ "phase": "Succeeded" }), Olm::Installed),
        (json!({ "phase": "Installing" }), waiting.clone()),
        (json!({ "phase": "Replacing" }), waiting.clone()),
        (json!({}), waiting),
        (
            json!({ "phase": "Failed", "reason": "InstallCheckFailed", "message": "timeout" }),
            failed(
                "OLMv0 installation error: ClusterServiceVersion installation failed: InstallCheckFailed - \
                 timeout",
            ),
        ),
    ] {
        assert_eq!(version(name, status.clone()), Some(expected), "{status}");
    }
    assert_eq!(
        version("loki-operator.v6.0.0", json!({ "phase": "Failed" })),
        None
    );
}

// cluster-network#196, cluster-network#197
#[test]
fn existing_installation_is_used_whoever_made_it() {
    let (waits, broken) = (|| pending("OLM"), || failed("no"));
    let missing = |olm: &str| {
        Step::Fail(format!(
            "{CHECK}network Observability Operator was deployed via {olm} but FlowCollector CRD is missing \
             (manually removed)"
        ))
    };
    let unknown = || {
        Step::Fail(format!(
            "{CHECK}FlowCollector CRD is present but could not identify how Network Observability Operator \
             was installed (neither OLMv1 ClusterExtension nor OLMv0 ClusterServiceVersion found)"
        ))
    };
    let (wait, fail) = (
        || Step::Wait("waiting for OLM".to_owned()),
        || Step::Fail(format!("{CHECK}no")),
    );
    for (is_defined, extension, versions, expected) in [
        (false, None, vec![], Step::Install),
        (true, None, vec![], unknown()),
        (true, Some(Olm::Installed), vec![], Step::Collect),
        (false, Some(Olm::Installed), vec![], missing("OLMv1")),
        // OLM creates the kind before it is done.
        (false, Some(waits()), vec![], wait()),
        (true, Some(waits()), vec![], wait()),
        (true, Some(broken()), vec![], fail()),
        (true, Some(broken()), vec![Olm::Installed], fail()),
        (true, None, vec![Olm::Installed], Step::Collect),
        (false, None, vec![Olm::Installed], missing("OLMv0")),
        // A second installation beside one in progress would take over its objects.
        (false, None, vec![waits()], wait()),
        (true, None, vec![waits()], wait()),
        (true, None, vec![broken()], fail()),
        // An update that has not ended yet.
        (true, None, vec![waits(), Olm::Installed], Step::Collect),
        (true, None, vec![broken(), Olm::Installed], Step::Collect),
        (true, None, vec![broken(), waits()], fail()),
        (true, Some(waits()), vec![Olm::Installed], Step::Collect),
    ] {
        let observed = Observed {
            is_defined,
            extension,
            versions,
        };
        assert_eq!(observed.step(), expected, "{observed:?}");
    }
}

// cluster-network#198
#[test]
fn endless_installation_is_reported_after_ten_minutes() {
    let state = |minutes| awaited("waiting for OLM".to_owned(), Duration::from_mins(minutes));
    assert_eq!(
        state(9).condition(),
        ("False", "DeploymentInProgress", "waiting for OLM")
    );
    assert_eq!(
        state(10).condition(),
        (
            "False",
            "DeploymentFailed",
            "Failed to install Network Observability Operator: not complete after 10 minutes: waiting for OLM"
        )
    );
    assert_eq!(
        State::Complete.condition(),
        (
            "True",
            "DeploymentComplete",
            "Network Observability has been deployed"
        )
    );
    assert_eq!(
        State::NotRequested.condition(),
        (
            "False",
            "NotRequested",
            "the installation of Network Observability is not requested"
        )
    );
    for (elapsed, seconds) in [(0, 2), (8, 2), (40, 10), (86_400, 300)] {
        assert_eq!(pause(Duration::from_secs(elapsed)).as_secs(), seconds);
    }
}
