//! `multus-shim`: forwards a call of the runtime to the node's multus daemon and prints its answer (multus.md §7.1).
//!
//! ```text
//! runtime ──exec──> multus-shim ──POST /cni──> <daemonSocketDir>/multus.sock ──> multus daemon
//! ```
//!
//! The shim sends the call without a readiness request first, which would be a second connection per pod event. If
//! the daemon is unreachable or not ready (503), the shim repeats the call until [`RESTART_TIMEOUT`] has passed. DEL
//! is not repeated and always succeeds, because the removal of a pod must not depend on the daemon. A DEL that was not
//! answered, or left an attachment, is [kept](kept_dels) for the daemon.
//!
//! If the daemon does not come back, multus may have been removed from the node: see [`ended`].

pub mod ended;
mod http;
pub mod kept_dels;
mod log;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::error::code;
use cni::json;
use cni::note::Level;
use cni::plugin::{Call, Plugin};
use cni::result::CniResult;
use cni::{Error, Version};
use linux::backoff::Backoff;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How long to wait for a restarting daemon.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Back-off between attempts. Polls, because the socket's directory may not exist yet, and a dead listener leaves its
/// socket file.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(100));
/// Timeout of a call, equal to kubelet's timeout for a sandbox.
const CALL_TIMEOUT: Duration = Duration::from_secs(4 * 60);
/// Timeout of a DEL: less than the two minutes after which kubelet repeats the removal.
const DEL_TIMEOUT: Duration = Duration::from_secs(100);
/// Timeout of a readiness request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The default of `daemonSocketDir`.
const SOCKET_DIR: &str = "/run/multus/";
const SOCKET: &str = "multus.sock";
/// Answer to a GC without a list of valid attachments.
pub const NOTHING_COLLECTED: &str = "GC without cni.dev/valid-attachments: multus collects nothing";
/// The plugin's name, the `type` in its configuration.
const NAME: &str = "multus-shim";

/// The plugin that the runtime calls on a node with a multus daemon.
#[derive(Debug, Clone, Copy)]
pub struct MultusShim {
    /// How long to wait for a restarting daemon.
    restart_timeout: Duration,
    /// Timeout of a call other than DEL.
    answer: Duration,
    answer_to_del: Duration,
    /// Returns the time since boot.
    clock: fn() -> Duration,
}

impl MultusShim {
    /// The plugin with the default timeouts.
    pub const fn new() -> Self {
        Self {
            restart_timeout: RESTART_TIMEOUT,
            answer: CALL_TIMEOUT,
            answer_to_del: DEL_TIMEOUT,
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
            let kept = failure.is_to_be_repeated().then(|| keep(call));
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
        if !call.config.has_valid_attachments() {
            call.note(Level::Warn, NOTHING_COLLECTED);
        }
        self.forward(call, "CmdGC (shim)")
    }
}

/// The daemon's answer to ADD.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Result")]
    result: Box<RawValue>,
}

/// A request to the daemon.
#[derive(Serialize)]
struct Request<'a> {
    env: &'a BTreeMap<String, String>,
    config: String,
}

/// Config keys that the shim reads.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    daemon_socket_dir: String,
    cni_dir: String,
}

#[derive(Debug)]
enum Failure {
    /// The config is invalid.
    Config(json::Error),
    /// The daemon was not reachable in time.
    Unreachable { socket: PathBuf, source: http::Error },
    /// The transfer failed.
    Transport(http::Error),
    /// The daemon returned a CNI error.
    Plugin(Error),
    /// The daemon returned another error response.
    Status(http::Response),
    /// Unreachable: strings always serialize.
    Encode(serde_json::Error),
}

impl Failure {
    /// Whether the outcome of a DEL is unknown, because the daemon was unreachable or did not answer, or the daemon
    /// answers that an attachment is left.
    fn is_to_be_repeated(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Transport(_) => true,
            Self::Status(response) => response.status >= 500,
            Self::Plugin(error) => error.code == code::TRY_AGAIN_LATER,
            Self::Config(_) | Self::Encode(_) => false,
        }
    }

    /// Converts the failure for the runtime. Keeps an existing error code.
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
    /// Forwards ADD and STATUS. New pods must not wait for a daemon that was removed for good.
    fn ask(&self, call: &Call, verb: &str) -> Result<Vec<u8>, Error> {
        send(call, Instant::now() + self.restart_timeout, self.answer).map_err(|failure| {
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
        send(call, Instant::now() + self.restart_timeout, self.answer)
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

fn keep(call: &Call) -> io::Result<PathBuf> {
    let Config { cni_dir, .. } = call.config.read().map_err(io::Error::other)?;
    let cni_dir = if cni_dir.is_empty() {
        kept_dels::CNI_DIR
    } else {
        &cni_dir
    };
    kept_dels::keep(call, Path::new(cni_dir))
}

/// Sends the call and returns the body of a successful answer. `deadline` limits the wait for the daemon, `answer`
/// the wait for its answer.
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
        // A plugin may omit the code, and zero would mean success.
        Ok(error) if error.code == 0 => Err(Failure::Plugin(Error {
            code: code::INTERNAL,
            ..error
        })),
        Ok(error) => Err(Failure::Plugin(error)),
        Err(_) => Err(Failure::Status(response)),
    }
}

/// Sends a request, and repeats it while the daemon is unreachable or not ready.
fn post_until(
    socket: &Path,
    path: &str,
    body: &[u8],
    deadline: Instant,
    answer: Duration,
) -> Result<http::Response, Failure> {
    let mut backoff = BACKOFF;
    loop {
        let outcome = http::post(socket, path, body, answer);
        let pause = backoff.next_delay();
        let over = Instant::now() + pause >= deadline;
        match outcome {
            Ok(response) if response.status == 503 && !over => {}
            Ok(response) => return Ok(response),
            // A stopping daemon closes its pending connections, so the call is repeated. A killed daemon
            // may leave an interface. The repeated call then fails, and the runtime cleans up as after
            // any failure.
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
    }
}

/// Requests the daemon's readiness once.
///
/// # Errors
/// The daemon's error, or a failed request.
pub fn probe(socket: &Path) -> Result<(), Error> {
    match http::post(socket, "/readyz", b"null", PROBE_TIMEOUT) {
        Ok(response) if response.status == 200 => Ok(()),
        Ok(response) => Err(Failure::Status(response).named("readyz")),
        Err(error) => Err(Failure::Transport(error).named("readyz")),
    }
}

#[cfg(test)]
mod tests;
