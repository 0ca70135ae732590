use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A proxy that answers in place of each endpoint. Each connection gets the next status. The proxy reports the first
/// line and the credentials of each request.
struct Proxy {
    address: String,
    requests: UnboundedReceiver<String>,
    bundle: String,
}

impl Proxy {
    async fn start(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (sender, requests) = mpsc::unbounded_channel();
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["endpoint.example".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a configuration");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            for status in statuses {
                let (stream, _) = listener.accept().await.expect("a connection");
                let _ = serve(Box::new(stream), *status, &acceptor, &sender).await;
            }
        });
        Self {
            address,
            requests,
            bundle: cert.pem(),
        }
    }

    /// All requests since the last call.
    fn requests(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

async fn serve(
    mut stream: Box<dyn Stream>,
    status: u16,
    acceptor: &TlsAcceptor,
    requests: &UnboundedSender<String>,
) -> io::Result<()> {
    let request = head(&mut stream).await?;
    let is_tunnel = request.starts_with("CONNECT");
    requests.send(request).expect("a test");
    if !is_tunnel {
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        return stream.write_all(answer.as_bytes()).await;
    }
    if status == 407 {
        return stream.write_all(b"HTTP/1.1 407 Login\r\n\r\n").await;
    }
    stream
        .write_all(b"HTTP/1.1 200 Established\r\nVia: x\r\n\r\n")
        .await?;
    let mut inner: Box<dyn Stream> = Box::new(acceptor.accept(stream).await?);
    let request = head(&mut inner).await?;
    requests.send(request).expect("a test");
    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
    inner.write_all(answer.as_bytes()).await?;
    inner.flush().await
}

/// The first line of a request, and its credentials.
async fn head(stream: &mut Box<dyn Stream>) -> io::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await?);
    }
    let text = String::from_utf8(bytes).expect("text");
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_end_matches(" HTTP/1.1");
    let login = lines.find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    Ok(login.map_or_else(|| first.to_owned(), |login| format!("{first} {login}")))
}

fn spec(http: &str, https: &str, endpoint: &str) -> Spec {
    Spec {
        http_proxy: http.to_owned(),
        https_proxy: https.to_owned(),
        readiness_endpoints: vec![endpoint.to_owned()],
        ..Spec::default()
    }
}

// cluster-network#94
#[tokio::test(start_paused = true)]
async fn endpoint_is_probed_through_proxy_up_to_three_times() {
    let mut proxy = Proxy::start(&[503, 500, 302]).await;
    let url = format!("http://us%65r:pass@{}", proxy.address);
    let asked = spec(&url, "", "http://endpoint.example/ready?x=1");
    check(&asked, "", None).await.expect("the third answer is good");
    // The base64 encoding of `user:pass`.
    let expected = "GET http://endpoint.example:80/ready?x=1 Basic dXNlcjpwYXNz";
    assert_eq!(proxy.requests(), [expected; 3]);

    let mut proxy = Proxy::start(&[503, 503, 503, 200]).await;
    let url = format!("http://{}", proxy.address);
    let error = check(&spec(&url, "", "http://endpoint.example/"), "", None).await;
    assert_eq!(
        error.expect_err("three failures").to_string(),
        "readinessEndpoint probe failed for endpoint 'http://endpoint.example/': status 503"
    );
    assert_eq!(proxy.requests().len(), 3);
}

// cluster-network#95
#[tokio::test]
async fn endpoint_with_tls_is_verified_by_the_bundle() {
    let mut proxy = Proxy::start(&[204]).await;
    let url = format!("http://{}", proxy.address);
    let asked = spec("", &url, "https://endpoint.example/ready");
    check(&asked, &proxy.bundle, None).await.expect("a good answer");
    assert_eq!(proxy.requests(), ["CONNECT endpoint.example:443", "GET /ready"]);
}

// cluster-network#95
#[tokio::test(start_paused = true)]
async fn untrusted_endpoint_and_refused_tunnel_fail() {
    let proxy = Proxy::start(&[204, 204, 204]).await;
    let url = format!("http://{}", proxy.address);
    let asked = spec("", &url, "https://endpoint.example/ready");
    let error = check(&asked, "", None)
        .await
        .expect_err("an unknown authority")
        .to_string();
    assert!(error.contains("certificate"), "{error}");

    let proxy = Proxy::start(&[407, 407, 407]).await;
    let url = format!("http://{}", proxy.address);
    let error = check(&spec("", &url, "https://endpoint.example/"), "", None).await;
    let error = error.expect_err("no tunnel").to_string();
    assert!(
        error.ends_with("the proxy refused the tunnel with status 407"),
        "{error}"
    );
}

// cluster-network#94
#[tokio::test]
async fn wrong_endpoint_and_missing_proxy_fail_at_once() {
    for (endpoint, cause) in [
        ("ftp://x/", "endpoint must be a URL of scheme http or https"),
        ("x", "endpoint must be a URL of scheme http or https"),
        (
            "http://x/",
            "httpProxy must be set for an endpoint of this scheme",
        ),
    ] {
        let error = check(&spec("", "http://proxy", endpoint), "", None).await;
        let expected = format!("readinessEndpoint probe failed for endpoint '{endpoint}': {cause}");
        assert_eq!(error.expect_err("an error").to_string(), expected);
    }
}

#[test]
fn urls_have_their_parts() {
    let target = Target::parse("https://[fd00::1]:8443").expect("a URL");
    assert_eq!(
        (target.host(), target.port, target.path.as_str()),
        ("fd00::1", 8443, "/")
    );
    assert_eq!(target.to_string(), "[fd00::1]:8443");
    assert_eq!(decoded("a%3Ab%4"), b"a:b%4");
}
