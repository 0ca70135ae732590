#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion, version};
use tls_client::Anybody;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use webhook::admission::{self, Request, Verdict};

use super::*;

const NAME: &str = "kubemacpool-service.kubemacpool-system.svc";

/// A client that trusts one certificate, or any.
#[derive(Clone)]
struct Peer {
    trusted: Option<CertificateDer<'static>>,
    versions: Vec<&'static SupportedProtocolVersion>,
    /// A cipher that it does not support.
    without: Option<&'static str>,
    /// Its client certificate, with its key as PEM.
    shown: Option<(CertificateDer<'static>, String)>,
}

impl Peer {
    fn of(trusted: Option<&Pair>) -> Self {
        Self {
            trusted: trusted.map(|pair| pair.certificate.clone()),
            versions: vec![&version::TLS12, &version::TLS13],
            without: None,
            shown: None,
        }
    }

    fn only(version: &'static SupportedProtocolVersion) -> Self {
        Self {
            trusted: None,
            versions: vec![version],
            without: None,
            shown: None,
        }
    }

    fn showing(pair: &Pair) -> Self {
        Self {
            shown: Some((pair.certificate.clone(), pair.key.clone())),
            ..Self::of(None)
        }
    }

    /// Sends a request, and returns the response with the TLS version and cipher.
    async fn ask(
        &self,
        address: SocketAddr,
        request: &str,
    ) -> std::io::Result<(String, ProtocolVersion, String)> {
        let mut provider = aws_lc_rs::default_provider();
        provider
            .cipher_suites
            .retain(|suite| self.without.is_none() || suite.suite().as_str() != self.without);
        let provider = Arc::new(provider);
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.versions)
            .expect("versions");
        let config = match &self.trusted {
            Some(certificate) => {
                let mut roots = RootCertStore::empty();
                roots.add(certificate.clone()).expect("a certificate");
                config.with_root_certificates(roots)
            }
            None => config
                .dangerous()
                .with_custom_certificate_verifier(Anybody::new(provider)),
        };
        let config = match &self.shown {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                let chain = vec![certificate.clone()];
                config.with_client_auth_cert(chain, key).expect("a certificate")
            }
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(NAME).expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let head = format!("Host: {NAME}\r\nConnection: close\r\nContent-Type: application/json\r\n");
        let request = request.replacen("\r\n", &format!("\r\n{head}"), 1);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, session) = stream.get_ref();
        let cipher = session.negotiated_cipher_suite().expect("a cipher").suite();
        Ok((
            answer,
            session.protocol_version().expect("a version"),
            cipher.as_str().unwrap_or_default().to_owned(),
        ))
    }

    async fn get(&self, server: &Webhooks, path: &str) -> std::io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\n\r\n");
        self.ask(server.address(), &request)
            .await
            .map(|(answer, ..)| answer)
    }
}

/// A self-signed certificate with its key.
struct Pair {
    certificate: CertificateDer<'static>,
    pem: String,
    key: String,
}

impl Pair {
    fn new() -> Self {
        Self::named(NAME)
    }

    fn named(name: &str) -> Self {
        // The key type of the Secrets.
        let key = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("a key");
        let mut params = CertificateParams::new([NAME.to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            pem: certificate.pem(),
            key: key.serialize_pem(),
            certificate: certificate.into(),
        }
    }

    fn write(&self, directory: &Path) {
        fs::write(directory.join("tls.crt"), &self.pem).expect("a file");
        fs::write(directory.join("tls.key"), &self.key).expect("a file");
    }
}

async fn decide(request: Request) -> Verdict {
    Verdict::denied(500, format!("asked about {}", request.name))
}

async fn start(directory: &Path, profile: Profile, pool: &Readiness) -> Webhooks {
    start_for(None, directory, profile, pool).await
}

async fn start_for(client: Option<Client>, directory: &Path, profile: Profile, pool: &Readiness) -> Webhooks {
    let settings = Settings {
        bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0).into(),
        certificates: directory.to_owned(),
        profile,
        client,
    };
    let router = admission::router(names::MUTATE_PODS, decide);
    Webhooks::start(settings, pool.clone(), router)
        .await
        .expect("a server")
}

