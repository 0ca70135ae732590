//! The order of calls on every path, with a fake engine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Request as HttpRequest, Response};
use kube::client::Body;
use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::*;
use crate::engine::Request;

/// A fake host.
#[derive(Clone, Default)]
struct Host {
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// Requests that fail, by name.
    fails: Vec<&'static str>,
    /// Whether there is something to roll back.
    pending: Arc<Mutex<bool>>,
    /// How often the host was read.
    reads: Arc<Mutex<u32>>,
    /// The report of a host on which no change is pending; the report is empty while one is.
    usual: Option<Value>,
}

impl Host {
    fn error(what: &str) -> engine::Error {
        engine::Error {
            kind: "Bug".to_owned(),
            text: format!("{what} failed"),
            log: String::new(),
        }
    }

    fn outcome(&self, what: &'static str) -> Result<(), engine::Error> {
        self.calls.lock().unwrap().push(what);
        if self.fails.contains(&what) {
            return Err(Self::error(what));
        }
        Ok(())
    }

    fn engine(&self) -> Engine {
        let (engine, mut requests) = Engine::channel();
        let host = self.clone();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                match request {
                    Request::Report(back) => {
                        *host.reads.lock().unwrap() += 1;
                        let usual = host.usual.clone().filter(|_| !*host.pending.lock().unwrap());
                        drop(back.send(Ok(usual.unwrap_or_else(|| json!({})))));
                    }
                    Request::Apply(_, back) => {
                        let outcome = host.outcome("apply");
                        *host.pending.lock().unwrap() = outcome.is_ok();
                        drop(back.send(outcome));
                    }
                    Request::Commit(back) => drop(back.send(host.outcome("commit"))),
                    Request::Rollback(back) => {
                        let outcome = host.outcome("rollback");
                        let pending = std::mem::take(&mut *host.pending.lock().unwrap());
                        let outcome = outcome.and_then(|()| {
                            if pending {
                                Ok(())
                            } else {
                                Err(Self::error("rollback"))
                            }
                        });
                        drop(back.send(outcome));
                    }
                    other => panic!("not expected: {other:?}"),
                }
            }
        });
        engine
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }

    fn reads(&self) -> u32 {
        *self.reads.lock().unwrap()
    }
}

/// An API server whose answer to a path is that of `answer`: none is silence.
fn server(answer: fn(&str) -> Option<(u16, Value)>) -> Client {
    let service = tower::service_fn(move |request: HttpRequest<Body>| async move {
        let Some((code, body)) = answer(request.uri().path()) else {
            return std::future::pending().await;
        };
        let body = Body::from(serde_json::to_vec(&body).unwrap());
        Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
    });
    Client::new(service, "default")
}

#[allow(clippy::unnecessary_wraps, reason = "servers may be silent, others are")]
fn healthy(path: &str) -> Option<(u16, Value)> {
    Some((
        200,
        match path {
            "/api/v1/namespaces/default" => {
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
            }
            "/api/v1/nodes/node01" => {
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node01"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
            }
            other => panic!("not expected: {other}"),
        },
    ))
}

fn not_ready(path: &str) -> Option<(u16, Value)> {
    let (code, mut object) = healthy(path)?;
    if path.contains("nodes") {
        object["status"]["conditions"][0]["status"] = json!("False");
    }
    Some((code, object))
}

fn silent(_: &str) -> Option<(u16, Value)> {
    None
}

fn pipeline(host: &Host, client: Client) -> Pipeline {
    Pipeline::new(host.engine(), client, "node01".to_owned(), Settings::default())
}

/// The failure of a change on a host with this API server.
async fn failure(host: &Host, client: Client) -> Failure {
    pipeline(host, client).apply(&desired()).await.unwrap_err()
}

/// The failure of a change after which the API server does not answer.
const LOST: &str = "API server: no answer (for 120 s): rolling back desired state configuration: failed runnig probes \
                    after network changes: failed runnig probe 'api-server' with after network reconfiguration";

fn desired() -> Value {
    json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up", "802.1x": {"password": "hunter2"}}]})
}

// nmstate#48
#[tokio::test(start_paused = true)]
async fn apply_without_gateway_and_name_servers_skips_their_probes() {
    let host = Host::default();
    let pipeline = pipeline(&host, server(healthy));
    assert_eq!(
        pipeline.apply(&desired()).await,
        Ok("successfully reconciled".to_owned())
    );
    assert_eq!(host.calls(), ["rollback", "apply", "commit"]);
}

