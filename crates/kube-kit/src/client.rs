//! The connection to the API server.

use axum::http::{HeaderValue, header::USER_AGENT};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::timeout::{TimeoutLayer, error::Elapsed};
use tower::{BoxError, ServiceBuilder, service_fn};

use crate::metrics::Requests;

/// First part of every component's user agent. API servers use it as the field manager of updates.
pub const PRODUCT: &str = "weft";

/// Read timeout. It exceeds the longest silence of a healthy watch (290 s and a margin of 5 s), so that it only ends
/// requests whose answer was lost.
const SILENCE: Duration = Duration::from_secs(310);

/// Deadline for the start of an answer, also of a watch. The API server itself gives up a request after a minute
/// (`--request-timeout`). If it does not, a controller with one worker would wait for [`SILENCE`].
const TIMEOUT: Duration = Duration::from_mins(1);

/// Idle time before the kernel sends TCP keepalive probes, and the interval of these.
const IDLE: Duration = Duration::from_secs(30);
const ASKED_AGAIN: Duration = Duration::from_secs(10);
/// Maximum time that sent data may stay unacknowledged (`TCP_USER_TIMEOUT`). It detects a dead connection after a
/// change of the host's address, or when the API server's host is gone; otherwise a watch would be stale, and a request
/// would wait, for minutes. On an idle connection the kernel checks it only when a keepalive probe is due, so it ends
/// the connection at the second probe.
const LOST: Duration = Duration::from_secs(40);

/// A client that cannot be created.
#[derive(Debug, Error)]
pub enum Error {
    /// The file of a flag or of `KUBECONFIG` is missing or malformed.
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig nor the service account of a pod exists.
    #[error("no cluster configuration: no --kubeconfig, no KUBECONFIG, and not in a pod")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The configuration has invalid settings of TLS or authentication.
    #[error("cannot set up the connection to the cluster")]
    Client(#[source] Box<kube::Error>),
    /// The component's name is not a valid user agent.
    #[error("invalid user agent")]
    UserAgent(#[source] axum::http::header::InvalidHeaderValue),
}

/// A client with the user agent `weft/<component>`, configured by `KUBECONFIG` if it is set, else by the pod's service
/// account, else by `~/.kube/config`. It sends nothing before the first request.
///
/// # Errors
/// If there is no configuration, or it is invalid.
pub async fn client(component: &str) -> Result<Client, Error> {
    client_from(component, None).await
}

/// Like [`client`], with a kubeconfig file (`--kubeconfig`) that takes precedence.
///
/// # Errors
/// If there is no configuration, or it is invalid.
pub async fn client_from(component: &str, kubeconfig: Option<&Path>) -> Result<Client, Error> {
    counted_client_from(component, kubeconfig, &Requests::default()).await
}

/// Like [`client_from`], with its requests counted.
///
/// # Errors
/// If there is no configuration, or it is invalid.
pub async fn counted_client_from(
    component: &str,
    kubeconfig: Option<&Path>,
    requests: &Requests,
) -> Result<Client, Error> {
    let config = configuration(component, kubeconfig).await?;
    counted(config, requests).map_err(|source| Error::Client(Box::new(source)))
}

/// The configuration of a client, for callers that create clients without open connections repeatedly.
///
/// # Errors
/// If there is no configuration, or it is invalid.
pub async fn configuration(component: &str, kubeconfig: Option<&Path>) -> Result<Config, Error> {
    let mut config = config(kubeconfig).await?;
    let agent = HeaderValue::from_str(&format!("{PRODUCT}/{component}")).map_err(Error::UserAgent)?;
    config.headers.push((USER_AGENT, agent));
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    Ok(config)
}

/// A client whose requests are counted. A request fails if its answer does not start within a minute.
///
/// # Errors
/// If the configuration has invalid settings of TLS or authentication.
pub fn counted(config: Config, requests: &Requests) -> Result<Client, kube::Error> {
    counted_within(config, requests, TIMEOUT)
}

fn counted_within(config: Config, requests: &Requests, timeout: Duration) -> Result<Client, kube::Error> {
    let host = config.cluster_url.authority().map(ToString::to_string);
    let host = host.as_deref().unwrap_or_default();
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        // The library handles proxies and login programs. A person may have to log in first, so there is no limit.
        let layer = layer_fn(|service| requests.count(host, service));
        return Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build());
    }
    // The crypto provider of the process; other code may have set it already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Otherwise a body after its head waits until the head is acknowledged.
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(IDLE));
    tcp.set_keepalive_interval(Some(ASKED_AGAIN));
    tcp.set_tcp_user_timeout(Some(LOST));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let retry = config
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(move |error: BoxError| {
            if error.is::<Elapsed>() {
                NoAnswer(timeout).into()
            } else {
                error
            }
        })
        .layer(TimeoutLayer::new(timeout))
        .map_err(BoxError::from)
        .service(http);
    let layer = layer_fn(|service| requests.count(host, service));
    let builder = ClientBuilder::new(service, config.default_namespace);
    Ok(builder.with_layer(&layer).build())
}

