//! `multus-shim`: hands a call of the runtime to the multus daemon of the node and prints its answer (multus.md §7.1).
//!
//! ```text
//! runtime ──exec──> multus-shim ──POST /cni──> <daemonSocketDir>/multus.sock ──> multus daemon
//! ```
//!
//! There is no separate question for readiness before the call: that would be a second connection per pod event. The
//! call itself is sent, and while nobody listens, or the daemon says that it is not ready (503), it is sent again until
//! [`PATIENCE`] is over. DEL is never waited with: it succeeds whatever happens, because a pod's end must not depend on
//! a daemon. One that no daemon answered is [kept](missed) for the next one.
//!
//! When the daemon stays away although it is waited for, the node may have been left by multus: see [`ended`].

pub mod ended;
mod http;
mod log;
pub mod missed;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::error::code;
use cni::json;
use cni::plugin::{Call, Plugin};
use cni::result::CniResult;
use cni::{Error, Version};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How long a daemon that restarts is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pauses between tries. A socket that does not exist yet can't be waited for otherwise: its directory may be missing
/// too, and a listener that is gone leaves its file behind.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long the daemon may work on a call: as long as kubelet waits for a sandbox.
const ANSWER: Duration = Duration::from_secs(4 * 60);
/// The same for DEL, whose runtime is asked for the end of the sandbox again after two minutes.
const ANSWER_TO_DEL: Duration = Duration::from_secs(100);
/// How long the daemon may take to say whether it is ready.
const ANSWER_TO_PROBE: Duration = Duration::from_secs(5);
/// The default of `daemonSocketDir`.
const SOCKET_DIR: &str = "/run/multus/";
const SOCKET: &str = "multus.sock";
/// The plugin's name, `type` of the configuration that calls it.
const NAME: &str = "multus-shim";

/// The plugin that runtimes call on a node with a multus daemon.
#[derive(Debug, Clone, Copy)]
pub struct MultusShim {
    /// How long a daemon that restarts is waited for.
    patience: Duration,
    /// How long it may work on a call, and on a DEL.
    answer: Duration,
    answer_to_del: Duration,
    /// Time since the boot.
    clock: fn() -> Duration,
}

impl MultusShim {
    /// The plugin with the established patience.
    pub const fn new() -> Self {
        Self {
            patience: PATIENCE,
            answer: ANSWER,
            answer_to_del: ANSWER_TO_DEL,
            clock: ended::since_boot,
        }
    }
}

impl Default for MultusShim {
    fn default() -> Self {
        Self::new()
    }
}

impl Plugin for MultusShim {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> String {
        "meta-plugin that delegates to other CNI plugins".into()
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let verb = "CmdAdd (shim)";
        let body = self.ask(call, verb)?;
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| {
            let body = String::from_utf8_lossy(&body);
            Error::internal(format!("{verb}: failed to unmarshal response '{body}': {error}"))
        })?;
        CniResult::parse(answer.result.get().as_bytes(), Version::LATEST)
            .map_err(|error| error.prefixed(&format!("{verb}: failed to parse the result")))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        if let Err(failure) = send(call, Instant::now(), self.answer_to_del) {
            let kept = failure.is_unanswered().then(|| keep(call));
            let text = match failure {
                Failure::Unreachable { source, .. } => {
                    format!("CheckAPIReadyNow: Daemon not reachable over socketfile: {source}")
                }
                other => other.named("").to_string(),
            };
            let consequence = match kept {
                Some(Ok(path)) => format!(", kept as {}", path.display()),
                Some(Err(error)) => format!(", and it can't be kept: {error}"),
                None => String::new(),
            };
            log::error(&call.config, &format!("CmdDel (shim): {text}{consequence}"));
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        self.forward(call, "CmdCheck (shim)")
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        self.ask(call, "CmdStatus (shim)").map(drop)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        self.forward(call, "CmdGC (shim)")
    }
}

/// What the daemon answers to ADD.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Result")]
    result: Box<RawValue>,
}

/// What the daemon is sent.
#[derive(Serialize)]
struct Request<'a> {
    env: &'a BTreeMap<String, String>,
    config: String,
}

/// Keys of the configuration that the shim reads for itself.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    daemon_socket_dir: String,
    cni_dir: String,
}

#[derive(Debug)]
enum Failure {
    /// The configuration is unusable.
    Config(json::Error),
    /// The daemon was not there in time.
    Unreachable { socket: PathBuf, source: http::Error },
    /// The call failed on its way.
    Transport(http::Error),
    /// The daemon says no, in its own words.
    Plugin(Error),
    /// The daemon says no, in other words.
    Status(http::Response),
    /// Can't happen: text is always JSON.
    Encode(serde_json::Error),
}