// nmstate#119
#[tokio::test(start_paused = true)]
async fn probe_selection_reads_the_host_once() {
    let host = Host::default();
    let pipeline = pipeline(&host, server(healthy));
    // The first selection waits for probes that may still succeed.
    pipeline.apply(&desired()).await.unwrap();
    let before = host.reads();
    let began = tokio::time::Instant::now();
    pipeline.apply(&desired()).await.unwrap();
    assert_eq!(host.reads() - before, 1, "one for both probes that may be chosen");
    assert_eq!(began.elapsed(), Duration::ZERO, "nothing is waited for");
}

// nmstate#51
#[tokio::test]
async fn empty_document_changes_nothing() {
    let host = Host::default();
    let pipeline = pipeline(&host, server(silent));
    for empty in [Value::Null, json!({})] {
        assert_eq!(
            pipeline.apply(&empty).await,
            Ok("successfully reconciled".to_owned())
        );
    }
    assert_eq!(host.calls(), [] as [&str; 0]);
}

// nmstate#44
#[tokio::test]
async fn uncommitted_change_is_rolled_back_before_the_next_one() {
    let host = Host::default();
    *host.pending.lock().unwrap() = true;
    let settings = Settings {
        probes: false,
        ..Settings::default()
    };
    let pipeline = Pipeline::new(host.engine(), server(silent), "node01".to_owned(), settings);
    assert!(pipeline.apply(&desired()).await.is_ok());
    assert_eq!(host.calls(), ["rollback", "apply", "commit"]);
}

#[tokio::test(start_paused = true)]
async fn failed_change_is_reported_and_not_probed() {
    let host = Host {
        fails: vec!["apply"],
        ..Host::default()
    };
    let failure = failure(&host, server(healthy)).await;
    assert_eq!((failure.text.as_str(), failure.retry), ("apply failed", true));
    assert_eq!(host.calls(), ["rollback", "apply"]);
}

// nmstate#49
#[tokio::test(start_paused = true)]
async fn lost_api_server_is_rolled_back_within_the_timeout_of_one_probe() {
    let host = Host::default();
    let started = tokio::time::Instant::now();
    let failure = failure(&host, server(silent)).await;
    let still = "; rolled back, but probe 'api-server' still fails: API server: no answer (for 120 s)";
    assert_eq!(failure.text, format!("{LOST}{still}"));
    assert!(failure.retry);
    assert_eq!(host.calls(), ["rollback", "apply", "rollback"]);
    // The choice of probes, the probes after the change, and those after it was undone.
    assert!(
        started.elapsed() <= Duration::from_secs(10 + 120 + 120 + 5),
        "{:?}",
        started.elapsed()
    );
}

