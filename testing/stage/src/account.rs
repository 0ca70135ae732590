//! Accounts that send requests with their own tokens or certificates, like the product's pods.

use std::path::Path;

use kube::{
    Client,
    core::{
        Request,
        params::{GetParams, Patch, PatchParams, PostParams},
    },
};
use kube_kit::object;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::{Admin, config, until};

const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// An account, authenticated by its token or certificate alone.
pub struct Account {
    /// Name of the account in the API server.
    pub user: String,
    client: Client,
    runtime: Runtime,
}

/// The error of a refused request.
#[derive(Debug)]
pub struct Refusal {
    /// The status code.
    pub code: u16,
    /// The text of the API server.
    pub message: String,
}

impl Account {
    /// Returns a service account, once it exists.
    pub fn of(admin: &Admin, namespace: &str, name: &str) -> Self {
        Self::with_token(admin, namespace, name, &json!({}))
    }

    /// Returns a service account with the token of one of its pods.
    pub fn of_pod(admin: &Admin, namespace: &str, name: &str, pod: &str) -> Self {
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod });
        Self::with_token(admin, namespace, name, &json!({ "boundObjectRef": bound }))
    }

    /// Returns the user of a client certificate. The file contains the certificate and its key.
    pub fn of_certificate(admin: &Admin, file: &Path, user: &str) -> Self {
        let credentials = json!({ "client-certificate": file, "client-key": file });
        Self::authenticated(admin, &credentials, user.to_owned())
    }

    fn with_token(admin: &Admin, namespace: &str, name: &str, spec: &Value) -> Self {
        let path = format!("{}/{name}", object::SERVICE_ACCOUNT.path(Some(namespace)));
        admin.wait_for(&format!("the account {name}"), &path, |account| {
            account.map(|_| ())
        });
        let request =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
        let answer = admin.create(&format!("{path}/token"), &request);
        let token = &answer["status"]["token"];
        assert!(token.is_string(), "{answer:#}");
        let user = format!("system:serviceaccount:{namespace}:{name}");
        Self::authenticated(admin, &json!({ "token": token }), user)
    }

    /// Returns the user of these credentials, which have the form of a kubeconfig.
    fn authenticated(admin: &Admin, credentials: &Value, user: String) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(async {
            let mut config = config(admin.kubeconfig(), None).await;
            // Only the address of the server is the administrator's.
            config.auth_info = serde_json::from_value(credentials.clone()).expect("credentials");
            Client::try_from(config).expect("a client")
        });
        let account = Self {
            user,
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
    pub fn may(&self, right: &str, namespace: Option<&str>) -> bool {
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
    pub fn wait_until_let(&self, rights: &[&str], namespace: Option<&str>) {
        for right in rights {
            until(&format!("{} to be let: {right}", self.user), || {
                self.may(right, namespace).then_some(()).ok_or("no")
            });
        }
    }

    /// Checks that the account has none of these rights.
    #[track_caller]
    pub fn assert_not_let(&self, rights: &[&str], namespace: Option<&str>) {
        for right in rights {
            let user = &self.user;
            assert!(!self.may(right, namespace), "{user} does not need: {right}");
        }
    }

    /// Creates an object of a collection.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value, Refusal> {
        let body = object.to_string().into_bytes();
        let request = Request::new(collection).create(&PostParams::default(), body);
        self.ask(self.client.request(request.expect("a request")))
    }

    /// Reads an object of a collection.
    pub fn get(&self, collection: &str, name: &str) -> Result<Value, Refusal> {
        let request = Request::new(collection).get(name, &GetParams::default());
        self.ask(self.client.request(request.expect("a request")))
    }

    /// Merges a patch into an object.
    pub fn patch(&self, collection: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let request = Request::new(collection).patch(name, &PatchParams::default(), &Patch::Merge(patch));
        self.ask(self.client.request(request.expect("a request")))
    }

    /// Merges a patch into the status of an object.
    pub fn patch_status(&self, collection: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let request = Request::new(collection).patch_subresource("status", name, &parameters, &patch);
        self.ask(self.client.request(request.expect("a request")))
    }

    /// Replaces the status of an object, and what the API server lets change with it.
    pub fn replace_status(&self, collection: &str, object: &Value) -> Result<Value, Refusal> {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let (parameters, body) = (PostParams::default(), object.to_string().into_bytes());
        let request = Request::new(collection).replace_subresource("status", name, &parameters, body);
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
