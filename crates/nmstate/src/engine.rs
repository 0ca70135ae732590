//! The engine: the nmstate library on a thread of its own, because what it does can't move between threads and must
//! never be done twice at a time (nmstate §4).
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
mod mistake;
mod order;
mod pending;
mod tool;
mod trunk;
mod version;

pub use tool::{Options, Tool};
pub use version::program;

use std::io;
use std::path::Path;
use std::thread;

use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use pending::Pending;

/// Kind of an error: a document that is none, and will not be one the next time.
pub const MALFORMED: &str = "Malformed";
/// Kind of an error: a mistake in a document. A host can cause them too, but not while nothing is changed yet.
pub const INVALID: &str = "InvalidArgument";
/// Kind of an error: a mistake in a capture.
pub const POLICY_ERROR: &str = "PolicyError";
/// Kind of an error: this library can't do it on any host.
pub const NOT_IMPLEMENTED: &str = "NotImplementedError";
/// Kind of an error: hosts of this kind can't do it.
pub const NOT_SUPPORTED: &str = "NotSupportedError";
/// Kind of an error: what configures the host failed, or is not there.
pub const PLUGIN_FAILURE: &str = "PluginFailure";
/// Kind of an error: a mistake of ours.
pub const BUG: &str = "Bug";
/// Kind of an error: there is nothing to undo.
pub const NOTHING_PENDING: &str = "NothingPending";

/// How hosts are configured.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Backend {
    /// By NetworkManager: what is configured lasts, and has checkpoints.
    #[default]
    NetworkManager,
    /// By the kernel alone: nothing lasts beyond a restart of the host.
    Kernel,
}

/// The library refused, or the host did.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{text}")]
pub struct Error {
    /// What kind of error the library calls it, such as `InvalidArgument`.
    pub kind: String,
    /// All of it, as the library shows it: the kind, the text, for expressions the place of the mistake too.
    pub text: String,
    /// What the library logged meanwhile, the last lines of it.
    pub log: String,
}

impl Error {
    /// An error of this kind, without a log.
    pub(crate) fn new(kind: &str, text: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            text: text.into(),
            log: String::new(),
        }
    }
}

/// What works on the host.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Versions {
    /// The library's, as its tool prints it: `nmstatectl 2.2.62`.
    pub engine: String,
    /// `NetworkManager`'s; none where it does not run.
    pub network_manager: Option<String>,
}

/// What policies are made of (nmstate §6).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// Expressions by name.
    pub capture: Map<String, Value>,
    /// The document with references to what they find.
    pub desired: Value,
    /// What they found before, by name; then they are not evaluated again.
    pub captured: Map<String, Value>,
}

/// A template that was filled in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filled {
    /// The document.
    pub desired: Value,
    /// What the expressions found, by name.
    pub captured: Map<String, Value>,
}

/// What the thread is asked for, each with the way back. Documents are what the library calls a network state, as JSON.
#[derive(Debug)]
pub enum Request {
    /// What works on the host.
    Versions(oneshot::Sender<Result<Versions, Error>>),
    /// The state of the host, complete, with secrets hidden.
    Report(oneshot::Sender<Result<Value, Error>>),
    /// Fills in a template by the host's state.
    Fill(Template, oneshot::Sender<Result<Filled, Error>>),
    /// Names of the features that a document uses (nmstate §4.4).
    Features(Value, oneshot::Sender<Result<Vec<String>, Error>>),
    /// What of a document the host does not have yet; empty when there is nothing to change.
    Diff(Value, oneshot::Sender<Result<Value, Error>>),
    /// Makes the host what the document says, until it is committed or rolled back. What could not be done is rolled
    /// back by then.
    Apply(Value, oneshot::Sender<Result<(), Error>>),
    /// Keeps what was applied.
    Commit(oneshot::Sender<Result<(), Error>>),
    /// Undoes what was applied and not committed, by whomever. An error when there is nothing of the kind.
    Rollback(oneshot::Sender<Result<(), Error>>),
    /// Undoes what this engine applied and did not commit, if there is anything of the kind. It does nothing after
    /// that.
    Leave(oneshot::Sender<Result<(), Error>>),
    /// What people at a terminal ask for.
    Tool(Tool, oneshot::Sender<Result<Value, Error>>),
}

/// The way to the engine's thread.
#[derive(Clone, Debug)]
pub struct Engine {
    requests: mpsc::UnboundedSender<Request>,
}

impl Engine {
    /// Starts the thread with the library on it.
    ///
    /// # Errors
    /// When there can't be a thread, or it can't wait for the network.
    pub fn start(backend: Backend) -> io::Result<Self> {
        Self::begin(Pending::new(backend, None), backend)
    }

    /// Starts the thread with the library on it, for the one that changes this host: how to undo what is under way is
    /// kept in `directory` too, and what a predecessor did not commit is undone first.
    ///
    /// # Errors
    /// When there can't be a thread, or it can't wait for the network.
    pub fn start_in(backend: Backend, directory: &Path) -> io::Result<Self> {
        Self::begin(Pending::new(backend, Some(directory.to_owned())), backend)
    }

    fn begin(pending: Pending, backend: Backend) -> io::Result<Self> {
        let (engine, requests) = Self::asked();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || runtime.block_on(library::answer(backend, pending, requests)))?;
        Ok(engine)
    }

    /// An engine whose requests somebody else answers: tests and simulations.
    pub fn asked() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (requests, asked) = mpsc::unbounded_channel();
        (Self { requests }, asked)
    }

    /// See [`Request::Versions`].
    pub async fn versions(&self) -> Result<Versions, Error> {
        self.ask(Request::Versions).await
    }

    /// See [`Request::Report`].
    pub async fn report(&self) -> Result<Value, Error> {
        self.ask(Request::Report).await
    }

    /// See [`Request::Fill`].
    pub async fn fill(&self, template: Template) -> Result<Filled, Error> {
        self.ask(|back| Request::Fill(template, back)).await
    }

    /// See [`Request::Features`].
    pub async fn features(&self, desired: Value) -> Result<Vec<String>, Error> {
        self.ask(|back| Request::Features(desired, back)).await
    }

    /// See [`Request::Diff`].
    pub async fn diff(&self, desired: Value) -> Result<Value, Error> {
        self.ask(|back| Request::Diff(desired, back)).await
    }

    /// See [`Request::Apply`].
    pub async fn apply(&self, desired: Value) -> Result<(), Error> {
        self.ask(|back| Request::Apply(desired, back)).await
    }

    /// See [`Request::Commit`].
    pub async fn commit(&self) -> Result<(), Error> {
        self.ask(Request::Commit).await
    }

    /// See [`Request::Rollback`].
    pub async fn rollback(&self) -> Result<(), Error> {
        self.ask(Request::Rollback).await
    }

    /// See [`Request::Leave`].
    pub async fn leave(&self) -> Result<(), Error> {
        self.ask(Request::Leave).await
    }

    /// See [`Tool`].
    pub async fn tool(&self, tool: Tool) -> Result<Value, Error> {
        self.ask(|back| Request::Tool(tool, back)).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let gone = || Error::new(BUG, "the engine's thread has ended");
        let (back, answer) = oneshot::channel();
        self.requests.send(request(back)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
