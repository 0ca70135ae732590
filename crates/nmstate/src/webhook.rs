//! Admission of policies (nmstate §7.1).
//!
//! ```text
//! API server ── HTTPS :9443 ──> /…-mutate, /…-status-mutate, /…-timestamp-mutate ──> mutate ──> patch
//!                          └──> /…-create-validate, /…-update-validate ───────────> validate ──> yes or no
//! kubelet ────────────────────> /readyz
//! ```
//!
//! Nothing is asked of the API server, and nothing is kept: what a review holds is all that it is decided by.

pub mod messages;
pub mod mutate;
mod object;
pub mod validate;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use ::webhook::admission::{self, Request, Verdict};
use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use kube_kit::serve::{Bind, Certified, Limits, NoServer, Readiness, Serving};
use kube_kit::shutdown::Shutdown;
use kube_kit::tls;

use crate::names::{self, env, path};
use crate::{Args, settings, tls_profile};

/// How long the webhook is still asked when it is to end, until everybody knows that.
const STILL_ASKED: Duration = Duration::from_secs(2);

/// Where and as whom to serve.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub bind: Bind,
    /// Directory with `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
    /// Versions, ciphers and groups.
    pub profile: tls::Profile,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When it can't listen, or on OpenShift the TLS profile can't be used. A certificate that is missing is waited for.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let settings = Settings {
        bind: Bind::Everywhere(names::WEBHOOK_PORT),
        certificates: names::WEBHOOK_CERTIFICATES.into(),
        profile: tls_profile::of_servers(
            settings::variable(env::IS_OPENSHIFT).as_deref(),
            names::TLS_PROFILE,
        )?,
    };
    let serving = start(settings).await?;
    shutdown.wait().await;
    tokio::time::sleep(STILL_ASKED).await;
    serving.stop().await;
    Ok(())
}

/// Serves the webhooks and the probe. The probe says yes once there is the certificate that the API server trusts.
///
/// # Errors
/// When it can't listen, or TLS can't be set up.
pub async fn start(settings: Settings) -> Result<Serving, NoServer> {
    let Settings {
        bind,
        certificates,
        profile,
    } = settings;
    let certified = Readiness::new();
    let router = router(Timestamp::now).merge(probe(certified.clone()));
    let server = Certified {
        certificates: Some(certificates),
        names: vec![names::WEBHOOK_SERVICE.to_owned()],
        profile,
        http2: false,
        authorities: None,
        limits: Limits::webhook(),
    };
    let serving = server.serve(&bind, router, &certified).await?;
    serving.ok_or(NoServer::Nowhere)
}

/// All webhooks, by what the clock says.
pub fn router(now: fn() -> Timestamp) -> Router {
    let webhook = |path: &str, decide: fn(&Request, Timestamp) -> Verdict| {
        admission::router(path, move |request| async move { decide(&request, now()) })
    };
    Router::new()
        .merge(webhook(path::CONDITIONS, |request, _| {
            mutate::conditions(request)
        }))
        .merge(webhook(path::STATUS, mutate::status))
        .merge(webhook(path::TIMESTAMP, mutate::timestamp))
        .merge(webhook(path::VALIDATE_CREATE, |request, _| {
            validate::create(request)
        }))
        .merge(webhook(path::VALIDATE_UPDATE, |request, _| {
            validate::update(request)
        }))
}

fn probe(certified: Readiness) -> Router {
    let ready = move || async move {
        if certified.is_ready() {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "no serving certificate yet")
        }
    };
    Router::new().route(names::READYZ, get(ready))
}
