//! The connection to the API server.

use axum::http::header::{RETRY_AFTER, USER_AGENT};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tower::layer::layer_fn;
use tower::retry::{Policy, RetryLayer};
use tower::timeout::{TimeoutLayer, error::Elapsed};
use tower::{BoxError, ServiceBuilder, service_fn};

use crate::metrics::Requests;
pub use crate::proxy::Unusable as UnusableProxy;
use crate::{kubeconfig, proxy};

/// First part of every component's user agent. API servers use it as the field manager of updates.
pub const PRODUCT: &str = "weft";

/// Read timeout. It exceeds the longest silence of a healthy watch (290 s and a margin of 5 s), so that it only ends
/// requests whose answer was lost.
const SILENCE: Duration = Duration::from_secs(310);

/// Deadline for the start of an answer, also of a watch. The API server itself gives up a request after a minute
/// (`--request-timeout`). If it does not, a controller with one worker would wait for [`SILENCE`].
const TIMEOUT: Duration = Duration::from_mins(1);

/// Number of repetitions of a request, and the longest delay before one. All delays fit into [`TIMEOUT`].
const REPETITIONS: u32 = 5;
const LONGEST_DELAY: Duration = Duration::from_secs(5);
const _: () = assert!(LONGEST_DELAY.as_secs() * (REPETITIONS as u64) < TIMEOUT.as_secs());

