use super::*;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

fn local() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)
}

#[tokio::test]
async fn probes_report_health_and_readiness() {
    let readiness = Readiness::new();
    let server = Server::start(local(), probes(readiness.clone()))
        .await
        .expect("a server");
    let healthy = ask(server.address(), "/healthz").await;
    assert!(
        healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("\r\n\r\nok"),
        "{healthy}"
    );
    assert!(ask(server.address(), "/readyz").await.starts_with("HTTP/1.1 503"));
    readiness.set(true);
    assert!(ask(server.address(), "/readyz").await.starts_with("HTTP/1.1 200"));
    let address = server.address();
    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    Server::start(address, probes(readiness))
        .await
        .expect("the same port again");
}

#[tokio::test]
async fn on_port_serves_ipv4_too() {
    let server = Server::on_port(0, probes(Readiness::new()))
        .await
        .expect("a server");
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), server.address().port());
    assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn metrics_have_one_line_each() {
    let mut registry = Registry::default();
    let gauge: Gauge = Gauge::default();
    registry.register("weft_ready", "Ready", gauge.clone());
    gauge.set(1);
    let server = Server::start(local(), metrics(Arc::new(registry)))
        .await
        .expect("a server");
    let answer = ask(server.address(), "/metrics").await;
    assert!(answer.lines().any(|line| line == "weft_ready 1"), "{answer}");
}

#[tokio::test]
async fn start_on_taken_port_names_address() {
    let server = Server::start(local(), Router::new()).await.expect("a server");
    let error = Server::start(server.address(), Router::new())
        .await
        .expect_err("an error");
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {}", server.address())
    );
}

#[tokio::test]
async fn slow_head_closes_its_connection() {
    let limits = Limits {
        head: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = Server::start_within(local(), probes(Readiness::new()), limits)
        .await
        .expect("a server");
    let mut kept = TcpStream::connect(server.address()).await.expect("a connection");
    // A connection without a request outlives a slow head, before its first request and between two.
    for _ in 0..2 {
        let mut slow = TcpStream::connect(server.address()).await.expect("a connection");
        slow.write_all(b"GET /healthz HT")
            .await
            .expect("a part of a head");
        let mut nothing = Vec::new();
        let read = slow.read_to_end(&mut nothing).await;
        assert!(nothing.is_empty(), "{read:?}: the server ends the connection");
        kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .expect("a request");
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            assert_ne!(kept.read_buf(&mut answer).await.expect("an answer"), 0);
        }
    }
}

/// A connection from another local address.
async fn from(last: u8, server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let own = SocketAddr::new(Ipv4Addr::new(127, 0, 0, last).into(), 0);
    socket.bind(own).expect("an address");
    socket.connect(server.address()).await.expect("a connection")
}

#[tokio::test]
async fn flood_of_one_client_does_not_block_others() {
    let limits = Limits {
        connections: 8,
        ..Limits::default()
    };
    let server = Server::start_within(local(), probes(Readiness::new()), limits)
        .await
        .expect("a server");
    let mut other = from(3, &server).await;
    let mut flood = Vec::new();
    for _ in 0..50 {
        let mut slow = from(2, &server).await;
        slow.write_all(b"GET /healthz HT")
            .await
            .expect("a part of a head");
        flood.push(slow);
    }
    // A connection of the flood is closed for each new one; those of others stay.
    assert!(
        ask(server.address(), "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    other
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .expect("a request");
    let mut answer = String::new();
    other.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

mod secure;
