//! Service accounts that send requests with their own tokens, like their pods.

use kube::{
    Client,
    core::{
        Request,
        params::{GetParams, Patch, PatchParams, PostParams},
    },
};
use kube_kit::object;
use serde_json::{Value, json};
use stage::until;
use tokio::runtime::{Builder, Runtime};

use crate::fixture::Fixture;

const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A service account, authenticated by its token alone.
pub(crate) struct Account {
    /// Name of the account in the API server.
    pub(crate) user: String,
    client: Client,
    runtime: Runtime,
}

/// The error of a refused request.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) message: String,
}

impl Account {
    /// An account, once it exists.
    pub(crate) fn of(fixture: &Fixture, namespace: &str, name: &str) -> Self {
        Self::with_token(fixture, namespace, name, &json!({}))
    }

    /// An account with the token of one of its pods.
    pub(crate) fn of_pod(fixture: &Fixture, namespace: &str, name: &str, pod: &str) -> Self {
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod });
        Self::with_token(fixture, namespace, name, &json!({ "boundObjectRef": bound }))
    }

    fn with_token(fixture: &Fixture, namespace: &str, name: &str, spec: &Value) -> Self {
        let admin = fixture.admin();
        let path = format!("{}/{name}", object::SERVICE_ACCOUNT.path(Some(namespace)));
        admin.wait_for(&format!("the account {name}"), &path, |account| {
            account.map(|_| ())
        });
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
        let answer = admin.create(&format!("{path}/token"), &request);
        let token = &answer["status"]["token"];
        assert!(token.is_string(), "{answer:#}");

        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(async {
            let mut config = stage::config(admin.kubeconfig(), None).await;
            // Only the address of the server is the administrator's.
            config.auth_info = serde_json::from_value(json!({ "token": token })).expect("a token");
            Client::try_from(config).expect("a client")
        });
        let account = Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            client,
            runtime,
        };
        let question = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let found = account.create(SELF_REVIEWS, &question).expect("an answer");
        assert_eq!(found["status"]["userInfo"]["username"], account.user);
        account
    }

    /// Whether the account has a right, everywhere or in a namespace: a verb; a resource, with its group after a dot
    /// and a subresource after a slash; a name, or none.
    pub(crate) fn may(&self, right: &str, namespace: Option<&str>) -> bool {
        let mut words = right.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (verb, resource, name) = (word(), word(), word());
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
                "namespace": namespace.unwrap_or_default(),
            } },
        });
        let answer = self.create(ACCESS_REVIEWS, &question).expect("an answer");
        let allowed = answer["status"]["allowed"].as_bool();
        allowed.unwrap_or_else(|| panic!("{answer:#}"))
    }

    /// Waits until the account has rights: a binding takes effect some time after its creation.
    pub(crate) fn wait_until_let(&self, rights: &[&str], namespace: Option<&str>) {
        for right in rights {
            until(&format!("{} to be let: {right}", self.user), || {
                self.may(right, namespace).then_some(()).ok_or("no")
            });
        }
    }

    #[track_caller]
    pub(crate) fn assert_not_let(&self, rights: &[&str], namespace: Option<&str>) {
        for right in rights {
            let user = &self.user;
            assert!(!self.may(right, namespace), "{user} does not need: {right}");
        }
    }

    /// Creates an object of a collection.
    pub(crate) fn create(&self, collection: &str, object: &Value) -> Result<Value, Refusal> {
        let body = object.to_string().into_bytes();
        let request = Request::new(collection).create(&PostParams::default(), body);
        self.ask(self.client.request(request.expect("a request")))
    }

    pub(crate) fn get(&self, collection: &str, name: &str) -> Result<Value, Refusal> {
        let request = Request::new(collection).get(name, &GetParams::default());
        self.ask(self.client.request(request.expect("a request")))
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&self, collection: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let request = Request::new(collection).patch(name, &PatchParams::default(), &Patch::Merge(patch));
        self.ask(self.client.request(request.expect("a request")))
    }

    /// Merges a patch into the status of an object.
    pub(crate) fn patch_status(&self, collection: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let request = Request::new(collection).patch_subresource("status", name, &parameters, &patch);
        self.ask(self.client.request(request.expect("a request")))
    }

    fn ask(&self, answer: impl Future<Output = Result<Value, kube::Error>>) -> Result<Value, Refusal> {
        self.runtime.block_on(answer).map_err(|error| match error {
            kube::Error::Api(status) => Refusal {
                code: status.code,
                message: status.message.clone(),
            },
            other => panic!("{}: {other}", self.user),
        })
    }
}
