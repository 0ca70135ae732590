//! The admission webhook of policies (nmstate §7.1).
//!
//! ```text
//! API server ── HTTPS :9443 ──> /…-mutate, /…-status-mutate, /…-timestamp-mutate ──> mutate ──> patch
//!                          └──> /…-create-validate, /…-update-validate ───────────> validate ──> allow or deny
//! kubelet ────────────────────> /readyz
//! ```
//!
//! The webhook sends no requests to the API server and keeps no state: a decision depends on the review alone.

mod messages;
mod mutate;
mod object;
mod validate;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use ::webhook::admission::{self, Request, Verdict};
use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use kube_kit::serve::{Bind, Certified, DRAIN, Limits, NoServer, Readiness, Serving};
use kube_kit::shutdown::Shutdown;
use kube_kit::tls;

use crate::names::{self, env, path};
use crate::{Args, settings, tls_profile};

/// Settings of the webhook server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on.
    pub bind: Bind,
    /// Directory of `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
    /// TLS versions, ciphers and groups.
    pub profile: tls::Profile,
}

/// Runs until SIGTERM.
///
/// # Errors
/// If the address is taken, or the TLS profile cannot be used. A missing certificate is waited for.
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
    tokio::time::sleep(DRAIN).await;
    serving.stop().await;
    Ok(())
}

/// Serves the webhooks and the probe, which is ready once the serving certificate exists.
///
/// # Errors
/// If the address is taken, or TLS cannot be set up.
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

/// The routes of all webhooks, with this clock.
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
