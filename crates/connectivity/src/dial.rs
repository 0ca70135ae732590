//! One check of an endpoint: resolve its host name, connect, and make a TLS handshake. A failed handshake does not
//! matter, but without it TLS servers would log an error for each check (cluster-network §13.4).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube_kit::address;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::messages;
use crate::names::{TIMEOUT, entry};
use crate::outage::{Outcome, Step};

/// Client certificate and key, as PEM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    /// The certificate and its intermediate authorities.
    pub certificate: &'a [u8],
    pub key: &'a [u8],
}

/// The endpoint of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint<'a> {
    /// The target's name in messages.
    pub target: &'a str,
    /// Host and port, separated by a colon.
    pub address: &'a str,
}

/// Checks an endpoint.
pub(crate) async fn check(endpoint: Endpoint<'_>, identity: Option<Identity<'_>>) -> Outcome {
    let Endpoint { target, address } = endpoint;
    let (at, start) = (Timestamp::now(), Instant::now());
    let Some((host, port)) = address::split(address) else {
        let text = messages::not_connected(target, address, format_args!("address {address}: missing port"));
        return failed(None, at, start, entry::TCP_CONNECT_ERROR, text);
    };
    let literal = host.parse().ok().map(|ip| SocketAddr::new(ip, port));
    let mut resolved = None;
    let addresses = match literal {
        Some(address) => vec![address],
        None => match resolve(host, port).await {
            Ok(addresses) => {
                resolved = Some(Step {
                    at,
                    success: true,
                    reason: entry::DNS_RESOLVE,
                    message: messages::resolved(target, host),
                    latency: start.elapsed(),
                });
                addresses
            }
            Err(error) => {
                let text = messages::not_resolved(target, host, format_args!("lookup {host}: {error}"));
                return failed(None, at, start, entry::DNS_ERROR, text);
            }
        },
    };
    let (at, start) = (Timestamp::now(), Instant::now());
    match connect(&addresses).await {
        Ok(stream) => {
            let last = Step {
                at,
                success: true,
                reason: entry::TCP_CONNECT,
                message: messages::connected(target, address),
                latency: start.elapsed(),
            };
            match timeout(TIMEOUT, handshake(stream, host, identity)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(address, %error, "TLS error ignored"),
                Err(_) => tracing::debug!(address, "TLS handshake timed out"),
            }
            Outcome { resolved, last }
        }
        Err((tried, error)) => {
            let text = messages::not_connected(target, address, format_args!("dial tcp {tried}: {error}"));
            failed(resolved, at, start, entry::TCP_CONNECT_ERROR, text)
        }
    }
}

fn failed(
    resolved: Option<Step>,
    at: Timestamp,
    start: Instant,
    reason: &'static str,
    message: String,
) -> Outcome {
    let last = Step {
        at,
        success: false,
        reason,
        message,
        latency: start.elapsed(),
    };
    Outcome { resolved, last }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    match timeout(TIMEOUT, lookup_host((host, port))).await {
        Err(_) => Err("i/o timeout".to_owned()),
        Ok(Err(error)) => Err(of_lookup(&error)),
        Ok(Ok(addresses)) => {
            let addresses: Vec<_> = addresses.collect();
            if addresses.is_empty() {
                return Err("no such host".to_owned());
            }
            Ok(addresses)
        }
    }
}

/// Tries the addresses one after the other, each for its share of the time. Returns the first failure if all fail.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, (SocketAddr, String)> {
    let end = Instant::now() + TIMEOUT;
    let mut first = None;
    for (at, address) in addresses.iter().enumerate() {
        let remaining = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let share = end.saturating_duration_since(Instant::now()) / remaining;
        let error = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => of_connect(&error),
            Err(_) => "i/o timeout".to_owned(),
        };
        first.get_or_insert((*address, error));
    }
    Err(first.unwrap_or_else(|| (SocketAddr::from(([0, 0, 0, 0], 0)), "no such host".to_owned())))
}

/// Words the cause of a failed connection like Go's programs.
fn of_connect(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => format!("connect: {}", plain(&error.to_string())),
    }
}

