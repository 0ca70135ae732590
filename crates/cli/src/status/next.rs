//! The next step for the user.

use api::names::{
    NETWORK_ADDONS_GROUP, NETWORK_ADDONS_KIND, NETWORK_ADDONS_SINGLETON, NETWORK_ADDONS_STORED_VERSION,
};
use kube_kit::cache::REFUSED;

use super::{
    components::State,
    pods::Trouble,
    report::{Next, Report, find, has_status},
};
use operator::names::{self, condition, reason};

/// Text of the error about a kind that the cluster does not serve.
const UNKNOWN_KIND: &str = "no matches for kind";

fn next(text: &str, command: impl Into<String>) -> Next {
    Next {
        text: text.to_owned(),
        commands: vec![command.into()],
    }
}

/// The first step, on which all others depend. `None` if no step is needed.
pub(super) fn step(report: &Report, has_operator: bool, trouble: Option<&Trouble>) -> Option<Next> {
    // A user without the right to list Deployments cannot know that it does not exist.
    if !has_operator && report.notes.is_empty() {
        return Some(next(
            "install the operator",
            "weft manifests --image REF | kubectl apply -f -",
        ));
    }
    let namespace = &report.operator.namespace;
    // An operator with failing watches is not ready.
    if let Some(degraded) = find(report, condition::DEGRADED)
        && degraded.reason == reason::WATCH
    {
        return Some(watches(&degraded.message, namespace));
    }
    if has_operator && report.operator.ready == 0 {
        return Some(next(
            "find out why the operator is not ready",
            format!(
                "kubectl -n {namespace} describe deployment,pod -l name={}",
                names::OPERATOR
            ),
        ));
    }
    if !report.configured {
        return Some(create());
    }
    if has_status(report, condition::DEGRADED, "True") {
        let why = find(report, condition::DEGRADED);
        if why.is_some_and(|found| found.message.contains(UNKNOWN_KIND)) {
            return Some(Next {
                text: "install the definition of the missing kind; the operator then continues".to_owned(),
                commands: Vec::new(),
            });
        }
        let why = why.map(|found| found.reason.as_str());
        return Some(failure(why.unwrap_or_default(), namespace));
    }
    if let Some(trouble) = trouble {
        return Some(pod(trouble));
    }
    if report
        .components
        .iter()
        .any(|component| component.state == State::Degraded)
    {
        return Some(log(namespace));
    }
    if !report.available {
        return Some(next(
            "wait for the roll-out to complete",
            format!(
                "kubectl wait networkaddonsconfig {NETWORK_ADDONS_SINGLETON} --for condition=Available --timeout 5m"
            ),
        ));
    }
    None
}

fn create() -> Next {
    let commands = [
        "kubectl apply -f - <<EOF".to_owned(),
        format!("apiVersion: {NETWORK_ADDONS_GROUP}/{NETWORK_ADDONS_STORED_VERSION}"),
        format!("kind: {NETWORK_ADDONS_KIND}"),
        "metadata:".to_owned(),
        format!("  name: {NETWORK_ADDONS_SINGLETON}"),
        "spec:".to_owned(),
        "  multus: {}".to_owned(),
        "  linuxBridge: {}".to_owned(),
        "EOF".to_owned(),
    ];
    Next {
        text: format!("create a {NETWORK_ADDONS_KIND} that enables components"),
        commands: commands.into(),
    }
}

fn failure(why: &str, namespace: &str) -> Next {
    match why {
        reason::VALIDATE => next(
            "correct the specification",
            format!("kubectl edit networkaddonsconfig {NETWORK_ADDONS_SINGLETON}"),
        ),
        reason::PREVIOUS_CONFIG => next(
            "revert the change, or remove the component and add it again",
            format!("kubectl edit networkaddonsconfig {NETWORK_ADDONS_SINGLETON}"),
        ),
        _ => log(namespace),
    }
}

fn watches(message: &str, namespace: &str) -> Next {
    if message.contains(REFUSED) {
        return next(
            "give the operator the rights that its version needs",
            "weft manifests --image REF | kubectl apply -f -",
        );
    }
    log(namespace)
}

fn log(namespace: &str) -> Next {
    next(
        "read the log of the operator",
        format!(
            "kubectl -n {namespace} logs deployment/{} --tail 50",
            names::OPERATOR
        ),
    )
}

fn pod(trouble: &Trouble) -> Next {
    let Trouble {
        pod,
        namespace,
        node,
        container,
        reason,
        ..
    } = trouble;
    let describe = format!("kubectl -n {namespace} describe pod {pod}");
    match reason.as_str() {
        "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "ErrImageNeverPull" => next(
            &format!("check the image's name, and whether node {node} may pull it"),
            describe,
        ),
        "CrashLoopBackOff" | "Terminated" => next(
            "read the log of the container that ended",
            format!("kubectl -n {namespace} logs {pod} -c {container} --previous"),
        ),
        "Unschedulable" => next(
            "make room on a node, or change spec.placementConfiguration",
            describe,
        ),
        _ => next("read the events of the pod", describe),
    }
}
