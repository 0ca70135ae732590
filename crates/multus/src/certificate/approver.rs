//! `cert-approver`: approves the nodes' requests for multus certificates, and denies forged ones (multus.md §7.8).

use super::approval::{Decision, decide};
use crate::names;
use clap::Args as ClapArgs;
use futures::StreamExt as _;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::events::{Kind, Recorder};
use kube_kit::shutdown::Shutdown;
use linux::backoff::Backoff;
use std::pin::pin;
use std::time::Duration;
use tokio::time::sleep;

/// Limit of attempts to write a decision.
const ATTEMPTS: u32 = 5;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::MAX);
/// Delay after the watch failed.
const WATCH_PAUSE: Duration = Duration::from_secs(2);
/// Page size of lists.
const PAGE: u32 = 50;

/// Approve the requests of nodes for the certificates that multus uses
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {}

/// Approves and denies requests until SIGTERM or SIGINT.
///
/// # Errors
/// No cluster is configured.
pub async fn run(_: Args) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals()?;
    let client = kube_kit::client::client(names::APPROVER).await?;
    tokio::select! {
        () = serve(client) => {}
        () = shutdown.wait() => {}
    }
    Ok(())
}

/// Approves and denies requests. Never returns.
pub async fn serve(client: Client) {
    let approver = Approver {
        requests: Api::all(client.clone()),
        recorder: Recorder::new(client, names::APPROVER),
    };
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = pin!(watcher::watcher(approver.requests.clone(), config));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(request) | Event::InitApply(request)) => approver.answer(request).await,
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
            Err(error) => {
                tracing::warn!(error = %kube_kit::client::chain(&error), "cannot watch CertificateSigningRequests, retrying");
                sleep(WATCH_PAUSE).await;
            }
        }
    }
}

struct Approver {
    requests: Api<CertificateSigningRequest>,
    recorder: Recorder,
}

impl Approver {
    async fn answer(&self, mut request: CertificateSigningRequest) {
        let name = request.metadata.name.clone().unwrap_or_default();
        for attempt in 1..=ATTEMPTS {
            let (condition, kind, reason) = match decide(&request) {
                Decision::Leave => return,
                Decision::Approve => {
                    let text = format!("Auto-approved CSR {name:?}");
                    (
                        condition("Approved", "AutoApproved", text),
                        Kind::Normal,
                        "CSRApproved",
                    )
                }
                Decision::Deny(why) => (condition("Denied", "CSRDenied", why), Kind::Warning, "CSRDenied"),
            };
            let text = condition.message.clone().unwrap_or_default();
            let status = request
                .status
                .get_or_insert_with(CertificateSigningRequestStatus::default);
            status.conditions.get_or_insert_default().push(condition);
            let params = PostParams::default();
            let put = self
                .requests
                .replace_subresource("approval", &name, &params, &request);
            let Err(error) = put.await else {
                tracing::info!(request = name, "{reason}: {text}");
                self.recorder
                    .publish(&regarding(&request), kind, reason, &text)
                    .await;
                return;
            };
            tracing::warn!(
                request = name,
                attempt,
                error = message(&error),
                "cannot write the decision"
            );
            sleep(BACKOFF.after(attempt)).await;
            // Another client may have changed or decided the request.
            match self.requests.get_opt(&name).await {
                Ok(Some(current)) => request = current,
                Ok(None) => return,
                // Drops the condition from above: it must not count as a decision.
                Err(_) => request.status = None,
            }
        }
        tracing::error!(request = name, "giving up on the request");
    }
}

fn condition(kind: &str, reason: &str, message: String) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: kind.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(Time(Timestamp::now())),
        last_transition_time: None,
    }
}

fn regarding(request: &CertificateSigningRequest) -> ObjectReference {
    ObjectReference {
        api_version: Some("certificates.k8s.io/v1".into()),
        kind: Some("CertificateSigningRequest".into()),
        name: request.metadata.name.clone(),
        uid: request.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