/// An API server that the host cannot reach while a change of the host is not committed.
fn cut_off_by_changes(host: &Host) -> Client {
    let pending = Arc::clone(&host.pending);
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let is_pending = *pending.lock().unwrap();
        async move {
            if is_pending {
                return std::future::pending().await;
            }
            let (code, body) = healthy(request.uri().path()).unwrap();
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

// nmstate#101
#[tokio::test(start_paused = true)]
async fn change_that_lost_the_api_server_is_not_retried() {
    let host = Host::default();
    let failure = failure(&host, cut_off_by_changes(&host)).await;
    assert_eq!(failure.text, LOST);
    assert!(!failure.retry, "it would cut the host off again");
    assert_eq!(host.calls(), ["rollback", "apply", "rollback"]);
}

// nmstate#102
#[tokio::test(start_paused = true)]
async fn superseded_change_is_rolled_back_at_once() {
    let host = Host::default();
    let started = tokio::time::Instant::now();
    let superseded = tokio::time::sleep(Duration::from_secs(30));
    let failure = pipeline(&host, server(not_ready))
        .apply_until(&desired(), superseded)
        .await
        .unwrap_err();
    assert_eq!(
        failure.text,
        "rolling back desired state configuration: it is no longer the desired state"
    );
    assert_eq!(host.calls(), ["rollback", "apply", "rollback"]);
    assert!(
        started.elapsed() < Duration::from_secs(31),
        "{:?}",
        started.elapsed()
    );

    // Nothing is changed before the probes are chosen.
    let host = Host::default();
    let superseded = tokio::time::sleep(Duration::from_secs(1));
    let given_up = pipeline(&host, server(not_ready))
        .apply_until(&desired(), superseded)
        .await;
    assert!(given_up.is_err());
    assert_eq!(host.calls(), ["rollback"]);
}

/// A healthy API server that keeps connections open, and how many connections and requests there were.
async fn listening() -> (kube::Config, Arc<Mutex<(usize, usize)>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counts = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&counts);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            counted.lock().unwrap().0 += 1;
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let mut connection = BufReader::new(connection);
                let mut line = String::new();
                while connection.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                    let path = line.split(' ').nth(1).unwrap().to_owned();
                    while line.trim() != "" {
                        line.clear();
                        connection.read_line(&mut line).await.unwrap();
                    }
                    line.clear();
                    counted.lock().unwrap().1 += 1;
                    let body = healthy(&path).unwrap().1.to_string();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    connection.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (config, counts)
}

// nmstate#49: a connection from before the change proves nothing.
#[tokio::test]
async fn api_server_probe_uses_a_new_connection() {
    let (config, counts) = listening().await;
    let host = Host::default();
    let settings = Settings {
        selection_timeout: Duration::ZERO,
        cluster: Some(config),
        ..Settings::default()
    };
    let pipeline = Pipeline::new(host.engine(), server(silent), "node01".to_owned(), settings);
    for _ in 0..2 {
        pipeline.apply(&desired()).await.unwrap();
    }
    // Two changes, two probes.
    assert_eq!(*counts.lock().unwrap(), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn node_that_becomes_not_ready_is_rolled_back() {
    let host = Host::default();
    let failure = failure(&host, server(not_ready)).await;
    assert!(
        failure.text.starts_with(
            "node node01 is not Ready (for 120 s): rolling back desired state configuration: failed runnig probes \
             after network changes: failed runnig probe 'node-readiness' with after network reconfiguration"
        ),
        "{failure}"
    );
    assert_eq!(host.calls(), ["rollback", "apply", "rollback"]);
}

#[tokio::test(start_paused = true)]
async fn failed_rollback_is_reported() {
    let host = Host {
        fails: vec!["rollback"],
        ..Host::default()
    };
    let failure = failure(&host, server(not_ready)).await;
    assert!(
        failure.text.ends_with(
            "; the configuration could not be rolled back, manual intervention needed: rollback failed"
        ),
        "{failure}"
    );
}

// nmstate#50
#[tokio::test(start_paused = true)]
async fn failed_commit_is_reported_and_its_rollback_left_to_the_engine() {
    let host = Host {
        fails: vec!["commit"],
        ..Host::default()
    };
    let failure = failure(&host, server(healthy)).await;
    assert_eq!(failure.text, "commit failed");
    assert_eq!(host.calls(), ["rollback", "apply", "commit"]);
}

#[tokio::test]
async fn pipeline_runs_one_change_at_a_time() {
    let host = Host::default();
    let settings = Settings {
        probes: false,
        ..Settings::default()
    };
    let pipeline = Pipeline::new(host.engine(), server(silent), "node01".to_owned(), settings);
    let desired = desired();
    let (first, second) = tokio::join!(pipeline.apply(&desired), pipeline.apply(&desired));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(
        host.calls(),
        ["rollback", "apply", "commit", "rollback", "apply", "commit"]
    );
}

#[tokio::test]
async fn success_without_network_manager_is_not_persistent() {
    let host = Host::default();
    let settings = Settings {
        probes: false,
        backend: Backend::Kernel,
        ..Settings::default()
    };
    let pipeline = Pipeline::new(host.engine(), server(silent), "node01".to_owned(), settings);
    assert_eq!(
        pipeline.apply(&desired()).await,
        Ok(
            "successfully reconciled, until the host restarts: without NetworkManager nothing is persistent"
                .to_owned()
        )
    );
}

// nmstate#101: the change takes the default route along, so that the first probe that fails is ping.
#[tokio::test(start_paused = true)]
async fn change_that_lost_the_default_route_with_the_api_server_is_not_tried_again() {
    if let Err(error) = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)) {
        println!("skipped: cannot open a raw socket for ICMP: {error}");
        return;
    }
    let route = json!({ "destination": "0.0.0.0/0", "next-hop-address": "127.0.0.1",
        "next-hop-interface": "lo", "table-id": 254 });
    let host = Host {
        usual: Some(json!({ "routes": { "running": [route] } })),
        ..Host::default()
    };
    let failure = failure(&host, cut_off_by_changes(&host)).await;
    assert_eq!(
        failure.text,
        "default gw missing (for 120 s): rolling back desired state configuration: failed runnig probes after \
         network changes: failed runnig probe 'ping' with after network reconfiguration"
    );
    assert!(!failure.retry, "it would cut the host off again");
    assert_eq!(host.calls(), ["rollback", "apply", "rollback"]);
}
