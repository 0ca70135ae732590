//! Serves requests with the nmstate library.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::journal::{self, with_log};
use super::library::{configured, current, document, filled, from, lacking, report, to};
use super::limit::within;
use super::pending::Pending;
use super::{Backend, Error, Filled, Request, Template, kernel, tool, version};

/// Serves requests until all senders are gone. `limit` is the time limit of questions to the host.
pub(super) async fn answer(
    backend: Backend,
    limit: Duration,
    mut pending: Pending,
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    journal::forward();
    pending.recover().await;
    // A caller that has gone needs no answer.
    loop {
        let received = match pending.retry_at() {
            None => requests.recv().await,
            Some(due) => {
                let Ok(received) = timeout_at(due, requests.recv()).await else {
                    pending.retry().await;
                    continue;
                };
                received
            }
        };
        let Some(request) = received else { return };
        match request {
            Request::Versions(back) => {
                let versions = within(limit, version::versions(backend));
                drop(back.send(with_log(Value::Null, versions).await));
            }
            Request::Report(back) => {
                drop(back.send(with_log(Value::Null, within(limit, report(backend))).await));
            }
            Request::Fill(template, back) => {
                let document = template.desired.clone();
                drop(back.send(with_log(document, within(limit, fill(backend, template))).await));
            }
            Request::Features(desired, back) => {
                let features = within(limit, features(backend, desired.clone()));
                drop(back.send(with_log(desired, features).await));
            }
            Request::Diff(desired, back) => {
                let diff = within(limit, diff(backend, desired.clone()));
                drop(back.send(with_log(desired, diff).await));
            }
            Request::Apply(desired, back) => {
                drop(back.send(with_log(desired.clone(), pending.apply(desired)).await));
            }
            Request::Commit(back) => drop(back.send(with_log(Value::Null, pending.commit()).await)),
            Request::Rollback(back) => drop(back.send(with_log(Value::Null, pending.rollback()).await)),
            Request::Close(back) => {
                drop(back.send(with_log(Value::Null, pending.close()).await));
                return;
            }
            Request::Tool(tool, back) => {
                drop(back.send(with_log(Value::Null, tool::answer(backend, tool)).await));
            }
        }
    }
}

async fn fill(backend: Backend, template: Template) -> Result<Filled, Error> {
    let Template {
        capture,
        desired,
        captured,
    } = template;
    let captured = captured.into_iter().map(|(name, state)| Ok((name, to(state)?)));
    let captured = captured.collect::<Result<_, Error>>()?;
    filled(&capture, &desired, captured, async || current(backend).await).await
}

async fn features(backend: Backend, desired: Value) -> Result<Vec<String>, Error> {
    let desired = document(&desired)?;
    let statistic = desired.statistic(&configured(backend).await?)?;
    to(from(&statistic.features)?)
}

async fn diff(backend: Backend, desired: Value) -> Result<Value, Error> {
    let desired = match backend {
        Backend::NetworkManager => desired,
        Backend::Kernel => kernel::supported(desired)?,
    };
    let desired = document(&desired)?;
    lacking(&desired, &current(backend).await?)
}
