//! Rights of the accounts that the operator deploys. The requests use the accounts' tokens.

use axum::http::Method;
use serde_json::{Value, json};
use stage::{Account, until};

use crate::admission::send_as;
use crate::fixture::{self, CERT_MANAGER, Kind, METRICS, NAMESPACE, Stage, WEBHOOK, granted};
use crate::operator::{self, installed, nmstate, operator, settings};

/// Rights that an account has, and rights that it must not have: see [`place`].
struct Rights {
    account: &'static str,
    may: &'static [&'static str],
    may_not: &'static [&'static str],
}

const PROGRAMS: [Rights; 4] = [
    Rights {
        account: fixture::ACCOUNT,
        may: &[
            "create nodenetworkstates.nmstate.io",
            "update nodenetworkstates.nmstate.io/status",
            "watch nodenetworkconfigurationpolicies.nmstate.io",
            "update nodenetworkconfigurationpolicies.nmstate.io/status",
            "create nodenetworkconfigurationenactments.nmstate.io",
            "delete nodenetworkconfigurationenactments.nmstate.io",
            "list nodes",
            "list pods",
            "get configmaps nmstate-config",
            "create events in default",
        ],
        may_not: &[
            "get secrets nmstate-ca",
            "list secrets",
            "create secrets",
            "update secrets nmstate-webhook",
            "get mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate",
            "list validatingwebhookconfigurations.admissionregistration.k8s.io",
            "create nodenetworkconfigurationpolicies.nmstate.io",
            "update nodenetworkconfigurationpolicies.nmstate.io",
            "delete nodenetworkstates.nmstate.io",
            "update nodes",
            "patch nodes/status",
            "list pods in default",
            "get configmaps nmstate-tls-config",
            "create events",
            "create tokenreviews.authentication.k8s.io",
        ],
    },
    Rights {
        account: WEBHOOK,
        may: &[],
        may_not: &[
            "get secrets nmstate-webhook",
            "list nodenetworkconfigurationpolicies.nmstate.io",
            "update nodenetworkconfigurationpolicies.nmstate.io/status",
            "get mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate",
            "list nodes",
        ],
    },
    Rights {
        account: CERT_MANAGER,
        may: &[
            "get secrets nmstate-ca",
            "update secrets nmstate-webhook",
            "create secrets",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io nmstate",
        ],
        may_not: &[
            "list secrets",
            "get secrets kubemacpool-service",
            "delete secrets nmstate-ca",
            "get secrets nmstate-ca in kube-system",
            "create secrets in kube-system",
            "create mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "update mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
            "list nodenetworkstates.nmstate.io",
            "list nodes",
        ],
    },
    Rights {
        account: METRICS,
        may: &[
            "watch nodenetworkstates.nmstate.io",
            "list nodenetworkconfigurationpolicies.nmstate.io",
            "list nodenetworkconfigurationenactments.nmstate.io",
        ],
        may_not: &[
            "update nodenetworkstates.nmstate.io",
            "update nodenetworkstates.nmstate.io/status",
            "list secrets",
            "list nodes",
            // Without a check of rights, as outside OpenShift.
            "create tokenreviews.authentication.k8s.io",
        ],
    },
];

const OPERATOR: Rights = Rights {
    account: operator::ACCOUNT,
    may: &[
        "create daemonsets.apps",
        "create clusterroles.rbac.authorization.k8s.io",
        "update customresourcedefinitions.apiextensions.k8s.io nodenetworkstates.nmstate.io",
        "delete secrets nmstate-webhook",
    ],
    may_not: &[
        "escalate clusterroles.rbac.authorization.k8s.io nmstate-handler",
        "bind clusterroles.rbac.authorization.k8s.io cluster-admin",
        "escalate roles.rbac.authorization.k8s.io",
        "bind roles.rbac.authorization.k8s.io",
        "create daemonsets.apps in kube-system",
        "create deployments.apps in kube-system",
        "list secrets in kube-system",
        "get secrets nmstate-webhook in kube-system",
        "create serviceaccounts in kube-system",
        "update customresourcedefinitions.apiextensions.k8s.io nmstates.nmstate.io",
        "delete customresourcedefinitions.apiextensions.k8s.io nodenetworkstates.nmstate.io",
        "create nodenetworkconfigurationpolicies.nmstate.io",
        "update nodes",
    ],
};

