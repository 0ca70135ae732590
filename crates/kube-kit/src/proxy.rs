//! Proxies on the way to the API server, chosen as client-go does.
//!
//! ```text
//! proxy-url of the kubeconfig's cluster ───────────────┬──> Config::proxy_url ──> CONNECT, or SOCKS 5
//! HTTPS_PROXY ── not for NO_PROXY and loopback hosts ──┘
//! ```

use std::net::IpAddr;

use axum::http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

/// Variables with the proxy, and with the hosts that need none. The first non-empty one is used.
const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// The field of a kubeconfig's cluster.
const FIELD: &str = "proxy-url of the kubeconfig";

/// URL that [`chosen`] replaces.
const REPLACED: &str = "http://replaced";

const HTTPS_PORT: u16 = 443;
const SOCKS_PORT: u16 = 1080;

/// A proxy that is malformed or not supported. The text omits the URL, which may have a password.
#[derive(Debug, Error)]
#[error("cannot use the proxy of {0}: only http://HOST:PORT and socks5://HOST:PORT are supported")]
pub struct Unusable(&'static str);

/// A kubeconfig that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Proxy(#[from] Unusable),
}

/// The configuration of a kubeconfig's context, or of its current one, with the right proxy.
pub(crate) async fn configured(mut kubeconfig: Kubeconfig, context: Option<String>) -> Result<Config, Error> {
    let named = named(&kubeconfig, context.as_deref());
    // Otherwise the library parses the environment's proxy, even for an excepted server.
    for cluster in kubeconfig
        .clusters
        .iter_mut()
        .filter_map(|it| it.cluster.as_mut())
    {
        cluster.proxy_url = Some(REPLACED.to_owned());
    }
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = chosen(&config.cluster_url, named.as_deref(), variable)?;
    Ok(config)
}

/// The configuration of a pod's service account, with the right proxy.
pub(crate) fn in_cluster(mut config: Config) -> Result<Config, Unusable> {
    config.proxy_url = chosen(&config.cluster_url, None, variable)?;
    Ok(config)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// `proxy-url` of the context's cluster.
fn named(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts.find(|it| it.name == context)?.context.as_ref()?;
    let mut clusters = kubeconfig.clusters.iter();
    let cluster = clusters.find(|it| it.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

/// The proxy to the API server at `server`: `named`, which has no exceptions, else that of the environment.
fn chosen(
    server: &Uri,
    named: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, Unusable> {
    if let Some(url) = named {
        return usable(url, FIELD).map(Some);
    }
    let first = |names: [&'static str; 2]| {
        let value = |name| Some((name, variable(name).filter(|value| !value.is_empty())?));
        names.into_iter().find_map(value)
    };
    let Some((name, url)) = first(PROXY) else {
        return Ok(None);
    };
    let (_, exceptions) = first(EXCEPTIONS).unwrap_or_default();
    if server.scheme_str() != Some("https") || is_direct(server, &exceptions) {
        return Ok(None);
    }
    usable(&url, name).map(Some)
}

/// Parses the URL of a proxy. Without a scheme it is that of an HTTP proxy.
fn usable(url: &str, from: &'static str) -> Result<Uri, Unusable> {
    let scheme = if url.contains("://") { "" } else { "http://" };
    let url = format!("{scheme}{url}").parse();
    let parsed = url.ok().filter(|url| parsed(url).is_some());
    parsed.ok_or(Unusable(from))
}

/// Scheme, address and credentials of a supported proxy.
fn parsed(url: &Uri) -> Option<Intercept> {
    let matcher = Matcher::builder().all(url.to_string()).build();
    let proxy = matcher.intercept(&Uri::from_static("https://any.host"))?;
    matches!(proxy.uri().scheme_str(), Some("http" | "socks5" | "socks5h")).then_some(proxy)
}

/// Whether the environment's proxy is not for this server. The rules are those of Go's `net/http`: loopback addresses
/// never have a proxy; an exception is `*`, an address, a prefix or a domain, the latter with its subdomains, or without
/// the domain itself after a `.`. An address or domain may have a port.
fn is_direct(server: &Uri, exceptions: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let host = host.to_ascii_lowercase();
    let port = server.port_u16().unwrap_or(HTTPS_PORT);
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    exceptions.to_ascii_lowercase().split(',').any(|entry| {
        let entry = entry.trim();
        if let Ok(prefix) = entry.parse::<IpNet>() {
            return address.is_some_and(|address| prefix.contains(&address));
        }
        let (name, of_port) = match entry.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
            _ => (entry, None),
        };
        if of_port.is_some_and(|text| !text.is_empty() && text.parse() != Ok(port)) {
            return false;
        }
        let name = name.trim_matches(['[', ']']);
        if let Ok(excepted) = name.parse::<IpAddr>() {
            return address == Some(excepted);
        }
        if name == "*" {
            return true;
        }
        let domain = name.strip_prefix('*').unwrap_or(name);
        let before = host.strip_suffix(domain).filter(|_| !domain.is_empty());
        before.is_some_and(|it| domain.starts_with('.') || it.is_empty() || it.ends_with('.'))
    })
}

/// Opens connections to the API server.
pub(crate) type Connector = BoxCloneSyncService<Uri, TokioIo<TcpStream>, BoxError>;

/// A connection through a proxy failed.
#[derive(Debug, Error)]
#[error("proxy {proxy}")]
struct Failed {
    proxy: String,
    source: BoxError,
}

/// A connector through the proxy of a configuration, if it has one.
pub(crate) fn connector(tcp: HttpConnector, proxy: Option<&Uri>) -> Result<Connector, kube::Error> {
    let Some(url) = proxy else {
        return Ok(Connector::new(tcp.map_err(BoxError::from)));
    };
    let unsupported = || kube::Error::ProxyProtocolUnsupported {
        proxy_url: Box::new(url.clone()),
    };
    let proxy = parsed(url).ok_or_else(unsupported)?;
    let at = proxy.uri().clone();
    let text = at.to_string().trim_end_matches('/').to_owned();
    let failed = move |source: BoxError| {
        let proxy = text.clone();
        BoxError::from(Failed { proxy, source })
    };
    if at.scheme_str() == Some("http") {
        let mut tunnel = Tunnel::new(at, tcp);
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        return Ok(Connector::new(tunnel.map_err(move |error| failed(error.into()))));
    }
    // The TCP connector has no default port of this scheme.
    let host = at.host().unwrap_or_default();
    let address = format!("socks5://{host}:{}", at.port_u16().unwrap_or(SOCKS_PORT));
    let mut socks = SocksV5::new(address.parse().map_err(|_| unsupported())?, tcp);
    if let Some((user, password)) = proxy.raw_auth() {
        socks = socks.with_auth(user.to_owned(), password.to_owned());
    }
    Ok(Connector::new(socks.map_err(move |error| failed(error.into()))))
}

#[cfg(test)]
mod tests;
