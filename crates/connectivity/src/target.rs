//! `weft check-target`: answers connections of checks with the addresses of both ends (cluster-network §1).

use std::env;

use anyhow::Context as _;
use axum::Router;
use axum::extract::Request;
use kube_kit::serve::{Local, Peer, Server};
use kube_kit::shutdown::Shutdown;

use crate::messages;
use crate::names::{NODE_NAME, TARGET_PORT};

/// Arguments of `weft check-target`: none.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {}

const ENVIRONMENT: &str = "\
Answers HTTP requests on port 8080. The answer contains the value of
K8S_NODE_NAME as the name of the node.";

/// Answers until SIGTERM or SIGINT.
///
/// # Errors
/// If the port is in use.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {} = args;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let node = env::var(NODE_NAME).unwrap_or_default();
    let server = Server::on_port(TARGET_PORT, router(&node)).await?;
    tracing::info!(address = %server.address(), node, "answering");
    shutdown.wait().await;
    server.stop().await;
    Ok(())
}

/// Answers every request.
fn router(node: &str) -> Router {
    let node: std::sync::Arc<str> = node.into();
    Router::new().fallback(move |request: Request| async move {
        let extensions = request.extensions();
        messages::hello(Peer::of(extensions), Local::of(extensions), &node)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn answer_names_both_ends_and_the_node() {
        let server = Server::on_port(0, router("node1")).await.expect("a server");
        let port = server.address().port();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        stream
            .write_all(b"GET /any HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .await
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let body = answer.split("\r\n\r\n").nth(1);
        assert_eq!(
            body,
            Some("Hello, 127.0.0.1. You have reached 127.0.0.1 on node1")
        );
    }
}
