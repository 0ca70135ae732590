//! Servers over TLS with various clients.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::{Error, Limits, Server};
use super::local;
use crate::tls::{Identity, Profile, Tls};

const NAME: &str = "metrics.addons.svc";

/// A client that trusts one server.
struct Client {
    identity: Identity,
    versions: Vec<&'static SupportedProtocolVersion>,
    post_quantum_alone: bool,
    /// Offered protocols, best first.
    protocols: Vec<&'static [u8]>,
}

impl Client {
    fn of(identity: &Identity) -> Self {
        Self {
            identity: identity.clone(),
            versions: vec![&version::TLS12, &version::TLS13],
            post_quantum_alone: false,
            protocols: Vec::new(),
        }
    }

    fn offering(identity: &Identity, protocols: &[&'static [u8]]) -> Self {
        Self {
            protocols: protocols.to_vec(),
            ..Self::of(identity)
        }
    }

    fn only(version: &'static SupportedProtocolVersion, identity: &Identity) -> Self {
        Self {
            versions: vec![version],
            ..Self::of(identity)
        }
    }

    async fn connect(&self, server: &Server) -> std::io::Result<TlsStream<TcpStream>> {
        let mut stream = self.shake_hands(server).await?;
        // With TLS 1.3 the client learns of a refusal only now.
        ask(&mut stream).await.map(|_| stream)
    }

    async fn shake_hands(&self, server: &Server) -> std::io::Result<TlsStream<TcpStream>> {
        let mut provider = aws_lc_rs::default_provider();
        if self.post_quantum_alone {
            provider.kx_groups = vec![kx_group::X25519MLKEM768];
        }
        let mut roots = RootCertStore::empty();
        roots
            .add(self.identity.certificate().clone())
            .expect("a certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&self.versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = TcpStream::connect(server.address()).await?;
        let name = ServerName::try_from(NAME).expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> std::io::Result<String> {
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"hello") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn identity() -> Identity {
    Identity::self_signed(&[NAME.to_owned()]).expect("an identity")
}

fn router() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

async fn serve(tls: &Tls, limits: Limits) -> Server {
    let started: Result<_, Error> = Server::start_tls_within(local(), router(), tls, limits).await;
    started.expect("a server")
}

fn chosen(stream: &TlsStream<TcpStream>) -> (Option<ProtocolVersion>, String) {
    let (_, session) = stream.get_ref();
    let cipher = session.negotiated_cipher_suite().expect("a cipher").suite();
    (
        session.protocol_version(),
        cipher.as_str().unwrap_or_default().to_owned(),
    )
}

#[tokio::test]
async fn set_profile_takes_effect_with_next_handshake() {
    let identity = identity();
    let tls = Tls::new(identity.clone()).expect("TLS");
    let server = serve(&tls, Limits::default()).await;
    let (old, both) = (Client::only(&version::TLS12, &identity), Client::of(&identity));

    old.connect(&server).await.expect_err("TLS 1.3 alone");
    let mut stays = both.connect(&server).await.expect("TLS 1.3");
    let cipher = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    tls.set_profile(Profile::read("VersionTLS12", &[cipher]))
        .expect("a profile");
    let found = chosen(&old.connect(&server).await.expect("TLS 1.2"));
    assert_eq!(found, (Some(ProtocolVersion::TLSv1_2), cipher.to_owned()));
    let (version, _) = chosen(&both.connect(&server).await.expect("the better one"));
    assert_eq!(version, Some(ProtocolVersion::TLSv1_3));
    tls.set_profile(Profile::read("VersionTLS13", &[cipher]))
        .expect("a profile");
    old.connect(&server).await.expect_err("TLS 1.3 alone");
    ask(&mut stays)
        .await
        .expect("connections that stand are left alone");
    server.stop().await;
}

#[tokio::test]
async fn post_quantum_key_exchange_is_preferred() {
    let identity = identity();
    let tls = Tls::new(identity.clone()).expect("TLS");
    let server = serve(&tls, Limits::default()).await;
    let alone = Client {
        post_quantum_alone: true,
        ..Client::only(&version::TLS13, &identity)
    };
    for client in [alone, Client::of(&identity)] {
        let stream = client.connect(&server).await.expect("a connection");
        let (_, session) = stream.get_ref();
        let group = session.negotiated_key_exchange_group().expect("a group").name();
        assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
    }
}

#[tokio::test]
async fn set_identity_takes_effect_with_next_handshake() {
    let (first, second) = (identity(), identity());
    let tls = Tls::new(first.clone()).expect("TLS");
    let server = serve(&tls, Limits::default()).await;
    Client::of(&first).connect(&server).await.expect("the first one");
    tls.set_identity(second.clone()).expect("the second one");
    Client::of(&second)
        .connect(&server)
        .await
        .expect("the second one");
    Client::of(&first)
        .connect(&server)
        .await
        .expect_err("it is not the first one any more");
}

#[tokio::test]
async fn slow_handshake_blocks_no_other_client_and_is_closed() {
    let identity = identity();
    let tls = Tls::new(identity.clone()).expect("TLS");
    let limits = Limits {
        // Long enough for the other client on a busy machine.
        handshake: Duration::from_secs(5),
        ..Limits::default()
    };
    let server = serve(&tls, limits).await;
    let mut slow = TcpStream::connect(server.address()).await.expect("a connection");
    Client::of(&identity)
        .connect(&server)
        .await
        .expect("another client");
    let mut nothing = Vec::new();
    let read = slow.read_to_end(&mut nothing).await;
    assert!(
        nothing.is_empty(),
        "{read:?}: the server hangs up, sooner or later"
    );
    server.stop().await;
}

#[tokio::test]
async fn silent_connection_is_closed() {
    let identity = identity();
    let tls = Tls::new(identity.clone()).expect("TLS");
    let limits = Limits {
        silence: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = serve(&tls, limits).await;
    let mut silent = Client::of(&identity)
        .connect(&server)
        .await
        .expect("a connection");
    let mut nothing = Vec::new();
    let _ = silent.read_to_end(&mut nothing).await;
    assert!(nothing.is_empty(), "the server ends the connection");
}

#[tokio::test]
async fn new_connection_replaces_idle_one() {
    let identity = identity();
    let tls = Tls::new(identity.clone()).expect("TLS");
    let limits = Limits {
        connections: 1,
        ..Limits::default()
    };
    let server = serve(&tls, limits).await;
    let idle = Client::of(&identity).connect(&server).await;
    let mut idle = idle.expect("the only one");
    let next = Client::of(&identity).connect(&server).await;
    next.expect("the next one");
    ask(&mut idle).await.expect_err("it has ended");
}

#[tokio::test]
async fn stop_closes_handshakes_and_idle_connections() {
    let identity = identity();
    let tls = Tls::new(identity.clone()).expect("TLS");
    let server = serve(&tls, Limits::default()).await;
    let mut slow = TcpStream::connect(server.address()).await.expect("a connection");
    let mut idle = Client::of(&identity)
        .connect(&server)
        .await
        .expect("a connection");
    server.stop().await;
    let mut nothing = Vec::new();
    let _ = slow.read_to_end(&mut nothing).await;
    let _ = idle.read_to_end(&mut nothing).await;
    assert!(nothing.is_empty(), "both have ended");
}

mod http2;