/// Idle time after which a connection is not used again. API servers close theirs after 90 s, maybe while a request is sent.
const UNUSED: Duration = Duration::from_secs(80);

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
    /// The file of a flag is missing, or all files of `KUBECONFIG` are, or a file is malformed.
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file, or the value of `KUBECONFIG` if its files together are invalid.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// Neither a kubeconfig nor the service account of a pod exists.
    #[error("no cluster configuration: no --kubeconfig, no KUBECONFIG, and not in a pod ({in_cluster})")]
    Infer {
        /// The error of the service account.
        in_cluster: Box<kube::config::InClusterError>,
        /// The error of `~/.kube/config`.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// The proxy to the API server is not supported.
    #[error(transparent)]
    Proxy(#[from] UnusableProxy),
    /// The configuration has invalid settings of TLS or authentication.
    #[error("cannot set up the connection to the cluster")]
    Client(#[source] Box<kube::Error>),
    /// The component's name is not a valid user agent.
    #[error("invalid user agent")]
    UserAgent(#[source] axum::http::header::InvalidHeaderValue),
}

impl From<kubeconfig::Unusable> for Error {
    fn from(error: kubeconfig::Unusable) -> Self {
        Self::Kubeconfig {
            path: error.path,
            source: Box::new(error.source),
        }
    }
}

/// A client with the user agent `weft/<component>`, configured by `KUBECONFIG` if it names a file that exists, else by the
/// pod's service account, else, without `KUBECONFIG`, by `~/.kube/config`. It sends nothing before the first request.
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

/// A client whose requests are counted. A request fails if its answer does not start within a minute, repetitions
/// included. A login program may take longer: a person may have to log in first.
///
/// # Errors
/// If the configuration has invalid settings of TLS or authentication.
pub fn counted(config: Config, requests: &Requests) -> Result<Client, kube::Error> {
    counted_within(config, requests, TIMEOUT)
}

fn counted_within(config: Config, requests: &Requests, timeout: Duration) -> Result<Client, kube::Error> {
    let host = config.cluster_url.authority().map(ToString::to_string);
    let host = host.as_deref().unwrap_or_default();
    // The crypto provider of the process; other code may have set it already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Otherwise a body after its head waits until the head is acknowledged.
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(IDLE));
    tcp.set_keepalive_interval(Some(ASKED_AGAIN));
    tcp.set_tcp_user_timeout(Some(LOST));
    let way = proxy::connector(tcp, config.proxy_url.as_ref())?;
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(way)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(UNUSED)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
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
        .layer(RetryLayer::new(RetryAfter { left: REPETITIONS }))
        .map_err(BoxError::from)
        .service(http);
    let layer = layer_fn(|service| requests.count(host, service));
    let builder = ClientBuilder::new(service, config.default_namespace);
    Ok(builder.with_layer(&layer).build())
}

/// Repeats a request that the API server refused for now, after the time of `Retry-After`, as client-go does. The caller
/// handles other errors and longer delays. Watches are never repeated here: they have their own back-off.
#[derive(Clone)]
struct RetryAfter {
    left: u32,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryAfter {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        let answer = result.as_ref().ok()?;
        let is_refusal =
            answer.status() == StatusCode::TOO_MANY_REQUESTS || answer.status().is_server_error();
        let seconds = answer.headers().get(RETRY_AFTER).filter(|_| is_refusal)?;
        let delay = Duration::from_secs(seconds.to_str().ok()?.parse().ok()?);
        if delay > LONGEST_DELAY {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        Some(sleep(delay))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let query = request.uri().query().unwrap_or_default();
        if query.split('&').any(|part| part == "watch=true") {
            return None;
        }
        let mut copy = Request::new(request.body().try_clone()?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }
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
    let read = match kubeconfig {
        Some(path) => kubeconfig::read(path).map(Some),
        None => kubeconfig::of_environment(),
    };
    let missing = match read {
        Ok(Some(read)) => {
            return proxy::configured(read, None).await.map_err(|error| match error {
                proxy::Error::Kubeconfig(source) => {
                    let list = || std::env::var_os(kubeconfig::VARIABLE).unwrap_or_default().into();
                    Error::from(kubeconfig::Unusable {
                        path: kubeconfig.map_or_else(list, Path::to_owned),
                        source,
                    })
                }
                proxy::Error::Proxy(error) => Error::Proxy(error),
            });
        }
        Ok(None) => None,
        Err(error) if kubeconfig.is_none() && error.is_missing() => Some(error),
        Err(error) => return Err(error.into()),
    };
    let in_cluster = match Config::incluster() {
        Ok(config) => return Ok(proxy::in_cluster(config)?),
        Err(error) => Box::new(error),
    };
    if let Some(missing) = missing {
        return Err(missing.into());
    }
    let of_home = async { proxy::configured(Kubeconfig::read()?, None).await };
    of_home.await.map_err(|error| match error {
        proxy::Error::Kubeconfig(error) => Error::Infer {
            in_cluster,
            source: Box::new(error),
        },
        proxy::Error::Proxy(error) => Error::Proxy(error),
    })
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
    use k8s_openapi::api::core::v1::ConfigMap;
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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

    const REFUSED: &str =
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nconnection: close\r\n\r\naway";
    const LATER: &str =
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

    /// Runs a server with these answers, the last one repeated, and returns its URL and the number of its requests.
    async fn server(answers: &'static [&str]) -> (axum::http::Uri, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let at = counter.fetch_add(1, Relaxed);
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = answers.get(at).or(answers.last()).expect("an answer");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        (url, requests)
    }

    async fn ask(client: &Client) -> Result<String, kube::Error> {
        let request = Request::get("/healthz").body(Vec::new()).expect("a request");
        client.request_text(request).await
    }

    #[tokio::test]
    async fn only_refusals_with_a_delay_are_repeated() {
        for (answers, expected, count) in [
            (&[REFUSED, FINE][..], Err(503), 1),
            (&[LATER, LATER, FINE], Ok("ok"), 3),
        ] {
            let (url, requests) = server(answers).await;
            let client = counted(Config::new(url), &Requests::default()).expect("a client");
            let answer = tokio::time::timeout(Duration::from_secs(20), ask(&client)).await;
            let answer = answer.expect("no repetitions for minutes");
            let answer = answer.map_err(|error| match error {
                kube::Error::Api(status) => status.code,
                other => panic!("{other}"),
            });
            assert_eq!(answer.as_deref(), expected.as_deref());
            assert_eq!(requests.load(Relaxed), count);
        }
    }

    #[tokio::test]
    async fn deadline_includes_repetitions() {
        let (url, _) = server(&[LATER]).await;
        let timeout = Duration::from_millis(1500);
        let client = counted_within(Config::new(url), &Requests::default(), timeout).expect("a client");
        let error = ask(&client).await.expect_err("refusals");
        assert_eq!(message(&error), "no answer from the API server within 1 seconds");
    }

    #[tokio::test]
    async fn watch_is_not_repeated() {
        let (url, requests) = server(&[LATER]).await;
        let client = counted(Config::new(url), &Requests::default()).expect("a client");
        let api: kube::Api<ConfigMap> = kube::Api::all(client);
        let watch = api.watch(&kube::api::WatchParams::default(), "1").await;
        assert!(matches!(watch.map(drop), Err(kube::Error::Api(status)) if status.code == 429));
        assert_eq!(requests.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn token_of_a_login_program_is_sent() {
        const PRINTED: &str = r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": "secret"}}'"#;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let mut config = Config::new(format!("http://127.0.0.1:{port}").parse().expect("a URL"));
        let exec = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", PRINTED],
            "interactiveMode": "Never",
        });
        config.auth_info.exec = serde_json::from_value(exec).expect("a login program");
        let client = counted(config, &Requests::default()).expect("a client");
        let asks = tokio::spawn(async move { ask(&client).await });
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = [0; 4096];
        let length = stream.read(&mut request).await.expect("a request");
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        assert!(request.contains("authorization: Bearer secret\r\n"), "{request}");
        asks.abort();
    }

    #[tokio::test]
    async fn repetitions_are_few_and_short() {
        let answer = |code: u16, delay: &str| -> Result<Response<()>, BoxError> {
            let answer = Response::builder().status(code).header(RETRY_AFTER, delay);
            Ok(answer.body(()).expect("an answer"))
        };
        let request = &mut Request::new(Body::empty());
        let mut policy = RetryAfter { left: REPETITIONS };
        for (code, delay) in [(200, "1"), (409, "1"), (503, "6"), (503, "soon"), (429, "")] {
            assert!(policy.retry(request, &mut answer(code, delay)).is_none());
        }
        for _ in 0..REPETITIONS {
            assert!(policy.retry(request, &mut answer(500, "5")).is_some());
        }
        assert!(policy.retry(request, &mut answer(503, "1")).is_none());
    }
}
