use super::*;
use cni::plugin::{Outcome, dispatch};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::thread::{JoinHandle, spawn};

const SHIM: MultusShim = MultusShim {
    clock: || ENDED,
    ..MultusShim::new()
};
/// When the daemon ended, where one did.
const ENDED: Duration = Duration::from_secs(1000);
/// Without waiting, a moment after the daemon's exit.
const YOUNG: MultusShim = MultusShim {
    restart_timeout: Duration::ZERO,
    ..SHIM
};
/// Without waiting, two minutes after the daemon's exit.
const OLD: MultusShim = MultusShim {
    clock: || ENDED.saturating_add(Duration::from_secs(120)),
    ..YOUNG
};
/// Waits only a moment for an answer.
const HASTY: MultusShim = MultusShim {
    answer: Duration::from_millis(10),
    answer_to_del: Duration::from_millis(10),
    ..SHIM
};

/// A daemon with these answers, one a connection; returns its requests.
fn daemon(dir: &Path, answers: &[&'static str]) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(dir.join(SOCKET)).unwrap();
    let answers = answers.to_vec();
    spawn(move || answers.iter().map(|answer| serve(&listener, answer)).collect())
}

fn serve(listener: &UnixListener, answer: &str) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .unwrap();
            if body.len() == length.parse::<usize>().unwrap() {
                break;
            }
        }
        let count = stream.read(&mut buffer).unwrap();
        request.extend_from_slice(&buffer[..count]);
    }
    stream.write_all(answer.as_bytes()).unwrap();
    String::from_utf8(request).unwrap()
}

fn call(shim: MultusShim, verb: &str, dir: &Path, version: &str) -> Outcome {
    let variables = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nowhere"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", "K8S_POD_NAME=a"),
        ("OTHER", "x"),
    ];
    let variables = variables
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let config = format!(
        r#"{{"cniVersion":"{version}","name":"multus-cni-network","type":"multus-shim","DaemonSocketDir":"{0}","cniDir":"{0}/cni"}}"#,
        dir.display()
    );
    dispatch(&shim, &variables, || Ok(config.into_bytes()))
}

fn error(outcome: &Outcome) -> Error {
    assert_eq!(outcome.code, 1, "{outcome:?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

const ADDED: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
    {\"Result\":{\"cniVersion\":\"1.1.0\",\"interfaces\":[{\"name\":\"eth0\",\"sandbox\":\"/n\"}],\
    \"ips\":[{\"interface\":0,\"address\":\"10.0.0.1/24\"}]}}";

#[test]
fn the_result_is_printed_in_the_runtimes_version() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), &[ADDED]);
    let outcome = call(SHIM, "ADD", dir.path(), "0.3.1");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let printed: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(printed["cniVersion"], "0.3.1");
    assert_eq!(printed["ips"][0]["version"], "4");

    let request = daemon.join().unwrap().remove(0);
    assert!(
        request.starts_with("POST /cni HTTP/1.1\r\nHost: dummy\r\n"),
        "{request}"
    );
    let body: serde_json::Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["env"]["CNI_CONTAINERID"], "c1");
    assert_eq!(body["env"]["OTHER"], "x");
    let config = STANDARD.decode(body["config"].as_str().unwrap()).unwrap();
    assert!(String::from_utf8(config).unwrap().contains("multus-cni-network"));
}

#[test]
fn error_with_code_keeps_its_code() {
    // multus#51 (the shim's part)
    let dir = tempfile::tempdir().unwrap();
    let answer = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\r\n\
        {\"code\":50,\"msg\":\"not now\",\"details\":\"no uplink\"}";
    let daemon = daemon(dir.path(), &[answer]);
    let error = error(&call(SHIM, "STATUS", dir.path(), "1.1.0"));
    assert_eq!(
        error,
        Error::new(50, "CmdStatus (shim): not now").with_details("no uplink")
    );
    daemon.join().unwrap();
}

#[test]
fn other_errors_contain_the_daemons_answer() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(
        dir.path(),
        &["HTTP/1.1 400 Bad Request\r\ncontent-length: 8\r\n\r\nno pod!\n"],
    );
    let error = error(&call(SHIM, "ADD", dir.path(), "1.1.0"));
    assert_eq!(error.code, 999);
    assert_eq!(
        error.msg,
        "CmdAdd (shim): CNI request failed with status 400: 'no pod!'"
    );
    daemon.join().unwrap();
}

#[test]
fn call_during_daemon_restart_is_repeated() {
    // multus#67 (the shim's part)
    let dir = tempfile::tempdir().unwrap();
    let stale = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    drop(stale);
    let path = dir.path().to_owned();
    let waiting = spawn(move || call(SHIM, "ADD", &path, "1.1.0"));
    std::fs::remove_file(dir.path().join(SOCKET)).unwrap();
    let not_ready = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    let daemon = daemon(dir.path(), &[not_ready, "", ADDED]);
    assert_eq!(waiting.join().unwrap().code, 0);
    daemon.join().unwrap();
}

#[test]
fn unreachable_daemon_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let error = error(&call(OLD, "ADD", dir.path(), "1.1.0"));
    unreachable(&error, dir.path(), "CmdAdd");
}

fn unreachable(error: &Error, dir: &Path, verb: &str) {
    let socket = dir.join(SOCKET);
    let text = format!(
        "{verb} (shim): failed to send CNI request: the multus daemon is not reachable at {}: ",
        socket.display()
    );
    assert!(error.msg.starts_with(&text), "{error}");
    assert_eq!(error.code, 999);
}