/// Splits `VERB RESOURCE[.GROUP][/SUBRESOURCE] [NAME] [in NAMESPACE]` into the right and its namespace, by default that of
/// the programs.
fn place(right: &str) -> (&str, &str) {
    right.split_once(" in ").unwrap_or((right, NAMESPACE))
}

/// Whether an account, which need not exist yet, has a right: see [`place`].
fn may(stage: &Stage, account: &str, right: &str) -> bool {
    let (right, namespace) = place(right);
    let mut words = right.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let (verb, resource, name) = (word(), word(), word());
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": { "user": account, "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
            "namespace": namespace,
        } },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    stage.send(Method::POST, path, Some(&review)).accepted()["status"]["allowed"] == true
}

/// Waits until the API server grants a right.
pub(crate) fn wait_until_allowed(stage: &Stage, account: &str, right: &str) {
    until(&format!("{account} to be let: {right}"), || {
        may(stage, account, right).then_some(()).ok_or("no")
    });
}

/// The roles of releases whose programs shared one account.
fn older() -> Vec<(Kind, Value)> {
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    let update = ["get", "list", "watch", "update"];
    let all = ["get", "list", "watch", "create", "update", "patch", "delete"];
    let everywhere = json!([
        rule(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            &update
        ),
        rule("authentication.k8s.io", "tokenreviews", &["create"]),
    ]);
    let inside = json!([rule("", "secrets", &all), rule("", "events", &["create"])]);
    let name = "nmstate-handler";
    let cluster = granted(
        (Kind::ClusterRole, Kind::ClusterRoleBinding),
        name,
        name,
        everywhere,
    );
    let namespaced = granted((Kind::Role, Kind::RoleBinding), name, name, inside);
    cluster.into_iter().chain(namespaced).collect()
}

// nmstate#95, nmstate#96
#[test]
fn each_program_works_with_its_own_rights() {
    let stage = installed();
    let begin = stage.mark();
    for (kind, object) in older() {
        stage.create(kind, &object);
    }
    wait_until_allowed(&stage, fixture::ACCOUNT, "list secrets");
    let _running = operator(&stage, settings());
    let nmstate = nmstate("nmstate", &json!({}));
    stage
        .send(Method::POST, operator::NMSTATES, Some(&nmstate))
        .accepted();
    for rights in &PROGRAMS {
        check(&stage, rights);
    }
    check(&stage, &OPERATOR);
    operator::nothing_was_refused(&stage, begin);
}

#[track_caller]
fn check(stage: &Stage, rights: &Rights) {
    let name = rights.account.rsplit(':').next().unwrap_or_default();
    let account = Account::of(stage, NAMESPACE, name);
    assert_eq!(account.user, rights.account);
    for right in rights.may {
        let (right, namespace) = place(right);
        account.wait_until_let(&[right], Some(namespace));
    }
    for right in rights.may_not {
        let (right, namespace) = place(right);
        // A role of an older release is narrowed only once the operator applies it.
        until(&format!("{name} not to be let: {right} in {namespace}"), || {
            if account.may(right, Some(namespace)) {
                Err("it may")
            } else {
                Ok(())
            }
        });
    }
}

// nmstate#95, the operator's
#[test]
fn operator_holds_every_right_that_it_grants() {
    const REFUSED: &str = "attempting to grant RBAC permissions not currently held";
    let stage = installed();
    let kinds = (Kind::ClusterRole, Kind::ClusterRoleBinding);
    let rules = json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }]);
    let [role, mut binding] = granted(kinds, "thief", "nmstate-operator", rules);
    binding.1["roleRef"]["name"] = json!("cluster-admin");
    for (kind, object) in [role, binding] {
        let account = (operator::ACCOUNT, None);
        let answer = send_as(&stage, account, Method::POST, kind.path(), &object);
        let refusal = answer.expect_err("it is refused");
        assert!(refusal.contains(REFUSED), "{refusal}");
    }
}