impl Failure {
    /// Whether the call may not have been done: nobody was there, or nobody said how it went.
    fn is_unanswered(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Transport(_) => true,
            Self::Status(response) => response.status >= 500,
            Self::Config(_) | Self::Plugin(_) | Self::Encode(_) => false,
        }
    }

    /// As the runtime gets to see it. An error that came with a code keeps it.
    fn named(self, verb: &str) -> Error {
        let text = match self {
            Self::Plugin(error) if verb.is_empty() => return error,
            Self::Plugin(error) => return error.prefixed(verb),
            Self::Config(error) => format!(
                "invalid CNI configuration passed to multus-shim: failed to gather the multus configuration: {error}"
            ),
            Self::Unreachable { socket, source } => {
                format!(
                    "failed to send CNI request: the multus daemon is not reachable at {}: {source}",
                    socket.display()
                )
            }
            Self::Transport(error) => format!("failed to send CNI request: {error}"),
            Self::Status(http::Response { status, body }) => {
                let body = String::from_utf8_lossy(&body);
                format!("CNI request failed with status {status}: '{}'", body.trim_end())
            }
            Self::Encode(error) => format!("failed to encode the CNI request: {error}"),
        };
        Error::internal(if verb.is_empty() {
            text
        } else {
            format!("{verb}: {text}")
        })
    }
}

impl MultusShim {
    /// Forwards what new pods wait for: they must not wait for a daemon that is gone for good.
    fn ask(&self, call: &Call, verb: &str) -> Result<Vec<u8>, Error> {
        send(call, Instant::now() + self.patience, self.answer).map_err(|failure| {
            let withdrawn = match &failure {
                Failure::Unreachable { socket, .. } => ended::withdraw(socket, (self.clock)()),
                _ => Ok(None),
            };
            match withdrawn {
                Ok(Some(file)) => Error::new(code::TRY_AGAIN_LATER, has_left(&file)).prefixed(verb),
                Ok(None) => failure.named(verb),
                Err(error) => {
                    let text = format!(
                        "{verb}: failed to withdraw the configuration of a daemon that is gone: {error}"
                    );
                    log::error(&call.config, &text);
                    failure.named(verb)
                }
            }
        })
    }

    fn forward(&self, call: &Call, verb: &str) -> Result<(), Error> {
        send(call, Instant::now() + self.patience, self.answer)
            .map(drop)
            .map_err(|error| error.named(verb))
    }
}

fn has_left(configuration: &Path) -> String {
    format!(
        "multus has left this node: removed {}, the next attempt goes by the cluster's own network",
        configuration.display()
    )
}

/// Keeps a DEL for the next daemon.
fn keep(call: &Call) -> io::Result<PathBuf> {
    let Config { cni_dir, .. } = call.config.read().map_err(io::Error::other)?;
    let cni_dir = if cni_dir.is_empty() {
        missed::CNI_DIR
    } else {
        &cni_dir
    };
    missed::keep(call, Path::new(cni_dir))
}

/// Sends the call and returns what a success was answered with. `deadline` is for the daemon to be there, `answer`
/// how long its answer may take.
fn send(call: &Call, deadline: Instant, answer: Duration) -> Result<Vec<u8>, Failure> {
    let Config {
        daemon_socket_dir, ..
    } = call.config.read().map_err(Failure::Config)?;
    let dir = if daemon_socket_dir.is_empty() {
        SOCKET_DIR
    } else {
        &daemon_socket_dir
    };
    let request = Request {
        env: &call.variables,
        config: STANDARD.encode(&call.stdin),
    };
    let request = serde_json::to_vec(&request).map_err(Failure::Encode)?;
    let socket = Path::new(dir).join(SOCKET);
    let response = post_until(&socket, "/cni", &request, deadline, answer)?;
    if response.status == 200 {
        return Ok(response.body);
    }
    match serde_json::from_slice::<Error>(&response.body) {
        // A plugin may leave the code out; zero would mean success.
        Ok(error) if error.code == 0 => Err(Failure::Plugin(Error {
            code: code::INTERNAL,
            ..error
        })),
        Ok(error) => Err(Failure::Plugin(error)),
        Err(_) => Err(Failure::Status(response)),
    }
}

