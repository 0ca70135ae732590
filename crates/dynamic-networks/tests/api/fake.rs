//! A container runtime and a multus daemon on unix sockets.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{any, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use kube_kit::cri::{Item, ListRequest, ListResponse, StatusRequest, StatusResponse};
use kube_kit::shutdown::Shutdown;
use prost::Message;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::net::UnixListener;
use tokio::sync::watch;

/// A server on a thread of its own; ends when dropped, and leaves its socket behind as a killed one does.
pub(crate) struct Served(Shutdown, Option<JoinHandle<()>>);

fn serve(socket: &Path, router: Router) -> Served {
    let _ = std::fs::remove_file(socket);
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let shutdown = Shutdown::new();
    let ends = shutdown.clone();
    let thread = std::thread::spawn(move || {
        let main = async {
            let listener = UnixListener::from_std(listener).unwrap();
            tokio::select! {
                served = axum::serve(listener, router).into_future() => served.unwrap(),
                () = ends.wait() => {}
            }
        };
        kube_kit::process::run(main).unwrap();
    });
    Served(shutdown, Some(thread))
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.trigger();
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// The runtime's sandboxes, by the UID of their pod.
pub(crate) type Sandboxes = Arc<Mutex<BTreeMap<String, Vec<Item>>>>;

/// A sandbox: its ID, its state, and when it was created.
pub(crate) fn sandbox(id: &str, state: i32, created_at: i64) -> Item {
    Item {
        id: id.into(),
        state,
        created_at,
    }
}

/// A container runtime at this socket.
pub(crate) fn runtime(socket: &Path, sandboxes: Sandboxes) -> Served {
    let router = Router::new()
        .route("/runtime.v1.RuntimeService/ListPodSandbox", post(list))
        .route("/runtime.v1.RuntimeService/PodSandboxStatus", post(status))
        .with_state(sandboxes);
    serve(socket, router)
}

/// The message of a unary request: after the prefix of five bytes.
fn message<M: Message + Default>(body: &Bytes) -> M {
    M::decode(body.slice(5..)).unwrap()
}

fn answer(message: &impl Message) -> Response {
    let text = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
    frame.extend(text);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).with_trailers(async move { Some(Ok(trailers)) });
    Response::builder()
        .header("content-type", "application/grpc")
        .body(Body::new(body))
        .unwrap()
}

async fn list(State(sandboxes): State<Sandboxes>, body: Bytes) -> Response {
    let ListRequest { filter } = message(&body);
    let uid = filter.unwrap().label_selector["io.kubernetes.pod.uid"].clone();
    let items = sandboxes.lock().unwrap().get(&uid).cloned().unwrap_or_default();
    answer(&ListResponse { items })
}

async fn status(body: Bytes) -> Response {
    let request: StatusRequest = message(&body);
    assert!(request.verbose);
    let info = json!({"runtimeSpec": {"linux": {"namespaces": [{"type": "pid"},
        {"type": "network", "path": format!("/run/netns/{}", request.pod_sandbox_id)}]}}});
    answer(&StatusResponse {
        info: [("info".to_owned(), info.to_string())].into(),
    })
}

/// A multus daemon: its requests, its attachments, and its special answers by verb and interface, like `ADD net1`.
#[derive(Default)]
pub(crate) struct Daemon {
    pub(crate) calls: Vec<Value>,
    /// Network, as `namespace/name`, by sandbox and interface.
    pub(crate) plugged: BTreeMap<(String, String), String>,
    pub(crate) answers: BTreeMap<String, (u16, String)>,
    /// Requests without an answer as long as they are in this set.
    pub(crate) held: watch::Sender<BTreeSet<String>>,
}

/// A multus daemon at this socket.
pub(crate) fn daemon(socket: &Path, state: Arc<Mutex<Daemon>>) -> Served {
    let router = Router::new()
        .route("/delegate", post(delegate))
        .route("/healthz", any(|| async { StatusCode::OK }))
        .with_state(state);
    serve(socket, router)
}

async fn delegate(State(state): State<Arc<Mutex<Daemon>>>, body: Bytes) -> (StatusCode, String) {
    let mut call: Value = serde_json::from_slice(&body).unwrap();
    let config = STANDARD.decode(call["config"].as_str().unwrap()).unwrap();
    call["config"] = serde_json::from_slice(&config).unwrap_or(Value::Null);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (env, attributes) = (call["env"].clone(), &call["interfaceAttributes"]);
    let (verb, ifname) = (text(&env["CNI_COMMAND"]), text(&env["CNI_IFNAME"]));
    let network = format!("{}/{}", text(&attributes["namespace"]), text(&attributes["name"]));
    let what = format!("{verb} {ifname}");
    state.lock().unwrap().calls.push(call);
    // The client may go away meanwhile: then nothing is done.
    let mut held = state.lock().unwrap().held.subscribe();
    held.wait_for(|held| !held.contains(&what)).await.unwrap();
    let mut state = state.lock().unwrap();
    if let Some((status, text)) = state.answers.get(&what) {
        return (StatusCode::from_u16(*status).unwrap(), text.clone());
    }
    let place = (text(&env["CNI_CONTAINERID"]), ifname.clone());
    let there = state.plugged.get(&place).cloned();
    if let Some(other) = there.filter(|there| *there != network) {
        return (
            StatusCode::BAD_REQUEST,
            format!("interface {ifname} is of {other}\n"),
        );
    }
    if verb != "ADD" {
        state.plugged.remove(&place);
        return (StatusCode::OK, String::new());
    }
    state.plugged.insert(place, network);
    let result = json!({"cniVersion": "1.1.0",
        "interfaces": [{"name": "veth1"}, {"name": ifname, "mac": "02:00:00:00:00:0a", "sandbox": env["CNI_NETNS"]}],
        "ips": [{"interface": 1, "address": "10.0.0.7/24"}]});
    (StatusCode::OK, json!({"Result": result}).to_string())
}
