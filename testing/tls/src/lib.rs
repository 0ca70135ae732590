//! TLS clients of tests and benchmarks.

use std::fmt::Display;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};

/// Trusts whoever answers, as a kubelet does, and a `ServiceMonitor` with `insecureSkipVerify`; but he has to have the key
/// of the certificate that he shows.
#[derive(Debug)]
pub struct Anybody(Arc<CryptoProvider>);

impl Anybody {
    /// With what a client can do.
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

/// A handshake, in memory, of a server with these certificates and this key, and a client that calls it `host` and trusts
/// what the bundle holds; all as PEM.
///
/// # Errors
/// Why there is none, for people.
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
