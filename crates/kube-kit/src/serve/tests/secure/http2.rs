//! Servers that offer HTTP/2, and their end.

use tokio::sync::Notify;

use super::*;

/// A protocol in the form of ALPN.
type Protocol = &'static [u8];

const H1: Protocol = b"http/1.1";
const H2: Protocol = b"h2";

/// A server with a path whose answer waits for a release.
struct Slow {
    asked: Arc<Notify>,
    go: Arc<Notify>,
    server: Server,
    identity: Identity,
}

impl Slow {
    async fn start(grace: Duration) -> Self {
        let (asked, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (Arc::clone(&asked), Arc::clone(&go));
        let slow = move || {
            let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
            async move {
                tell.notify_one();
                wait.notified().await;
                "hello"
            }
        };
        let identity = identity();
        let tls = Tls::with_http2(identity.clone()).expect("TLS");
        let limits = Limits {
            grace,
            ..Limits::webhook()
        };
        let router = router().route("/slow", get(slow));
        let server = Server::start_tls_within(local(), router, &tls, limits).await;
        Self {
            asked,
            go,
            server: server.expect("a server"),
            identity,
        }
    }
}

/// Requests over HTTP/2.
type Requests = h2::client::SendRequest<axum::body::Bytes>;

async fn speak_h2(stream: TlsStream<TcpStream>) -> Requests {
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    requests
}

/// Sends a request, and returns the future of its answer's body.
async fn get_h2(requests: &Requests, path: &str) -> impl Future<Output = Result<String, h2::Error>> + use<> {
    let mut requests = requests.clone().ready().await.expect("room for a request");
    let request = axum::http::Request::get(format!("https://{NAME}{path}"))
        .body(())
        .expect("a request");
    let (answer, _) = requests.send_request(request, true).expect("it is sent");
    async move {
        let mut body = answer.await?.into_body();
        let mut text = Vec::new();
        while let Some(bytes) = body.data().await {
            text.extend_from_slice(&bytes?);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn agreed(stream: &TlsStream<TcpStream>) -> Option<Vec<u8>> {
    stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec)
}

// kubemacpool.md §12: HTTP/2 is offered.
#[tokio::test]
async fn http2_is_offered_if_configured() {
    let identity = identity();
    let both = serve(
        &Tls::with_http2(identity.clone()).expect("TLS"),
        Limits::default(),
    )
    .await;
    let old = serve(&Tls::new(identity.clone()).expect("TLS"), Limits::default()).await;
    let cases: [(&Server, &[Protocol], Option<Protocol>); 5] = [
        (&both, &[H1, H2], Some(H2)),
        (&both, &[H1], Some(H1)),
        (&both, &[], None),
        (&old, &[H2, H1], Some(H1)),
        (&old, &[], None),
    ];
    for (server, offered, expected) in cases {
        let client = Client::offering(&identity, offered);
        let mut stream = client.shake_hands(server).await.expect("a connection");
        assert_eq!(agreed(&stream).as_deref(), expected);
        if expected == Some(H2) {
            let requests = speak_h2(stream).await;
            // Several concurrent requests on one connection.
            let answers = [get_h2(&requests, "/").await, get_h2(&requests, "/").await];
            for answer in answers {
                assert_eq!(answer.await.expect("an answer"), "hello");
            }
        } else {
            ask(&mut stream).await.expect("an answer");
        }
    }
}

#[tokio::test]
async fn concurrent_requests_of_connection_are_bounded() {
    let Slow {
        go, server, identity, ..
    } = Slow::start(Duration::from_secs(60)).await;
    let stream = Client::offering(&identity, &[H2]).shake_hands(&server).await;
    let requests = speak_h2(stream.expect("a connection")).await;
    let first = get_h2(&requests, "/").await;
    assert_eq!(first.await.expect("an answer"), "hello");
    // The server announced it before its first answer.
    assert_eq!(requests.current_max_send_streams(), 32);
    drop(go);
}

#[tokio::test]
async fn set_identity_keeps_http2() {
    let (first, second) = (identity(), identity());
    let tls = Tls::with_http2(first).expect("TLS");
    let server = serve(&tls, Limits::default()).await;
    tls.set_identity(second.clone()).expect("the second one");
    tls.set_profile(Profile::read("VersionTLS12", &[] as &[&str]))
        .expect("a profile");
    let stream = Client::offering(&second, &[H2]).shake_hands(&server).await;
    assert_eq!(agreed(&stream.expect("a connection")).as_deref(), Some(H2));
}

#[tokio::test]
async fn stop_waits_for_running_requests() {
    let Slow {
        asked,
        go,
        server,
        identity,
    } = Slow::start(Duration::from_secs(60)).await;
    let address = server.address();
    let stream = Client::offering(&identity, &[H2]).shake_hands(&server).await;
    let requests = speak_h2(stream.expect("a connection")).await;
    let h2 = get_h2(&requests, "/slow").await;
    asked.notified().await;
    let mut h1 = Client::of(&identity).shake_hands(&server).await.expect("another");
    let request = format!("GET /slow HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    h1.write_all(request.as_bytes()).await.expect("a request");
    asked.notified().await;

    let stopping = tokio::spawn(server.stop());
    // Until the port is closed.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished(), "two requests are under way");
    go.notify_one();
    go.notify_one();
    // Both are notified in turn, in any order.
    go.notify_waiters();
    assert_eq!(h2.await.expect("an answer"), "hello");
    let mut answer = Vec::new();
    let _ = h1.read_to_end(&mut answer).await;
    assert!(answer.ends_with(b"hello"), "{}", String::from_utf8_lossy(&answer));
    tokio::time::timeout(Duration::from_secs(60), stopping)
        .await
        .expect("then it ends")
        .expect("without a panic");
}

#[tokio::test]
async fn stop_waits_no_longer_than_grace() {
    let Slow {
        asked,
        go: _never,
        server,
        identity,
    } = Slow::start(Duration::from_millis(100)).await;
    let stream = Client::offering(&identity, &[H2]).shake_hands(&server).await;
    let requests = speak_h2(stream.expect("a connection")).await;
    let _answer = get_h2(&requests, "/slow").await;
    asked.notified().await;
    tokio::time::timeout(Duration::from_secs(30), server.stop())
        .await
        .expect("it ends");
}
