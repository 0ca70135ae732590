//! TLS clients of tests and benchmarks.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, StreamOwned, SupportedProtocolVersion,
};

/// Accepts every server certificate, like a kubelet, or a `ServiceMonitor` with `insecureSkipVerify`. The server must
/// have the key of its certificate.
#[derive(Debug)]
pub struct Anybody(Arc<CryptoProvider>);

impl Anybody {
    /// Returns a verifier with the algorithms of a client.
    pub fn new(provider: Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(Self(provider))
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Runs an in-memory handshake between a server with these certificates and this key, and a client that calls it `host`
/// and trusts the bundle. All arguments are PEM.
///
/// # Errors
/// The reason of the failure, as text.
pub fn handshake(certificates: &[u8], key: &[u8], bundle: &[u8], host: &str) -> Result<(), String> {
    let text = |error: &dyn Display| error.to_string();
    let read = |pem: &[u8]| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem)
            .filter_map(Result::ok)
            .collect()
    };
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| text(&e))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config
                .with_no_client_auth()
                .with_single_cert(read(certificates), key)
        })
        .map_err(|e| text(&e))?;
    let mut roots = RootCertStore::empty();
    for root in read(bundle) {
        roots.add(root).map_err(|e| text(&e))?;
    }
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| text(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = ServerName::try_from(host.to_owned()).map_err(|e| text(&e))?;
    let mut client = ClientConnection::new(Arc::new(client), host).map_err(|e| text(&e))?;
    let mut server = ServerConnection::new(Arc::new(server)).map_err(|e| text(&e))?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).map_err(|e| text(&e))?;
        server.read_tls(&mut wire.as_slice()).map_err(|e| text(&e))?;
        server.process_new_packets().map_err(|e| text(&e))?;
        let mut wire = Vec::new();
        server.write_tls(&mut wire).map_err(|e| text(&e))?;
        client.read_tls(&mut wire.as_slice()).map_err(|e| text(&e))?;
        client.process_new_packets().map_err(|e| text(&e))?;
    }
    Ok(())
}

/// Settings of an HTTPS client.
#[derive(Clone, Debug)]
pub struct Peer {
    /// TLS versions.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// The trusted certificate, as PEM. `None` accepts every certificate.
    pub trusted: Option<String>,
    /// Timeout of a read.
    pub timeout: Duration,
}

impl Peer {
    /// Sends an HTTP/1.1 request of head and body, which must contain `Connection: close`. Returns status code and body
    /// of the answer.
    ///
    /// # Errors
    /// The reason of the failure, as text.
    pub fn ask(&self, address: SocketAddr, request: &[u8]) -> Result<(u16, String), String> {
        let text = |error: &dyn Display| error.to_string();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.versions)
            .map_err(|e| text(&e))?;
        let config = match &self.trusted {
            None => config
                .dangerous()
                .with_custom_certificate_verifier(Anybody::new(provider))
                .with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| text(&e))?;
                roots.add(certificate).map_err(|e| text(&e))?;
                config.with_root_certificates(roots).with_no_client_auth()
            }
        };
        let name = ServerName::try_from("localhost").map_err(|e| text(&e))?;
        let session = ClientConnection::new(Arc::new(config), name).map_err(|e| text(&e))?;
        let stream = TcpStream::connect(address).map_err(|e| text(&e))?;
        stream
            .set_read_timeout(Some(self.timeout))
            .map_err(|e| text(&e))?;
        let mut stream = StreamOwned::new(session, stream);
        stream.write_all(request).map_err(|e| text(&e))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|e| text(&e))?;
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.ok_or_else(|| answer.clone())?;
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        Ok((code, body.unwrap_or_default()))
    }
}