/// Sends a request, again and again while the daemon is not there or not ready.
fn post_until(
    socket: &Path,
    path: &str,
    body: &[u8],
    deadline: Instant,
    answer: Duration,
) -> Result<http::Response, Failure> {
    let mut pause = FIRST_PAUSE;
    loop {
        let outcome = http::post(socket, path, body, answer);
        let over = Instant::now() + pause >= deadline;
        match outcome {
            Ok(response) if response.status == 503 && !over => {}
            Ok(response) => return Ok(response),
            // A daemon that ends cuts the connections that it did not get to. One that was killed at its work leaves an
            // interface behind: then the repetition says so, and the runtime cleans up as it would have to anyway.
            Err(http::Error::Unreachable(_) | http::Error::Dropped(_)) if !over => {}
            Err(source @ http::Error::Unreachable(_)) => {
                return Err(Failure::Unreachable {
                    socket: socket.to_owned(),
                    source,
                });
            }
            Err(error) => return Err(Failure::Transport(error)),
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asks the daemon behind a socket whether it is ready; once.
///
/// # Errors
/// What it said, or why it can't be asked.
pub fn probe(socket: &Path) -> Result<(), Error> {
    match http::post(socket, "/readyz", b"null", ANSWER_TO_PROBE) {
        Ok(response) if response.status == 200 => Ok(()),
        Ok(response) => Err(Failure::Status(response).named("readyz")),
        Err(error) => Err(Failure::Transport(error).named("readyz")),
    }
}

#[cfg(test)]
mod tests {
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
    /// Waits for nobody, a moment after that.
    const YOUNG: MultusShim = MultusShim {
        patience: Duration::ZERO,
        ..SHIM
    };
    /// Waits for nobody, two minutes after that.
    const OLD: MultusShim = MultusShim {
        clock: || ENDED.saturating_add(Duration::from_secs(120)),
        ..YOUNG
    };
    /// Waits for a moment for the answer of whoever is there.
    const HASTY: MultusShim = MultusShim {
        answer: Duration::from_millis(10),
        answer_to_del: Duration::from_millis(10),
        ..SHIM
    };

    /// A daemon that gives these answers, one a connection, and returns what it was sent.
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
        let body: serde_json::Value =
            serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body["env"]["CNI_CONTAINERID"], "c1");
        assert_eq!(body["env"]["OTHER"], "x");
        let config = STANDARD.decode(body["config"].as_str().unwrap()).unwrap();
        assert!(String::from_utf8(config).unwrap().contains("multus-cni-network"));
    }

    #[test]
    fn an_error_with_a_code_keeps_it() {
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
    fn other_errors_say_what_the_daemon_said() {
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
    fn a_daemon_that_restarts_is_waited_for() {
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
    fn patience_has_an_end() {
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
    fn a_daemon_that_is_gone_for_good_is_not_waited_for_again() {
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
        assert!(begun.elapsed() < PATIENCE / 2, "DEL waited");
        let daemon = daemon(
            dir.path(),
            &["HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno"],
        );
        assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
        daemon.join().unwrap();
    }

    /// The names of the calls that were kept.
    fn kept(dir: &Path) -> Vec<String> {
        let Ok(files) = std::fs::read_dir(missed::dir(&dir.join("cni"))) else {
            return Vec::new();
        };
        files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_del_that_nobody_answers_is_kept() {
        // multus#94 (the shim's part)
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
        }
        assert_eq!(kept(dir.path()), ["c1:eth0"], "one file for both");
        let folder = missed::dir(&dir.path().join("cni"));
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
    fn a_del_that_was_cut_off_is_kept_and_one_that_was_answered_is_not() {
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
    fn what_is_kept_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let folder = missed::dir(&dir.path().join("cni"));
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..missed::MAX_CALLS {
            std::fs::write(folder.join(number.to_string()), "").unwrap();
        }
        assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
        assert_eq!(kept(dir.path()).len(), missed::MAX_CALLS);
        assert!(!folder.join("c1:eth0").exists());
        // What is there already is renewed.
        std::fs::rename(folder.join("0"), folder.join("c1:eth0")).unwrap();
        assert_eq!(call(SHIM, "DEL", dir.path(), "1.1.0").code, 0);
        assert!(std::fs::metadata(folder.join("c1:eth0")).unwrap().len() > 0);
    }

    #[test]
    fn a_daemon_that_hangs_is_not_waited_for_for_ever() {
        // multus#95
        let limits = (SHIM.answer.as_secs(), SHIM.answer_to_del.as_secs());
        assert_eq!(limits, (240, 100));
        let dir = tempfile::tempdir().unwrap();
        // Connections are taken by the kernel, and nobody reads.
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
    fn the_probe_tells_ready_from_not_ready() {
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
}
