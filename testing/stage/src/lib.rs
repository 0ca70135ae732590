//! What tests of a component stand on that run it against a real API server.
//!
//! ```no_run
//! use serde_json::json;
//! use stage::{Admin, Server};
//!
//! // What the next test on this server must not find.
//! fn empty(admin: &Admin) {
//!     admin.delete("/api/v1/namespaces/default/pods");
//! }
//!
//! # let pod = json!({});
//! let server = Server::take(|admin| admin.namespace("ours", &[]), empty);
//! let mark = server.mark();
//! let account = "system:serviceaccount:ours:manager";
//! let manager = server.task_as(account, |client, shutdown| async move {
//!     # let run = |_: kube::Client| std::future::pending::<()>();
//!     tokio::select! {
//!         () = run(client) => {}
//!         () = shutdown.wait() => {}
//!     }
//! });
//! server.create("/api/v1/namespaces/default/pods", &pod);
//! server.wait_for("the note", "/api/v1/namespaces/default/pods/p", |pod| {
//!     (pod?["metadata"]["annotations"]["note"] == "seen").then_some(())
//! });
//! assert_eq!(server.requests_of(account, mark).len(), 2);
//! drop(manager); // its end is waited for
//! ```
//!
//! * [`Server`] is an API server that a test has for itself; where tests share one, or have one in another way,
//!   [`Admin::of`] has all that it has.
//! * [`Admin`] asks an API server as its administrator, and knows who else asked it for what.
//! * [`Task`] runs beside the test.
//! * [`Hold`] makes watches lag.
//!
//! A component adds its kinds, its rights and its settings, mostly as a `Stage` that dereferences to its [`Server`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

mod admin;
mod hold;
mod server;
mod task;

use std::{fmt::Display, path::Path, time::Duration};

use axum::http::{HeaderValue, header};
use k8s_openapi::ByteString;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

pub use admin::{Admin, Answer, Request};
pub use axum::http::Method;
pub use hold::Hold;
pub use server::Server;
pub use task::Task;

/// How long anything may take on a slow machine.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// Waits until a condition holds, and returns what it found; the test fails with its last complaint when it never does.
#[track_caller]
pub fn until<T, E: Display>(what: &str, condition: impl FnMut() -> Result<T, E>) -> T {
    match cluster::wait::until(what, DEADLINE, condition) {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

/// What a client of the administrator is made from, or of somebody whom he speaks for.
pub async fn config(kubeconfig: &Path, account: Option<&str>) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    if let Some(account) = account {
        config.auth_info.impersonate = Some(account.to_owned());
        // Programs of the product write under its name as field manager.
        let agent = HeaderValue::from_static(kube_kit::client::PRODUCT);
        config.headers.push((header::USER_AGENT, agent));
    }
    config
}

/// Bytes as they stand in a Secret or a `caBundle`.
pub fn base64(bytes: &[u8]) -> Value {
    json!(ByteString(bytes.to_vec()))
}

/// The bytes that stand so in a Secret or a `caBundle`; none of what is missing or malformed.
pub fn bytes(encoded: &Value) -> Vec<u8> {
    serde_json::from_value(encoded.clone()).map_or_else(|_| Vec::new(), |ByteString(bytes)| bytes)
}
