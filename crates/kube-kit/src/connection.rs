//! The way to a cluster for people's commands, and what to tell them when there is none.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;

use crate::{client, process};

/// How long a connection may take, and an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Exit code of a question that can't be answered.
pub const TROUBLE: u8 = 2;

/// What a command for people has to say.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// For standard error.
    pub remarks: String,
    /// Exit code.
    pub code: u8,
}

/// Answers a question, and prints nothing. An error is an answer with the code [`TROUBLE`].
pub fn answer<E: Display + From<Error>>(question: impl Future<Output = Result<Answer, E>>) -> Answer {
    let answered = process::run(question).unwrap_or_else(|error| Err(Error::Runtime(error).into()));
    answered.unwrap_or_else(|error| Answer {
        remarks: format!("error: {error}\n"),
        code: TROUBLE,
        ..Answer::default()
    })
}

/// Flags for the way to the cluster.
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

/// Why the cluster does not tell. The texts say what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// This program can't wait for answers.
    #[error("cannot wait for answers: {0}")]
    Runtime(std::io::Error),
    /// No file says where the cluster is.
    #[error(
        "no way to a cluster: {0}\nName a kubeconfig by --kubeconfig FILE or KUBECONFIG=FILE; `kubectl config view` shows \
         what kubectl uses."
    )]
    Kubeconfig(String),
    /// Nobody answers.
    #[error(
        "the API server does not answer: {0}\nIs it the right cluster, and does it run? `kubectl config current-context` \
         and `kubectl version` tell."
    )]
    Unreachable(String),
    /// Somebody answers who does not know us.
    #[error(
        "the API server does not accept these credentials: {0}\nLog in again, or choose another --context."
    )]
    Unauthorized(String),
    /// We may not know.
    #[error(
        "not allowed to read {what}: {cause}\nAsk whoever administers the cluster for the right to get and list it; \
         `kubectl auth can-i --list` shows what is allowed."
    )]
    Forbidden {
        /// What was asked for.
        what: String,
        /// What the API server said.
        cause: String,
    },
    /// Anything else.
    #[error("cannot read {what}: {cause}")]
    Other {
        /// What was asked for.
        what: String,
        /// What the API server said.
        cause: String,
    },
}

impl Error {
    /// What to tell about an answer to the question for `what`.
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

/// Prepares the way that the flags name. Nothing is asked yet.
///
/// # Errors
/// When no kubeconfig says where the cluster is, or it is unusable.
pub async fn connect(flags: &Flags) -> Result<Client, Error> {
    prepared(flags, Some(PATIENCE)).await
}

/// The same for calls whose answer comes when a program in a pod ends. The caller limits how long that takes.
///
/// # Errors
/// As [`connect`].
pub async fn connect_for_exec(flags: &Flags) -> Result<Client, Error> {
    prepared(flags, None).await
}

async fn prepared(flags: &Flags, patience: Option<Duration>) -> Result<Client, Error> {
    let options = KubeConfigOptions {
        context: flags.context.clone(),
        ..KubeConfigOptions::default()
    };
    // The library quotes paths twice.
    let unquoted = |text: String| text.replace("'\"", "").replace("\"'", "");
    let unusable = |error: KubeconfigError| Error::Kubeconfig(unquoted(client::chain(&error)));
    let config = match &flags.kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(unusable)?;
            Config::from_custom_kubeconfig(read, &options)
                .await
                .map_err(unusable)
        }
        None => match Config::from_kubeconfig(&options).await {
            Ok(config) => Ok(config),
            // In a pod, for whoever debugs there.
            Err(error) => Config::incluster().map_err(|_| unusable(error)),
        },
    };
    let mut config = config?;
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = patience;
    config.reset_reader_on_write = true;
    Client::try_from(config).map_err(|error| Error::Kubeconfig(client::message(&error)))
}
