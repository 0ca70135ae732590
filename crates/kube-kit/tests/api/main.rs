//! kube-kit against a real API server.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod apply;
mod events;
mod objects;
mod pages;
mod watch;

use cluster::ApiServer;
use kube_kit::kube::Client;
use std::future::Future;
use std::time::Duration;

/// Deadline of any step on a slow machine.
const DEADLINE: Duration = Duration::from_mins(1);

/// Runs a test with a client of the API server that all tests share.
fn with_client<F: Future<Output = ()>>(test: impl FnOnce(Client) -> F) {
    let server = ApiServer::shared().expect("an API server");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = kube_kit::client::client_from("test", Some(server.kubeconfig()))
            .await
            .expect("a client");
        test(client).await;
    });
}

/// Waits for an expected step.
async fn within<T>(what: &str, happens: impl Future<Output = T>) -> T {
    let happened = tokio::time::timeout(DEADLINE, happens).await;
    happened.unwrap_or_else(|_| panic!("deadline exceeded: {what}"))
}