#[test]
fn add_with_removed_daemon_withdraws_the_configuration() {
    // multus#93 (the shim's part)
    for verb in ["ADD", "STATUS"] {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("00-multus.conf");
        std::fs::write(&conf, r#"{"type":"multus-shim"}"#).unwrap();
        ended::leave(dir.path(), &conf, ENDED).unwrap();
        let name = if verb == "ADD" { "CmdAdd" } else { "CmdStatus" };

        unreachable(&error(&call(YOUNG, verb, dir.path(), "1.1.0")), dir.path(), name);
        assert_eq!(call(OLD, "DEL", dir.path(), "1.1.0").code, 0);
        unreachable(
            &error(&call(OLD, "CHECK", dir.path(), "1.1.0")),
            dir.path(),
            "CmdCheck",
        );
        assert!(conf.exists());

        let text = format!(
            "{name} (shim): multus has left this node: removed {}, \
             the next attempt goes by the cluster's own network",
            conf.display()
        );
        assert_eq!(error(&call(OLD, verb, dir.path(), "1.1.0")), Error::new(11, text));
        assert!(!conf.exists());
        unreachable(&error(&call(OLD, verb, dir.path(), "1.1.0")), dir.path(), name);
    }
}

#[test]
fn del_always_succeeds_at_once() {
    // multus#67 (DEL)
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
    assert!(begun.elapsed() < RESTART_TIMEOUT / 2, "DEL waited");
    let daemon = daemon(
        dir.path(),
        &["HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno"],
    );
    assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
    daemon.join().unwrap();
}

/// The names of the kept calls.
fn kept(dir: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(kept_dels::dir(&dir.join("cni"))) else {
        return Vec::new();
    };
    files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn unanswered_del_is_kept() {
    // multus#94 (the shim's part)
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
    }
    assert_eq!(kept(dir.path()), ["c1:eth0"], "one file for both");
    let folder = kept_dels::dir(&dir.path().join("cni"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let file = folder.join("c1:eth0");
    assert_eq!(mode(&file), 0o600);
    let text: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        text["env"],
        serde_json::json!({"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/nowhere",
            "CNI_IFNAME": "eth0", "CNI_ARGS": "K8S_POD_NAME=a"})
    );
    let config = STANDARD.decode(text["config"].as_str().unwrap()).unwrap();
    assert!(String::from_utf8(config).unwrap().contains("multus-cni-network"));
}

#[test]
fn interrupted_or_incomplete_del_is_kept_and_others_are_not() {
    // multus#94 (the shim's part)
    for (answer, is_kept) in [
        ("", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", true),
        (
            "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
            true,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false),
        ("HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno", false),
        (
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 21\r\n\r\n{\"code\":7,\"msg\":\"no\"}",
            false,
        ),
        (
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 22\r\n\r\n{\"code\":11,\"msg\":\"no\"}",
            true,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path(), &[answer]);
        assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
        daemon.join().unwrap();
        assert_eq!(!kept(dir.path()).is_empty(), is_kept, "{answer:?}");
    }
}

#[test]
fn other_verbs_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    for verb in ["ADD", "CHECK", "STATUS", "GC"] {
        assert_eq!(call(YOUNG, verb, dir.path(), "1.1.0").code, 1);
    }
    assert!(kept(dir.path()).is_empty());
}

#[test]
fn kept_dels_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let folder = kept_dels::dir(&dir.path().join("cni"));
    std::fs::create_dir_all(&folder).unwrap();
    for number in 0..kept_dels::MAX_CALLS {
        std::fs::write(folder.join(number.to_string()), "").unwrap();
    }
    assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
    assert_eq!(kept(dir.path()).len(), kept_dels::MAX_CALLS);
    assert!(!folder.join("c1:eth0").exists());
    // An existing file is renewed.
    std::fs::rename(folder.join("0"), folder.join("c1:eth0")).unwrap();
    assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
    assert!(std::fs::metadata(folder.join("c1:eth0")).unwrap().len() > 0);
}

#[test]
fn call_to_hanging_daemon_times_out() {
    // multus#95
    let limits = (SHIM.answer.as_secs(), SHIM.answer_to_del.as_secs());
    assert_eq!(limits, (240, 100));
    let dir = tempfile::tempdir().unwrap();
    // The kernel accepts connections, and no process reads.
    let _hangs = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    let error = error(&call(HASTY, "ADD", dir.path(), "1.1.0"));
    assert_eq!(
        error.msg,
        "CmdAdd (shim): failed to send CNI request: no answer within 0.01 s"
    );
    assert_eq!(call(HASTY, "DEL", dir.path(), "1.1.0").code, 0);
    assert_eq!(kept(dir.path()), ["c1:eth0"]);
}

#[test]
fn called_by_hand() {
    let outcome = dispatch(&SHIM, &BTreeMap::new(), || Ok(Vec::new()));
    assert_eq!(outcome.code, 0);
    assert_eq!(
        outcome.stderr,
        "meta-plugin that delegates to other CNI plugins\n\
         CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
    );
}

#[test]
fn probe_reports_readiness() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET);
    assert!(probe(&socket).is_err());
    let ready = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let daemon = daemon(
        dir.path(),
        &[
            ready,
            "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        ],
    );
    assert!(probe(&socket).is_ok());
    assert!(probe(&socket).is_err());
    daemon.join().unwrap();
}
