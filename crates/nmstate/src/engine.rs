//! The engine: the nmstate library on a thread of its own, because its futures cannot move between threads, and only
//! one request may run at a time (nmstate §4).
//!
//! ```text
//! handler ── Request ──> thread: nmstate ──> NetworkManager, kernel, OVSDB
//!         <── answer ──
//! ```

mod cause;
mod difference;
mod expression;
mod journal;
mod kernel;
mod library;
mod limit;
mod mistake;
mod order;
mod pending;
mod serve;
mod tool;
mod trunk;
mod version;

pub use tool::{Options, Tool};
pub use version::program;

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use pending::Pending;

/// Error kind: a malformed document. A retry cannot help.
pub const MALFORMED: &str = "Malformed";
/// Error kind: an invalid document. The host can cause it too, but not while it is unchanged.
pub const INVALID: &str = "InvalidArgument";
/// Error kind: an invalid capture.
pub const POLICY_ERROR: &str = "PolicyError";
/// Error kind: the library does not support it on any host.
pub const NOT_IMPLEMENTED: &str = "NotImplementedError";
/// Error kind: this kind of host does not support it.
pub const NOT_SUPPORTED: &str = "NotSupportedError";
/// Error kind: the program that configures the host failed, or is missing.
pub const PLUGIN_FAILURE: &str = "PluginFailure";
/// Error kind: a defect of this program.
pub const BUG: &str = "Bug";
/// Error kind: there is no uncommitted change.
pub const NOTHING_PENDING: &str = "NothingPending";

/// The configurator of the host.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Backend {
    /// NetworkManager: configuration is persistent, and has checkpoints.
    #[default]
    NetworkManager,
    /// The kernel alone: configuration ends with a reboot.
    Kernel,
}

/// An error of the library.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{text}")]
pub struct Error {
    /// The library's kind of error, such as `InvalidArgument`.
    pub kind: String,
    /// The library's text: kind, message, and for expressions the position of the mistake.
    pub text: String,
    /// The last lines that the library logged during the request.
    pub log: String,
}

impl Error {
    /// An error without a log.
    pub(crate) fn new(kind: &str, text: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            text: text.into(),
            log: String::new(),
        }
    }
}

/// Versions of the programs that configure the host.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Versions {
    /// Version of the library, as its tool prints it: `nmstatectl 2.2.62`.
    pub engine: String,
    /// Version of NetworkManager; `None` without NetworkManager.
    pub network_manager: Option<String>,
}

/// A policy's captures and desired state (nmstate §6).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// Expressions by name.
    pub capture: Map<String, Value>,
    /// The desired state, with references to the captures.
    pub desired: Value,
    /// Earlier results of the captures, by name; they are not evaluated again.
    pub captured: Map<String, Value>,
}

/// A template with all references filled in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filled {
    /// The desired state.
    pub desired: Value,
    /// Results of the captures, by name.
    pub captured: Map<String, Value>,
}

/// A request to the engine's thread, with the channel of the answer. Documents are the library's network states, as
/// JSON.
#[derive(Debug)]
pub enum Request {
    /// Reads the versions.
    Versions(oneshot::Sender<Result<Versions, Error>>),
    /// Reads the complete state of the host, with secrets hidden.
    Report(oneshot::Sender<Result<Value, Error>>),
    /// Fills in a template for the state of the host.
    Fill(Template, oneshot::Sender<Result<Filled, Error>>),
    /// Names of the features that a document uses (nmstate §4.4).
    Features(Value, oneshot::Sender<Result<Vec<String>, Error>>),
    /// The part of a desired state that the host lacks; empty if there is nothing to change.
    Diff(Value, oneshot::Sender<Result<Value, Error>>),
    /// Applies a desired state, until it is committed or rolled back. A failure is already rolled back.
    Apply(Value, oneshot::Sender<Result<(), Error>>),
    /// Commits the change.
    Commit(oneshot::Sender<Result<(), Error>>),
    /// Rolls back the uncommitted change, of any client. An error if there is none.
    Rollback(oneshot::Sender<Result<(), Error>>),
    /// Rolls back the uncommitted change of this engine, if there is one, and ends the thread.
    Close(oneshot::Sender<Result<(), Error>>),
    /// Serves a person at a terminal.
    Tool(Tool, oneshot::Sender<Result<Value, Error>>),
}

/// Sends requests to the engine's thread.
#[derive(Clone, Debug)]
pub struct Engine {
    requests: mpsc::UnboundedSender<Request>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub fn start(backend: Backend) -> io::Result<Self> {
        Self::start_with(backend, limit::ANSWER)
    }

    /// Like [`Engine::start`], with another time limit of questions to the host.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub fn start_with(backend: Backend, limit: Duration) -> io::Result<Self> {
        Self::begin(Pending::new(backend, None), backend, limit)
    }

    /// Starts the thread of the handler, which changes this host: undo records are stored in `directory` too, and an
    /// uncommitted change of a previous handler is rolled back first.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub fn start_in(backend: Backend, directory: &Path) -> io::Result<Self> {
        let pending = Pending::new(backend, Some(directory.to_owned()));
        Self::begin(pending, backend, limit::ANSWER)
    }

    fn begin(pending: Pending, backend: Backend, limit: Duration) -> io::Result<Self> {
        let (engine, requests) = Self::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || runtime.block_on(serve::answer(backend, limit, pending, requests)))?;
        Ok(engine)
    }

    /// An engine and the receiver of its requests, for tests and simulations.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (requests, receiver) = mpsc::unbounded_channel();
        (Self { requests }, receiver)
    }

    /// See [`Request::Versions`].
    pub async fn versions(&self) -> Result<Versions, Error> {
        self.request(Request::Versions).await
    }

    /// See [`Request::Report`].
    pub async fn report(&self) -> Result<Value, Error> {
        self.request(Request::Report).await
    }

    /// See [`Request::Fill`].
    pub async fn fill(&self, template: Template) -> Result<Filled, Error> {
        self.request(|back| Request::Fill(template, back)).await
    }

    /// See [`Request::Features`].
    pub async fn features(&self, desired: Value) -> Result<Vec<String>, Error> {
        self.request(|back| Request::Features(desired, back)).await
    }

    /// See [`Request::Diff`].
    pub async fn diff(&self, desired: Value) -> Result<Value, Error> {
        self.request(|back| Request::Diff(desired, back)).await
    }

    /// See [`Request::Apply`].
    pub async fn apply(&self, desired: Value) -> Result<(), Error> {
        self.request(|back| Request::Apply(desired, back)).await
    }

    /// See [`Request::Commit`].
    pub async fn commit(&self) -> Result<(), Error> {
        self.request(Request::Commit).await
    }

    /// See [`Request::Rollback`].
    pub async fn rollback(&self) -> Result<(), Error> {
        self.request(Request::Rollback).await
    }

    /// See [`Request::Close`].
    pub async fn close(&self) -> Result<(), Error> {
        self.request(Request::Close).await
    }

    /// See [`Tool`].
    pub async fn tool(&self, tool: Tool) -> Result<Value, Error> {
        self.request(|back| Request::Tool(tool, back)).await
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let gone = || Error::new(BUG, "the engine's thread has ended");
        let (back, answer) = oneshot::channel();
        self.requests.send(request(back)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
