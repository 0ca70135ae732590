//! Probes the `readinessEndpoints` through the cluster-wide proxy (§15.1). Components do not get a proxy that fails.
//!
//! ```text
//! http://endpoint   ── GET http://endpoint ──> httpProxy
//! https://endpoint  ── CONNECT, TLS, GET ────> httpsProxy
//! ```
//!
//! The operator of a hosted cluster reaches the proxies by way of a SOCKS proxy, which is in the hosted cluster's network.

mod socks;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Spec;

/// Attempts for each endpoint, and the delay between them.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Deadline of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the head of an answer, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// An endpoint failed through the proxy.
#[derive(Debug, thiserror::Error)]
#[error("readinessEndpoint probe failed for endpoint '{endpoint}': {cause}")]
pub struct Failed {
    endpoint: String,
    cause: Cause,
}

/// The reason of a failed attempt.
#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("endpoint must be a URL of scheme http or https")]
    Endpoint,
    #[error("{0} must be set for an endpoint of this scheme")]
    NoProxy(&'static str),
    #[error("{0} is not a URL with a host")]
    Proxy(&'static str),
    #[error("no answer within {TIMEOUT:?}")]
    Late,
    #[error("the proxy refused the tunnel with status {0}")]
    Tunnel(u16),
    #[error("status {0}")]
    Status(u16),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
}

/// A connection to the proxy, or through it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Probes each endpoint through the proxy. `bundle` has the certificate authorities for TLS, in PEM. `socks` is the
/// address of the SOCKS proxy that leads to the proxy.
///
/// # Errors
/// The first endpoint that fails three times.
pub async fn check(spec: &Spec, bundle: &str, socks: Option<&str>) -> Result<(), Failed> {
    for endpoint in &spec.readiness_endpoints {
        let mut attempt = 1;
        while let Err(cause) = in_time(spec, endpoint, bundle, socks).await {
            let is_final = matches!(cause, Cause::Endpoint | Cause::NoProxy(_) | Cause::Proxy(_));
            if is_final || attempt == ATTEMPTS {
                let endpoint = endpoint.clone();
                return Err(Failed { endpoint, cause });
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn in_time(spec: &Spec, endpoint: &str, bundle: &str, socks: Option<&str>) -> Result<(), Cause> {
    let probe = probe(spec, endpoint, bundle, socks);
    tokio::time::timeout(TIMEOUT, probe)
        .await
        .unwrap_or(Err(Cause::Late))
}

async fn probe(spec: &Spec, endpoint: &str, bundle: &str, socks: Option<&str>) -> Result<(), Cause> {
    let target = Target::parse(endpoint).ok_or(Cause::Endpoint)?;
    let (field, proxy) = if target.has_tls {
        ("httpsProxy", &spec.https_proxy)
    } else {
        ("httpProxy", &spec.http_proxy)
    };
    if proxy.is_empty() {
        return Err(Cause::NoProxy(field));
    }
    let proxy = Target::parse(proxy).ok_or(Cause::Proxy(field))?;
    let tcp = match socks {
        Some(socks) => socks::connect(socks, proxy.host(), proxy.port).await?,
        None => TcpStream::connect((proxy.host(), proxy.port)).await?,
    };
    let mut stream: Box<dyn Stream> = Box::new(tcp);
    if proxy.has_tls {
        stream = encrypted(stream, &proxy, bundle).await?;
    }
    let login = proxy.login();
    let status = if target.has_tls {
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n");
        match ask(&mut stream, &request).await? {
            200..=299 => {}
            status => return Err(Cause::Tunnel(status)),
        }
        let mut stream = encrypted(stream, &target, bundle).await?;
        ask(&mut stream, &target.get(&target.path, "")).await?
    } else {
        let absolute = format!("http://{target}{}", target.path);
        ask(&mut stream, &target.get(&absolute, &login)).await?
    };
    match status {
        200..=399 => Ok(()),
        status => Err(Cause::Status(status)),
    }
}

async fn encrypted(stream: Box<dyn Stream>, server: &Target, bundle: &str) -> Result<Box<dyn Stream>, Cause> {
    let mut roots = RootCertStore::empty();
    // The bundle is already validated. TLS does not trust certificates that this library cannot parse.
    let certificates = CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok);
    roots.add_parsable_certificates(certificates);
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(server.host().to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Box::new(stream))
}

/// Sends a request, reads the head of the answer, and returns the status.
async fn ask(stream: &mut Box<dyn Stream>, request: &str) -> Result<u16, Cause> {
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = Vec::new();
    // The bytes after the head belong to the tunnel, and must stay unread.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == LONGEST_HEAD {
            return Err(malformed("the head of the answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    let mut words = text.split_ascii_whitespace();
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|status| status.parse().ok());
    status
        .filter(|_| version.starts_with("HTTP/1."))
        .ok_or_else(|| malformed("the answer is not HTTP/1.1"))
}

fn malformed(text: &'static str) -> Cause {
    Cause::Io(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// A parsed URL. Displayed as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    has_tls: bool,
    /// Host. IPv6 addresses have brackets.
    host: String,
    port: u16,
    path: String,
    /// `user:password`, percent-encoded.
    user: Option<String>,
}

impl Target {
    fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let has_tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = uri.authority()?;
        let host = authority.host();
        let user = authority
            .as_str()
            .rsplit_once('@')
            .map(|(user, _)| user.to_owned());
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        (!host.is_empty()).then(|| Self {
            has_tls,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(if has_tls { 443 } else { 80 }),
            path: path.to_owned(),
            user,
        })
    }

    /// Host without brackets, as in DNS queries and certificates.
    fn host(&self) -> &str {
        let bare = self
            .host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        bare.unwrap_or(&self.host)
    }

    fn get(&self, target: &str, login: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: {self}\r\nConnection: close\r\n{login}\r\n")
    }

    /// Header with the credentials for the proxy.
    fn login(&self) -> String {
        let Some(user) = &self.user else {
            return String::new();
        };
        format!(
            "Proxy-Authorization: Basic {}\r\n",
            STANDARD.encode(decoded(user))
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.first_chunk::<2>().filter(|_| *first == b'%');
        let value = escaped
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests;
