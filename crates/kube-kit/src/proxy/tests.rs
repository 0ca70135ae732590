use super::*;
use crate::client;
use crate::metrics::Requests;
use axum::http::Request;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream as Stream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The proxy for a server with these variables: its URL, or the error.
fn of(server: &str, variables: &[(&str, &str)], named: Option<&str>) -> Result<Option<String>, String> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let server = server.parse().expect("a URL");
    chosen(&server, named, variable)
        .map(|proxy| proxy.map(|url| url.to_string()))
        .map_err(|error| error.to_string())
}

#[test]
fn exceptions_are_those_of_go() {
    for (server, exceptions, is_direct) in [
        ("https://10.0.0.1:6443", "", false),
        ("https://10.0.0.1:6443", "10.0.0.0/8", true),
        ("https://10.0.0.1:6443", "192.168.0.0/16, 10.0.0.1", true),
        ("https://10.0.0.1:6443", "10.0.0.1:443,10.0.0.2", false),
        ("https://10.0.0.1:6443", "10.0.0.1:6443", true),
        ("https://10.0.0.1:6443", "*", true),
        ("https://[fd00::1]", "fd00::/16", true),
        ("https://[fd00::1]", "[fd00::1]:443", true),
        ("https://[fd00::1]", "fd00::1", true),
        ("https://[fd00::1]", "fd00::2,::/127", false),
        ("https://api.example.com", "example.com", true),
        ("https://API.example.com", ".EXAMPLE.com", true),
        ("https://api.example.com", "*.example.com", true),
        ("https://api.example.com", "example.com:443", true),
        ("https://api.example.com", "example.com:6443", false),
        ("https://api.example.com", "ample.com,com.", false),
        ("https://example.com", ".example.com,*.example.com,,:443", false),
        ("https://example.com", "other , example.com", true),
        ("https://localhost:6443", "", true),
        ("https://127.0.0.2:6443", "", true),
        ("https://[::1]:6443", "", true),
        ("http://10.0.0.1:8080", "", true),
    ] {
        let variables = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", exceptions)];
        let expected = (!is_direct).then(|| "http://proxy:3128/".to_owned());
        assert_eq!(
            of(server, &variables, None),
            Ok(expected),
            "{server} {exceptions}"
        );
    }
}

#[test]
fn proxy_of_the_kubeconfig_precedes_the_environment() {
    const SERVER: &str = "https://10.0.0.1:6443";
    let of = |variables: &[_], named| of(SERVER, variables, named);
    assert_eq!(of(&[], None), Ok(None));
    // An empty variable is like none, and upper case is first.
    let empty = [("HTTPS_PROXY", ""), ("https_proxy", "lower:1/")];
    assert_eq!(of(&empty, None), Ok(Some("http://lower:1/".to_owned())));
    let both = [("HTTPS_PROXY", "socks5://upper:1"), ("https_proxy", "lower:1")];
    assert_eq!(of(&both, None), Ok(Some("socks5://upper:1/".to_owned())));
    let excepted = [
        ("https_proxy", "https://unsupported"),
        ("NO_PROXY", ""),
        ("no_proxy", "10.0.0.1"),
    ];
    assert_eq!(of(&excepted, None), Ok(None));
    let named = of(&excepted, Some("http://bastion:8080"));
    assert_eq!(named, Ok(Some("http://bastion:8080/".to_owned())));
    for (url, supported) in [
        ("http://user:pass@[fd00::1]:1", true),
        ("socks5h://host", true),
        ("https://host", false),
        ("socks4://host", false),
        ("ftp://host", false),
        ("http://ho st", false),
    ] {
        let from_variable = of(&[("https_proxy", url)], None);
        let from_field = of(&[], Some(url));
        assert_eq!(
            (from_variable.is_ok(), from_field.is_ok()),
            (supported, supported),
            "{url}"
        );
        if !supported {
            let text = |from| {
                format!(
                    "cannot use the proxy of {from}: only http://HOST:PORT and socks5://HOST:PORT are supported"
                )
            };
            assert_eq!(from_variable, Err(text("https_proxy")));
            assert_eq!(from_field, Err(text("proxy-url of the kubeconfig")));
        }
    }
}

