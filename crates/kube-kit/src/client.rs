//! The connection to the API server.

use axum::http::{HeaderValue, header::USER_AGENT};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tower::layer::layer_fn;

use crate::metrics::Requests;

/// Longer than the longest silence of a healthy watch (290 s and a margin of 5 s), so that it only ever ends requests
/// whose answer was lost.
const SILENCE: Duration = Duration::from_secs(310);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum Error {
    /// The file named by a flag or by `KUBECONFIG` is missing or malformed.
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig nor the service account of a pod was found.
    #[error("no way to the cluster: no --kubeconfig, no KUBECONFIG, and not in a pod")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    /// The configuration was found, but TLS or authentication can't be set up from it.
    #[error("cannot set up the connection to the cluster")]
    Client(#[source] Box<kube::Error>),
    /// The component's name can't be sent as a user agent.
    #[error("invalid user agent")]
    UserAgent(#[source] axum::http::header::InvalidHeaderValue),
}

/// A client that introduces itself as `weft/<component>`: by `KUBECONFIG` when it is set, else by the pod's service
/// account, else by `~/.kube/config`. Nothing is sent before its first request.
///
/// # Errors
/// When no configuration is found, or it is unusable.
pub async fn client(component: &str) -> Result<Client, Error> {
    client_from(component, None).await
}

/// Like [`client`], with an explicit kubeconfig file (`--kubeconfig`) that beats everything else.
///
/// # Errors
/// When no configuration is found, or it is unusable.
pub async fn client_from(component: &str, kubeconfig: Option<&Path>) -> Result<Client, Error> {
    counted_client_from(component, kubeconfig, &Requests::default()).await
}

/// Like [`client_from`], with its requests counted.
///
/// # Errors
/// When no configuration is found, or it is unusable.
pub async fn counted_client_from(
    component: &str,
    kubeconfig: Option<&Path>,
    requests: &Requests,
) -> Result<Client, Error> {
    let mut config = config(kubeconfig).await?;
    let agent = HeaderValue::from_str(&format!("weft/{component}")).map_err(Error::UserAgent)?;
    config.headers.push((USER_AGENT, agent));
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    counted(config, requests).map_err(|source| Error::Client(Box::new(source)))
}

/// A client whose requests are counted.
///
/// # Errors
/// When TLS or authentication can't be set up from the configuration.
pub fn counted(config: Config, requests: &Requests) -> Result<Client, kube::Error> {
    let host = config.cluster_url.authority().map(ToString::to_string);
    let layer = layer_fn(|service| requests.count(host.as_deref().unwrap_or_default(), service));
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
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

/// What the API server said, without the client library's decoration: fit for conditions and events.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Service(source) => chain(source.as_ref()),
        other => chain(other),
    }
}

/// An error and its causes in one line, each said once: libraries often repeat the cause in their own text.
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