fn review(query: &str) -> String {
    let body = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","name":"web"}}"#;
    let length = body.len();
    format!("POST /mutate-pods{query} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// Status and body of a response.
fn parts(answer: &str) -> (&str, &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).expect("a status"), body)
}

/// Polls until the response is as expected: clients get no notice when the server reads new files.
async fn until(what: &str, mut asked: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while let Err(error) = asked().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// kubemacpool#64
#[tokio::test]
async fn probes_follow_readiness() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = Readiness::new();
    let server = start(directory.path(), Profile::default(), &pool).await;
    let kubelet = Peer::of(None);
    let not_ready = ("500", "internal server error: pool manager not ready");
    let ask = async |path| kubelet.get(&server, path).await.expect("an answer");

    // It is healthy without a certificate that the API server trusts too.
    assert_eq!(parts(&ask("/healthz").await), ("200", "ok"));
    assert_eq!(parts(&ask("/readyz").await), not_ready);
    pool.set(true);
    assert_eq!(parts(&ask("/readyz").await), not_ready, "no certificate");
    Pair::new().write(directory.path());
    until("ready", async || match parts(&ask("/readyz").await) {
        ("200", "ok") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    pool.set(false);
    assert_eq!(parts(&ask("/readyz").await), not_ready, "no pool");
    assert_eq!(parts(&ask("/healthz").await), ("200", "ok"));
    server.stop().await;
}

// kubemacpool#94
#[tokio::test]
async fn only_the_named_client_is_served_with_client_ca() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = Readiness::new();
    pool.set(true);
    Pair::new().write(directory.path());
    let [server, other, stranger] = ["kube-apiserver", "node01", "kube-apiserver"].map(Pair::named);
    let authorities = [&*server.pem, &*other.pem].concat();
    let client = Client {
        authorities: Authorities::from_pem(authorities.as_bytes()).expect("authorities"),
        name: "kube-apiserver".to_owned(),
    };
    let webhooks = start_for(Some(client), directory.path(), Profile::default(), &pool).await;
    let ask = async |peer: &Peer, request: &str| {
        let answer = peer.ask(webhooks.address(), request).await;
        answer.map(|(answer, ..)| parts(&answer).0.to_owned())
    };
    let (nobody, known) = (Peer::of(None), Peer::showing(&server));
    assert_eq!(ask(&known, &review("")).await.expect("an answer"), "200");
    for peer in [&nobody, &Peer::showing(&other)] {
        assert_eq!(ask(peer, &review("")).await.expect("an answer"), "401");
        // The kubelet has no certificate for its probes.
        let probe = "GET /healthz HTTP/1.1\r\n\r\n";
        assert_eq!(ask(peer, probe).await.expect("an answer"), "200");
    }
    let refused = ask(&Peer::showing(&stranger), &review("")).await;
    refused.expect_err("a certificate of a strange authority");
}

#[tokio::test]
async fn certificate_follows_its_files_and_ignores_bad_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = Readiness::new();
    pool.set(true);
    let (first, second) = (Pair::new(), Pair::new());
    first.write(directory.path());
    let server = start(directory.path(), Profile::default(), &pool).await;
    let (old, new) = (Peer::of(Some(&first)), Peer::of(Some(&second)));
    let ready = old
        .get(&server, "/readyz")
        .await
        .expect("the first one, from the start");
    assert_eq!(parts(&ready), ("200", "ok"));
    new.get(&server, "/readyz").await.expect_err("not yet");
    fs::write(directory.path().join("tls.crt"), "nonsense").expect("a file");
    old.get(&server, "/readyz").await.expect("the first one stays");
    second.write(directory.path());
    until("the second one", async || {
        new.get(&server, "/readyz")
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
    old.get(&server, "/readyz").await.expect_err("not any more");
}

// The end of kubemacpool.md §8.
#[tokio::test]
async fn request_waits_for_pool_until_its_timeout() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = Readiness::new();
    let server = start(directory.path(), Profile::default(), &pool).await;
    let api_server = Peer::of(None);
    let address = server.address();
    let (answer, ..) = api_server
        .ask(address, &review("?timeout=1s"))
        .await
        .expect("an answer");
    let expected = ("500", "internal server error: pool manager not ready");
    assert_eq!(parts(&answer), expected);

    let waiting = tokio::spawn(async move { api_server.ask(address, &review("?timeout=30s")).await });
    // Another client's response while the first waits.
    let (answer, ..) = Peer::of(None)
        .ask(address, &review("?timeout=1s"))
        .await
        .expect("an answer");
    assert_eq!(parts(&answer), expected);
    assert!(!waiting.is_finished(), "it waits");
    pool.set(true);
    let (answer, ..) = waiting.await.expect("no panic").expect("an answer");
    let (status, body) = parts(&answer);
    assert_eq!(status, "200");
    assert!(body.contains("asked about web"), "{body}");
}

#[test]
fn timeout_follows_the_request() {
    let cases = [
        ("/mutate-pods?timeout=10s", 9_000),
        ("/mutate-pods?timeout=1s", 900),
        ("/mutate-pods?a=b&timeout=30s", 27_000),
        ("/mutate-pods", 9_000),
        ("/mutate-pods?timeout=", 9_000),
        ("/mutate-pods?timeout=99999999999s", 9_000),
    ];
    for (uri, expected) in cases {
        let uri: Uri = uri.parse().expect("a URI");
        assert_eq!(timeout(&uri), Duration::from_millis(expected), "{uri}");
    }
}

// kubemacpool#90
#[tokio::test]
async fn tls_flags_select_versions_and_ciphers() {
    const CIPHER: &str = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let directory = tempfile::tempdir().expect("a directory");
    Pair::new().write(directory.path());
    let pool = Readiness::new();
    let old = Peer::only(&version::TLS12);
    let both = Peer::of(None);
    let chosen = async |peer: &Peer, server: &Webhooks| {
        let asked = peer.ask(server.address(), "GET /healthz HTTP/1.1\r\n\r\n").await;
        asked.map(|(_, version, cipher)| (version, cipher))
    };

    let default = start(
        directory.path(),
        profile("VersionTLS13", "").expect("a profile"),
        &pool,
    )
    .await;
    chosen(&old, &default).await.expect_err("TLS 1.3 alone");
    let (version, _) = chosen(&both, &default).await.expect("TLS 1.3");
    assert_eq!(version, ProtocolVersion::TLSv1_3);
    // A supported cipher, an invented one, and an unsupported one.
    let ciphers = format!(" nobody ,{CIPHER},TLS_RSA_WITH_AES_128_CBC_SHA,");
    for lowest in ["VersionTLS12", "VersionTLS11", "VersionTLS10"] {
        let one = start(
            directory.path(),
            profile(lowest, &ciphers).expect("a profile"),
            &pool,
        )
        .await;
        let found = chosen(&old, &one).await.expect("TLS 1.2");
        assert_eq!(found, (ProtocolVersion::TLSv1_2, CIPHER.to_owned()), "{lowest}");
        let others = Peer {
            without: Some(CIPHER),
            ..old.clone()
        };
        chosen(&others, &one).await.expect_err("that cipher alone");
    }
    let short = profile("VersionTLS12", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305").expect("a profile");
    let chacha = start(directory.path(), short, &pool).await;
    let (_, cipher) = chosen(&old, &chacha).await.expect("TLS 1.2");
    assert_eq!(cipher, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256");

    let error = profile("VersionTLS99", "").expect_err("no version").to_string();
    assert_eq!(error, "invalid TLS version \"VersionTLS99\"");
}