#[test]
fn proxy_is_that_of_the_contexts_cluster() {
    const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: a, \
        contexts: [{name: a, context: {cluster: one, user: u}}, {name: b, context: {cluster: two, user: u}}], \
        clusters: [{name: one, cluster: {server: 'https://one', proxy-url: 'http://first:1'}}, \
        {name: two, cluster: {server: 'https://two', proxy-url: ''}}]}";
    let read = Kubeconfig::from_yaml(KUBECONFIG).expect("a kubeconfig");
    assert_eq!(named(&read, None).as_deref(), Some("http://first:1"));
    assert_eq!(named(&read, Some("b")), None);
    assert_eq!(named(&read, Some("c")), None);
}

/// A proxy that takes one connection. `handshake` answers until the tunnel exists, then the proxy is the API server.
fn proxy<T: Send + 'static>(handshake: fn(&mut Stream) -> T) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let done = handshake(&mut stream);
        assert!(head(&mut stream).starts_with("GET /healthz HTTP/1.1\r\n"));
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        stream.write_all(answer.as_bytes()).expect("an answer");
        done
    });
    (port, thread)
}

fn head(stream: &mut Stream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(byte(stream));
    }
    String::from_utf8(bytes).expect("text")
}

fn byte(stream: &mut Stream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).expect("a byte");
    byte[0]
}

/// The body of `/healthz` of a server whose name only the proxy knows.
async fn ask(proxy: &str) -> Result<String, String> {
    let mut config = Config::new("http://api.invalid:6443".parse().expect("a URL"));
    config.proxy_url = Some(proxy.parse().expect("a URL"));
    let client = client::counted(config, &Requests::default()).expect("a client");
    let request = Request::get("/healthz").body(Vec::new()).expect("a request");
    let text = client.request_text(request).await;
    text.map_err(|error| client::message(&error))
}

#[tokio::test]
async fn requests_go_through_an_http_proxy() {
    let (port, thread) = proxy(|stream| {
        let asked = head(stream);
        let answer = "HTTP/1.1 200 Connection established\r\n\r\n";
        stream.write_all(answer.as_bytes()).expect("an answer");
        asked
    });
    let body = ask(&format!("http://weft:a%40b@127.0.0.1:{port}")).await;
    assert_eq!(body.as_deref(), Ok("ok"));
    let asked = thread.join().expect("a request");
    assert!(
        asked.starts_with("CONNECT api.invalid:6443 HTTP/1.1\r\n"),
        "{asked}"
    );
    // weft:a@b
    assert!(
        asked.contains("\r\nProxy-Authorization: Basic d2VmdDphQGI=\r\n"),
        "{asked}"
    );
}

#[tokio::test]
async fn requests_go_through_a_socks_proxy() {
    let (port, thread) = proxy(|stream| {
        let rounds: [(usize, &[u8]); 3] =
            [(3, &[5, 2]), (11, &[1, 0]), (18, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])];
        rounds.map(|(length, answer)| {
            let said: Vec<u8> = (0..length).map(|_| byte(stream)).collect();
            stream.write_all(answer).expect("an answer");
            said
        })
    });
    let body = ask(&format!("socks5://weft:pass@127.0.0.1:{port}")).await;
    assert_eq!(body.as_deref(), Ok("ok"));
    let said = thread.join().expect("a handshake");
    assert_eq!(said[0], [5, 1, 2]);
    assert_eq!(said[1], b"\x01\x04weft\x04pass");
    assert_eq!(said[2], b"\x05\x01\x00\x03\x0bapi.invalid\x19\x2b");
}

#[tokio::test]
async fn error_names_the_proxy_without_its_password() {
    let port = cluster::free_port().expect("a port without a listener");
    for (scheme, cause) in [("http", "Connection refused"), ("socks5", "SOCKS error")] {
        let error = ask(&format!("{scheme}://weft:secret@127.0.0.1:{port}")).await;
        let error = error.expect_err("no proxy");
        assert!(
            error.contains(&format!("proxy {scheme}://127.0.0.1:{port}: ")),
            "{error}"
        );
        assert!(error.contains(cause) && !error.contains("secret"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn proxy_without_answer_fails_at_the_deadline_of_a_connection() {
    // The kernel accepts connections; no program reads them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    for scheme in ["http", "socks5"] {
        let mut config = Config::new("https://api.invalid:6443".parse().expect("a URL"));
        config.proxy_url = format!("{scheme}://127.0.0.1:{port}").parse().ok();
        config.connect_timeout = Some(Duration::from_secs(5));
        let client = client::counted(config, &Requests::default()).expect("a client");
        let began = tokio::time::Instant::now();
        assert!(client.apiserver_version().await.is_err());
        assert_eq!(began.elapsed().as_secs(), 5, "{scheme}");
    }
    drop(listener);
}
