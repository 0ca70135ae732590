//! Access to a cluster for commands of people, with errors that help to get it.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::Kubeconfig;
use kube::{Client, Config};

pub use program::answer::Answer;
use thiserror::Error;

use crate::metrics::Requests;
use crate::{client, kubeconfig, process, proxy};

/// Deadline of a connection, and of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a command, and returns its output. An error becomes an output with the code
/// [`TROUBLE`](program::answer::TROUBLE).
pub fn answer<E: Display + From<Error>>(question: impl Future<Output = Result<Answer, E>>) -> Answer {
    let answered = process::run(question).unwrap_or_else(|error| Err(Error::Runtime(error).into()));
    answered.unwrap_or_else(|error| Answer::failed(&error))
}

/// Flags for the access to the cluster.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "The cluster")]
pub struct Flags {
    /// Kubeconfig to use instead of $KUBECONFIG and ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// A cluster that cannot be read. Each text has the next step.
#[derive(Debug, Error)]
pub enum Error {
    /// The asynchronous runtime cannot be started.
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
    /// There is no usable kubeconfig.
    #[error(
        "no usable kubeconfig: {0}\nName a kubeconfig by --kubeconfig FILE or KUBECONFIG=FILE; `kubectl config view` shows \
         what kubectl uses."
    )]
    Kubeconfig(String),
    /// The proxy to the API server is not supported.
    #[error(transparent)]
    Proxy(#[from] client::UnusableProxy),
    /// The API server is unreachable.
    #[error(
        "the API server does not answer: {0}\nCheck the cluster with `kubectl config current-context` and `kubectl \
         version`."
    )]
    Unreachable(String),
    /// The API server refuses the credentials.
    #[error(
        "the API server does not accept these credentials: {0}\nLog in again, or choose another --context."
    )]
    Unauthorized(String),
    /// The user lacks a right.
    #[error(
        "not allowed to read {what}: {cause}\nAsk an administrator of the cluster for the right to get and list it; \
         `kubectl auth can-i --list` shows what is allowed."
    )]
    Forbidden {
        /// The object or kind.
        what: String,
        /// The API server's message.
        cause: String,
    },
    /// Any other failure.
    #[error("cannot read {what}: {cause}")]
    Other {
        /// The object or kind.
        what: String,
        /// The API server's message.
        cause: String,
    },
}

impl Error {
    /// The error of a request for `what`.
    pub fn of(what: &str, error: &kube::Error) -> Self {
        let cause = client::message(error);
        match error {
            kube::Error::Api(status) if status.code == 401 => Self::Unauthorized(cause),
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden {
                what: what.to_owned(),
                cause,
            },
            kube::Error::HyperError(_) | kube::Error::Service(_) => Self::Unreachable(cause),
            _ => Self::Other {
                what: what.to_owned(),
                cause,
            },
        }
    }
}

/// Creates the client of the flags, without sending a request.
///
/// # Errors
/// If there is no kubeconfig, or it is invalid.
pub async fn connect(flags: &Flags) -> Result<Client, Error> {
    prepared(flags, Some(TIMEOUT)).await
}

/// The same for calls that last until a program in a pod ends. The caller sets their deadline.
///
/// # Errors
/// As [`connect`].
pub async fn connect_for_exec(flags: &Flags) -> Result<Client, Error> {
    prepared(flags, None).await
}

async fn prepared(flags: &Flags, timeout: Option<Duration>) -> Result<Client, Error> {
    // The library quotes paths twice.
    let unquoted = |text: String| text.replace("'\"", "").replace("\"'", "");
    let unusable = |text: String| Error::Kubeconfig(unquoted(text));
    let of_home = || Kubeconfig::read().map_err(|error| unusable(client::chain(&error)));
    let configured = async {
        let named = match &flags.kubeconfig {
            Some(path) => kubeconfig::read(path).map(Some),
            None => kubeconfig::of_environment(),
        };
        let named = named.map_err(|error| unusable(error.to_string()))?;
        let read = named.map_or_else(of_home, Ok)?;
        let configured = proxy::configured(read, flags.context.clone()).await;
        configured.map_err(|error| match error {
            proxy::Error::Proxy(error) => Error::Proxy(error),
            proxy::Error::Kubeconfig(error) => unusable(client::chain(&error)),
        })
    };
    let mut config = match configured.await {
        Err(Error::Kubeconfig(text)) => match Config::incluster() {
            // In a pod, for debugging there.
            Ok(config) if flags.kubeconfig.is_none() => proxy::in_cluster(config)?,
            _ => return Err(Error::Kubeconfig(text)),
        },
        configured => configured?,
    };
    config.connect_timeout = Some(TIMEOUT);
    config.read_timeout = timeout;
    config.reset_reader_on_write = true;
    client::counted(config, &Requests::default()).map_err(|error| Error::Kubeconfig(client::message(&error)))
}
