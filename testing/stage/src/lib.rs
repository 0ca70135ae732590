//! Tools for tests of a component against a real API server.
//!
//! ```no_run
//! use serde_json::json;
//! use stage::{Admin, Server};
//!
//! // Creates the objects that each test expects.
//! fn install(admin: &Admin) {
//!     admin.namespace("ours", &[]);
//! }
//!
//! # let pod = json!({});
//! let server = Server::take(install);
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
//! drop(manager); // waits for its end
//! ```
//!
//! * [`Server`] is an API server of one test. Tests with a server from elsewhere use [`Admin::of`], which has the same
//!   functions.
//! * [`Admin`] sends requests as the administrator, and lists the requests of other clients.
//! * [`Task`] runs beside the test.
//! * [`Hold`] delays watches.
//! * [`Account`] sends requests with the credentials of one account. [`Rights`] are what it may do.
//! * [`Line`] is a connection that can be cut.
//! * [`prometheus`] checks and evaluates rules.
//!
//! A component adds its CRDs, rights and settings, usually as a `Stage` that dereferences to its [`Server`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

mod account;
mod admin;
mod hold;
mod line;
pub mod prometheus;
mod rights;
mod server;
mod store;
mod task;

use std::{fmt::Display, path::Path, time::Duration};

use axum::http::{HeaderValue, header};
use k8s_openapi::ByteString;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

pub use account::{Account, Refusal};
pub use admin::{Admin, Answer, Request};
pub use axum::http::Method;
pub use hold::Hold;
pub use line::Line;
pub use rights::{Rights, put_out_prey};
pub use server::Server;
pub use task::Task;

/// Deadline of waits, for slow machines.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// Waits until a condition holds, and returns its value. After the deadline, the test fails with the last error of the
/// condition.
#[track_caller]
pub fn until<T, E: Display>(what: &str, condition: impl FnMut() -> Result<T, E>) -> T {
    match cluster::wait::until(what, DEADLINE, condition) {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the configuration of a client of the administrator, or of an account that the administrator impersonates.
pub async fn config(kubeconfig: &Path, account: Option<&str>) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    if let Some(account) = account {
        config.auth_info.impersonate = Some(account.to_owned());
        // Programs of the product use its name as their field manager.
        let agent = HeaderValue::from_static(kube_kit::client::PRODUCT);
        config.headers.push((header::USER_AGENT, agent));
    }
    config
}

/// Encodes bytes for a Secret or a `caBundle`.
pub fn base64(bytes: &[u8]) -> Value {
    json!(ByteString(bytes.to_vec()))
}

/// Decodes bytes of a Secret or a `caBundle`. Empty if the value is missing or malformed.
pub fn bytes(encoded: &Value) -> Vec<u8> {
    serde_json::from_value(encoded.clone()).map_or_else(|_| Vec::new(), |ByteString(bytes)| bytes)
}
