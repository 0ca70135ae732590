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
use cni::note::Level;
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
/// The answer to GC without a list of valid attachments.
pub const NOTHING_COLLECTED: &str = "GC without cni.dev/valid-attachments: multus collects nothing";
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
/// The daemon's answer, or the reason why nobody answers.
pub fn probe(socket: &Path) -> Result<(), Error> {
    match http::post(socket, "/readyz", b"null", ANSWER_TO_PROBE) {
        Ok(response) if response.status == 200 => Ok(()),
        Ok(response) => Err(Failure::Status(response).named("readyz")),
        Err(error) => Err(Failure::Transport(error).named("readyz")),
    }
}

#[cfg(test)]
mod tests;
