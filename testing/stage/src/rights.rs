//! The rights of the product's accounts, and an attacker's gain from one of their pods.

use kube_kit::object::{CLUSTER_ROLE_BINDING, NODE, POD, SECRET, SERVICE_ACCOUNT};
use serde_json::{Value, json};

use crate::{Account, Admin, Refusal};

/// Namespace without objects of the product.
const ELSEWHERE: &str = "default";
/// Name of the foreign objects.
const PREY: &str = "rights-of-others";

/// Forbidden to all accounts in the whole cluster: each of these leads to another node, to another account, or to the
/// whole cluster.
const FORBIDDEN_TO_ALL: [&str; 16] = [
    "get secrets",
    "list secrets",
    "create pods",
    "create pods/exec",
    "patch pods/ephemeralcontainers",
    "update pods",
    "create serviceaccounts/token",
    "impersonate users",
    "impersonate serviceaccounts",
    "bind clusterroles.rbac.authorization.k8s.io",
    "escalate clusterroles.rbac.authorization.k8s.io",
    "update nodes",
    "patch nodes",
    "get nodes/proxy",
    "update validatingwebhookconfigurations.admissionregistration.k8s.io",
    "sign signers.certificates.k8s.io",
];

/// Requests that an account may send, and requests that it must not, in the whole cluster: see [`Account::may`].
pub struct Rights {
    /// Name of the account.
    pub account: &'static str,
    /// The allowed requests.
    pub may: &'static [&'static str],
    /// The forbidden requests.
    pub may_not: &'static [&'static str],
}

impl Rights {
    /// Waits until the account may send all allowed requests, and checks the forbidden ones.
    #[track_caller]
    pub fn check(&self, account: &Account) {
        account.wait_until_let(self.may, None);
        account.assert_not_let(self.may_not, None);
    }
}

/// Creates a Secret, a node and an account of other users, which no account of the product may touch.
pub fn put_out_prey(admin: &Admin) {
    for kind in [SECRET, NODE, SERVICE_ACCOUNT] {
        let object = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": { "name": PREY },
        });
        admin.create(&kind.path(Some(ELSEWHERE)), &object);
    }
}

impl Account {
    /// Checks that the account has no right that leads further, and can neither take the [objects of
    /// others](put_out_prey) nor gain further rights.
    #[track_caller]
    pub fn assert_takes_nothing(&self) {
        self.assert_not_let(&FORBIDDEN_TO_ALL, None);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": PREY },
            "spec": {
                "hostPID": true, "nodeName": PREY,
                "containers": [{ "name": "it", "image": "it", "securityContext": { "privileged": true } }],
            },
        });
        let label = json!({ "metadata": { "labels": { "taken": "" } } });
        let token = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let tokens = format!("{}/{PREY}/token", SERVICE_ACCOUNT.path(Some(ELSEWHERE)));
        for (what, answer) in [
            ("a Secret", self.get(&SECRET.path(Some(ELSEWHERE)), PREY)),
            ("a pod", self.create(&POD.path(Some(ELSEWHERE)), &pod)),
            ("a node", self.patch(&NODE.path(None), PREY, &label)),
            ("a token", self.create(&tokens, &token)),
            ("the cluster", self.give_itself("cluster-admin")),
        ] {
            let Err(refusal) = answer else {
                panic!("{} takes {what}", self.user);
            };
            assert_eq!(refusal.code, 403, "{}, {what}: {}", self.user, refusal.message);
        }
    }

    /// Binds a role of the cluster to the account itself.
    pub fn give_itself(&self, role: &str) -> Result<Value, Refusal> {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "rights-gained" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.user }],
        });
        self.create(&CLUSTER_ROLE_BINDING.path(None), &binding)
    }
}
