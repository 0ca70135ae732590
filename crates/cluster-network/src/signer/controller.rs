//! Approves and signs certificate signing requests of nodes (§17.4).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{self, Change, DeserializeGuard, Options};
use webhook::certificates::Pair;
use webhook::certificates::standalone::{Refused, sign_request};

use super::{Decision, SIGNER, decide, node_of, reason, reason_of, usages};
use crate::messages;
use crate::names::OVN_NAMESPACE;
use crate::report::{Failure, Level, Reports};

/// Secret of the signing certificate authority.
const AUTHORITY: &str = "signer-ca";
/// Default and maximum lifetime of certificates.
const LIFE: Duration = Duration::from_hours(365 * 24);
const LONGEST: Duration = Duration::from_mins(5);

/// Handles requests until the shutdown.
pub async fn run(client: Client, reports: &Reports, shutdown: &Shutdown) {
    let requests: Api<DeserializeGuard<CertificateSigningRequest>> = Api::all(client.clone());
    let options = Options::all().fields(format!("spec.signerName={SIGNER}"));
    let name = |metadata: &kube::core::ObjectMeta| metadata.name.clone().unwrap_or_default();
    let mut watch = watch::start(requests, &options, name, |_| ());
    let queue = reports.queue("signer", LONGEST);
    // An answered request must not hide the failure of another one.
    let mut failures: BTreeMap<String, Failure> = BTreeMap::new();
    let signer = Signer {
        requests: Api::all(client.clone()),
        nodes: Api::all(client.clone()),
        secrets: Api::namespaced(client, OVN_NAMESPACE),
    };
    loop {
        let request = tokio::select! {
            () = shutdown.wait() => return,
            change = watch.next() => {
                match change {
                    Some(Change::Applied(name)) => queue.add(name),
                    Some(Change::Deleted(_) | Change::Invalid(..) | Change::Synced) => {}
                    // The watch never ends by itself.
                    None => return,
                }
                continue;
            }
            request = queue.next() => request,
        };
        match signer.answer(&request).await {
            Ok(()) => {
                queue.succeeded(&request);
                failures.remove(&request);
            }
            Err(failure) => {
                let pause = queue.failed(request.clone());
                let (reason, error) = (failure.reason, &failure.message);
                tracing::warn!(request, reason, error, retry = ?pause, "request not answered");
                failures.insert(request, failure);
            }
        }
        reports.set(Level::CertificateSigner, failures.values().next());
    }
}

struct Signer {
    requests: Api<CertificateSigningRequest>,
    nodes: Api<Node>,
    secrets: Api<Secret>,
}

fn failure(reason: &'static str, error: impl std::fmt::Display) -> Failure {
    Failure::debounced(reason, error.to_string())
}

impl Signer {
    async fn answer(&self, name: &str) -> Result<(), Failure> {
        let request = self.requests.get_opt(name).await;
        let request = request.map_err(|error| failure(reason::UPDATE, message(&error)))?;
        let Some(request) = request else {
            return Ok(());
        };
        let user = request.spec.username.as_deref().unwrap_or_default();
        let exists = match node_of(user) {
            Some(node) => {
                let found = self.nodes.get_metadata_opt(node).await;
                found
                    .map_err(|error| failure(reason::UPDATE, message(&error)))?
                    .is_some()
            }
            None => false,
        };
        match decide(&request, exists) {
            Decision::Leave => Ok(()),
            Decision::Fail { reason, message } => self.fail(request, reason, message).await,
            Decision::Approve => {
                let text = messages::signer::approved(name);
                let approved = with(request, "Approved", reason::APPROVED, text);
                self.put("approval", name, &approved).await
            }
            Decision::Sign => self.sign(request).await,
        }
    }

    async fn fail(
        &self,
        request: CertificateSigningRequest,
        reason: &'static str,
        text: String,
    ) -> Result<(), Failure> {
        let name = request.metadata.name.clone().unwrap_or_default();
        tracing::warn!(request = name, reason, text, "signing request refused");
        let failed = with(request, "Failed", reason, text);
        self.put("status", &name, &failed).await
    }

    async fn put(&self, part: &str, name: &str, request: &CertificateSigningRequest) -> Result<(), Failure> {
        let params = PostParams::default();
        let put = self.requests.replace_subresource(part, name, &params, request);
        match put.await {
            Ok(_) => Ok(()),
            Err(error) => Err(failure(reason::UPDATE, message(&error))),
        }
    }

    async fn sign(&self, mut request: CertificateSigningRequest) -> Result<(), Failure> {
        let name = request.metadata.name.clone().unwrap_or_default();
        let authority = self.authority().await?;
        let usages = usages(request.spec.usages.as_deref().unwrap_or_default());
        let life = request
            .spec
            .expiration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let life = life.map_or(LIFE, Duration::from_secs).min(LIFE);
        let text = String::from_utf8_lossy(&request.spec.request.0).into_owned();
        match sign_request(&authority, &text, usages, (life, SystemTime::now())) {
            Ok(certificate) => {
                let status = request
                    .status
                    .get_or_insert_with(CertificateSigningRequestStatus::default);
                status.certificate = Some(ByteString(certificate.into_bytes()));
                self.put("status", &name, &request).await?;
                tracing::info!(request = name, "signed");
                Ok(())
            }
            // A retry would fail too.
            Err(refused @ Refused::Request(_)) => {
                self.fail(request, reason_of(&refused), refused.to_string()).await
            }
            Err(refused) => Err(failure(reason_of(&refused), &refused)),
        }
    }

    async fn authority(&self) -> Result<Pair, Failure> {
        let secret = self.secrets.get_opt(AUTHORITY).await;
        let secret = secret.map_err(|error| failure(reason::NO_AUTHORITY, message(&error)))?;
        let missing = || {
            let text =
                format!("Secret {OVN_NAMESPACE}/{AUTHORITY} with the authority of the signer does not exist");
            failure(reason::NO_AUTHORITY, text)
        };
        let mut data = secret.ok_or_else(missing)?.data.unwrap_or_default();
        let mut part = |key: &str| data.remove(key).map(|bytes| bytes.0).unwrap_or_default();
        Ok(Pair {
            certificate: part("tls.crt"),
            key: part("tls.key"),
        })
    }
}

fn with(
    mut request: CertificateSigningRequest,
    kind: &str,
    reason: &str,
    text: String,
) -> CertificateSigningRequest {
    let now = Time(Timestamp::now());
    let condition = CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(text),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    };
    let status = request
        .status
        .get_or_insert_with(CertificateSigningRequestStatus::default);
    status.conditions.get_or_insert_default().push(condition);
    request
}
