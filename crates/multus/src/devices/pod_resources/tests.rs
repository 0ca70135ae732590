use super::*;

#[path = "../../../tests/kubelet/mod.rs"]
mod kubelet;

use kubelet::{Answer, Pod, encode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::task::JoinSet;

fn wanted() -> PodRef {
    PodRef {
        namespace: "ns".into(),
        name: "pod".into(),
        uid: None,
    }
}

fn pod(namespace: &str, name: &str, containers: &[&[(&str, &[&str])]]) -> Pod {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Pod {
        namespace: namespace.into(),
        name: name.into(),
        containers: containers
            .iter()
            .map(|groups| {
                groups
                    .iter()
                    .map(|(resource, devices)| ((*resource).to_owned(), texts(devices)))
                    .collect()
            })
            .collect(),
    }
}

fn pods() -> Vec<Pod> {
    vec![
        pod("other", "pod", &[&[("x.io/r", &["0"])]]),
        pod(
            "ns",
            "pod",
            &[
                &[("x.io/r", &["b"]), ("x.io/s", &["s"])],
                &[],
                &[("x.io/r", &["a"])],
            ],
        ),
        pod("ns", "pod2", &[&[("x.io/r", &["1"])]]),
    ]
}

fn expected() -> Devices {
    let mut devices = Devices::default();
    for (resource, device) in [("x.io/r", "a"), ("x.io/r", "b"), ("x.io/s", "s")] {
        devices.add(resource, device.into());
    }
    devices
}

async fn ask(answer: Answer) -> Result<Devices, grpc::Error> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut server = JoinSet::new();
    server.spawn(kubelet::serve(listener, answer));
    devices_of(&socket, &wanted()).await
}

async fn failure(answer: Answer) -> String {
    ask(answer).await.unwrap_err().to_string()
}

#[tokio::test]
async fn devices_of_all_containers_are_merged() {
    // multus#24 (kubelet's answer)
    assert_eq!(ask(Answer::Pods(pods())).await.unwrap(), expected());
    assert_eq!(ask(Answer::Pods(Vec::new())).await.unwrap(), Devices::default());
}

#[tokio::test]
async fn fragmented_answer_is_decoded() {
    let mut many: Vec<_> = (0..20_000)
        .map(|index| {
            pod(
                "ns",
                &format!("filler{index}"),
                &[&[("x.io/r", &["0000:00:00.0"])]],
            )
        })
        .collect();
    many.extend(pods());
    // More than the flow-control window.
    assert!(encode(&many).len() > 3 * 256 * 1024);
    assert_eq!(ask(Answer::Pods(many)).await.unwrap(), expected());
}

#[tokio::test]
async fn invalid_answer_is_error() {
    let refused = Answer::Refusal {
        code: "13",
        message: "x".repeat(10_000),
    };
    assert_eq!(failure(refused).await, format!("code 13: {}", "x".repeat(200)));
    let broken: [(&[u8], &str); 5] = [
        (&[0, 0, 0, 0, 9, 1], "code 13: Missing response message."),
        (&[], "code 13: Missing response message."),
        // Compressed, which we did not allow.
        (
            &[1, 0, 0, 0, 0],
            "code 13: protocol error: received message with compressed-flag",
        ),
        // A pod that is longer than the message.
        (
            &[0, 0, 0, 0, 2, 0x0a, 0x7f],
            "code 13: failed to decode Protobuf message",
        ),
        // Nothing of what is too long is waited for.
        (
            &[0, 1, 0, 0, 1],
            "code 11: Error, decoded message length too large: found 16777217 bytes, the limit is: 16777216 bytes",
        ),
    ];
    for (bytes, expected) in broken {
        let error = failure(Answer::Bytes(bytes.to_vec())).await;
        assert!(error.starts_with(expected), "{error}");
    }
}

#[tokio::test]
async fn overloaded_kubelet_is_retried() {
    let busy = |times| Answer::Busy(Arc::new(AtomicU32::new(times)), pods());
    assert_eq!(ask(busy(3)).await.unwrap(), expected());
}

#[tokio::test(start_paused = true)]
async fn restarting_kubelet_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    // It never listens: a socket that was closed may still be held by a child that another test just starts.
    let left = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&left, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    let begun = Instant::now();
    let error = devices_of(&socket, &wanted()).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot connect: "), "{error}");
    assert!(begun.elapsed() > JOB_TIMEOUT / 2, "{:?}", begun.elapsed());
    assert!(begun.elapsed() <= JOB_TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn silent_kubelet_times_out() {
    assert_eq!(failure(Answer::Silence).await, "no answer within 10 s");
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_leaves_no_task() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // The server reads everything and answers nothing, not even HTTP/2.
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap()
    });
    let error = devices_of(&socket, &wanted()).await.unwrap_err();
    assert_eq!(error.to_string(), "no answer within 10 s");
    let read = timeout(Duration::from_secs(60), server)
        .await
        .expect("the connection ends");
    assert!(read.unwrap() > 0);
}