fn of_lookup(error: &io::Error) -> String {
    const OF_THE_LIBRARY: &str = "failed to lookup address information: ";
    let text = error.to_string();
    plain(text.strip_prefix(OF_THE_LIBRARY).unwrap_or(&text))
}

/// Removes the number of the error, and changes the text to lower case.
fn plain(text: &str) -> String {
    let text = text.split_once(" (os error").map_or(text, |(text, _)| text);
    text.to_lowercase()
}

async fn handshake(stream: TcpStream, host: &str, identity: Option<Identity<'_>>) -> io::Result<()> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let config = config(identity).map_err(io::Error::other)?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // Notifies the server of the end of the connection.
    stream.shutdown().await
}

fn config(identity: Option<Identity<'_>>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyServer(provider)));
    let Some(Identity { certificate, key }) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let certificates = CertificateDer::pem_slice_iter(certificate).filter_map(Result::ok);
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| rustls::Error::General(format!("invalid client key: {error}")))?;
    builder.with_client_auth_cert(certificates.collect(), key)
}

/// Accepts every server certificate: the check concerns the connection alone, and sends no data.
#[derive(Debug)]
struct AcceptAnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    fn endpoint(address: &str) -> Endpoint<'_> {
        Endpoint { target: "t", address }
    }

    #[tokio::test]
    async fn connection_to_a_server_without_tls_is_a_success() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        let answers = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut hello = [0; 5];
            stream.read_exact(&mut hello).await.expect("a hello");
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .expect("sent");
            hello
        });
        let outcome = check(endpoint(&address), None).await;
        assert_eq!(
            outcome.last.message,
            format!("t: tcp connection to {address} succeeded")
        );
        assert_eq!((outcome.success(), outcome.last.reason), (true, "TCPConnect"));
        assert_eq!(outcome.resolved, None, "an IP address needs no resolution");
        let hello = answers.await.expect("answered");
        assert_eq!(hello[0], 22, "the start of a TLS handshake: {hello:?}");
    }

    #[tokio::test]
    async fn refused_connection_is_worded_like_go() {
        let port = cluster::free_port().expect("a port without a listener");
        let outcome = check(endpoint(&format!("localhost:{port}")), None).await;
        assert!(!outcome.success() && outcome.last.reason == "TCPConnectError");
        let start = format!("t: failed to establish a TCP connection to localhost:{port}: dial tcp ");
        let message = &outcome.last.message;
        assert!(message.starts_with(&start), "{message}");
        assert!(message.ends_with(": connect: connection refused"), "{message}");
        let resolved = outcome.resolved.expect("a step");
        assert_eq!(resolved.message, "t: resolved host name localhost successfully");
        assert_eq!((resolved.success, resolved.reason), (true, "DNSResolve"));
    }

    #[tokio::test]
    async fn unknown_host_name_is_a_dns_error() {
        let outcome = check(endpoint("no..such..host:80"), None).await;
        assert!(!outcome.success() && outcome.is_unresolved(), "{outcome:?}");
        let start = "t: failure looking up host no..such..host: lookup no..such..host: ";
        assert!(outcome.last.message.starts_with(start), "{outcome:?}");
        assert_eq!(outcome.resolved, None);
    }

    #[tokio::test]
    async fn address_without_a_port_is_an_error() {
        for address in ["h:", ":", "h", "h:99999", "fd00::1:443"] {
            let outcome = check(endpoint(address), None).await;
            assert_eq!(outcome.last.reason, "TCPConnectError", "{address}");
        }
    }

    #[test]
    fn client_certificate_is_presented() {
        let signed = self_signed();
        let identity = Identity {
            certificate: signed.0.as_bytes(),
            key: signed.1.as_bytes(),
        };
        assert!(config(Some(identity)).is_ok_and(|config| config.client_auth_cert_resolver.has_certs()));
        let broken = Identity {
            certificate: b"",
            key: b"",
        };
        assert!(config(Some(broken)).is_err());
    }

    fn self_signed() -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["c".to_owned()]).expect("names");
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}