/// The API server did not start its answer within the deadline.
#[derive(Debug, Error)]
#[error("no answer from the API server within {} seconds", .0.as_secs())]
struct NoAnswer(Duration);

/// A client that delegates each request to the client that `current` holds at that moment, so that credentials can be
/// replaced. Running requests, such as watches, continue with the earlier client.
pub fn following(current: watch::Receiver<Client>) -> Client {
    let namespace = current.borrow().default_namespace().to_owned();
    let service = service_fn(move |request| {
        let client = current.borrow().clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config, Error> {
    let named = kubeconfig.map(Path::to_path_buf);
    let from_environment = || {
        std::env::var_os("KUBECONFIG")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    if let Some(path) = named.or_else(from_environment) {
        let unusable = |source| Error::Kubeconfig {
            path: path.clone(),
            source: Box::new(source),
        };
        let read = Kubeconfig::read_from(&path).map_err(unusable)?;
        return Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
            .await
            .map_err(unusable);
    }
    match Config::incluster() {
        Ok(config) => Ok(config),
        Err(_) => Config::infer()
            .await
            .map_err(|source| Error::Infer(Box::new(source))),
    }
}

/// The API server's message without the client library's additions, for conditions and events.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Service(source) => chain(source.as_ref()),
        other => chain(other),
    }
}

/// An error and its causes in one line, without repetitions: libraries often repeat the cause in their own text.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn client_enables_keepalive_probes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        let client = counted(Config::new(url), &Requests::default()).expect("a client");
        let asks = tokio::spawn(async move { client.apiserver_version().await });
        let (held, _) = listener.accept().await.expect("a connection");
        // The client waits for the answer alone: `02` is the keepalive timer.
        let remote = format!("0100007F:{port:04X}");
        let found = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                let table = fs::read_to_string("/proc/thread-self/net/tcp").expect("connections");
                let mut ours = table
                    .lines()
                    .map(|line| line.split_whitespace().collect::<Vec<_>>());
                if ours.any(|line| line.get(2) == Some(&remote.as_str()) && line[5].starts_with("02:")) {
                    return;
                }
                // The kernel reports no change of this table: it has to be polled.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let found = found.await.is_ok();
        let table = fs::read_to_string("/proc/thread-self/net/tcp").expect("connections");
        assert!(found, "{table}");
        drop(held);
        asks.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_answer_fails_at_deadline() {
        // The kernel accepts connections; no program reads them.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        let timeout = Duration::from_secs(1);
        let client = counted_within(Config::new(url), &Requests::default(), timeout).expect("a client");
        let error = client.apiserver_version().await.expect_err("no answer");
        assert_eq!(message(&error), "no answer from the API server within 1 seconds");
        drop(listener);
    }
}
