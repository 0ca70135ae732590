//! `multus` of thin mode: the CNI plugin without a daemon (multus.md §8.1).
//!
//! ```text
//! runtime ──> multus ── one at a time for a sandbox ──> Daemon::handle, once
//!                                                       └── live reads of the cluster, when needed
//! ```
//!
//! The daemon's own code ([`Daemon`]) handles the call, with the same networks, plugins, files and texts, so that a
//! node may switch modes while pods run. This module holds the differences: the configuration is the runtime's alone,
//! plugins run in the root of this process and also see the runtime's `CNI_ARGS`, and Kubernetes is optional.

pub mod conf;
pub mod entrypoint;
pub mod kubeconfig;
mod lock;
mod view;

use crate::config::DaemonConfig;
use crate::daemon::{Caller, Daemon};
use crate::messages::of_pod;
use crate::metrics::Metrics;
use crate::names::{self, pod_args};
use crate::request::{NodeVerb, Request};
use crate::sandbox::{PodRef, PodVerb, Sandbox};
use clap::Args as ClapArgs;
use cni::Error;
use cni::args::CniArgs;
use cni::error::{code, internal};
use cni::json;
use cni::note::Level;
use cni::plugin::{self, Call, Plugin};
use cni::result::CniResult;
use cni::version::Version;
use lock::SandboxLock;
use plugins::multus_shim::NOTHING_COLLECTED;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::watch;
use view::View;

/// Description for a manual call.
const ABOUT: &str = "meta-plugin that delegates to other CNI plugins";
/// Keys of `CNI_ARGS` that need no `IgnoreUnknown`.
const KNOWN_ARGS: [&str; 5] = [
    "IP",
    pod_args::NAME,
    pod_args::NAMESPACE,
    pod_args::SANDBOX,
    pod_args::UID,
];

/// Attach a pod without a daemon: the CNI plugin `multus`, which container runtimes call
#[derive(Debug, Clone, ClapArgs)]
#[command(disable_version_flag = true)]
pub struct Args {
    /// Print the version
    #[arg(long, short = 'v')]
    pub version: bool,
}

/// Handles the call in the environment and on standard input.
pub fn run(args: &Args) -> ExitCode {
    if args.version {
        println!("multus: version:{}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    plugin::main(&Multus)
}

struct Multus;

impl Plugin for Multus {
    fn name(&self) -> &'static str {
        names::THIN
    }

    fn about(&self) -> String {
        ABOUT.into()
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let result = pod(call, PodVerb::Add)?;
        CniResult::parse(result.unwrap_or_default().as_bytes(), Version::LATEST)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        pod(call, PodVerb::Del).map(drop)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        pod(call, PodVerb::Check).map(drop)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        node(call, NodeVerb::Status)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        if !call.config.has_valid_attachments() {
            call.note(Level::Warn, NOTHING_COLLECTED);
        }
        node(call, NodeVerb::Gc)
    }
}

/// Keys of the configuration that only thin mode uses.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    kubeconfig: String,
    cni_dir: String,
}

fn keys(call: &Call) -> Result<Keys, Error> {
    json::from_slice(&call.stdin).map_err(|error| {
        let text = format!("Multus: error loading netconf: LoadNetConf: failed to load netconf: {error}");
        Error::new(code::INVALID_NETWORK_CONFIG, text)
    })
}

fn pod(call: &Call, verb: PodVerb) -> Result<Option<String>, Error> {
    let keys = keys(call)?;
    let (args, sandbox) = sandbox(call)?;
    let lock = SandboxLock::take(cni_dir(&keys), &sandbox.container_id);
    // A full or read-only disk must not block a DEL.
    if let Err(error) = &lock
        && verb != PodVerb::Del
    {
        return Err(of_pod(&sandbox, &format!("cannot lock the sandbox: {error}")));
    }
    let request = Request::Pod {
        verb,
        sandbox,
        config: call.stdin.clone(),
    };
    handle(request, args, &keys)
}

fn node(call: &Call, verb: NodeVerb) -> Result<(), Error> {
    let keys = keys(call)?;
    let request = Request::Node {
        verb,
        config: call.stdin.clone(),
    };
    handle(request, CniArgs::default(), &keys).map(drop)
}

fn handle(request: Request, args: CniArgs, keys: &Keys) -> Result<Option<String>, Error> {
    let config = DaemonConfig::one_shot(args).map_err(internal)?;
    let answer = kube_kit::process::run(async {
        let view = Arc::new(View::new(path(&keys.kubeconfig)));
        if !request.is_del() {
            // Connects first, for a specific error. DEL needs Kubernetes only for a sandbox without records.
            view.connect()
                .await
                .map_err(|error| Error::internal(format!("Multus: error getting k8s client: {error}")))?;
        }
        let daemon = Daemon::new(Arc::new(config), Arc::clone(&view), Metrics::default());
        // A killed caller kills this process too.
        let (caller, _waits): (Caller, _) = watch::channel(());
        let answer = Box::pin(daemon.handle(request, &caller)).await;
        view.flush_events().await;
        answer
    });
    answer.map_err(internal)?
}

/// The sandbox and the `CNI_ARGS` of a call.
fn sandbox(call: &Call) -> Result<(CniArgs, Sandbox), Error> {
    let unusable = |error: Error| error.prefixed("Multus: error getting k8s args");
    let args = call.args().map_err(unusable)?;
    args.require_known(&KNOWN_ARGS).map_err(unusable)?;
    let pod = PodRef::named_in(&args);
    let netns = call.request.netns.as_deref().unwrap_or(Path::new(""));
    let sandbox = Sandbox {
        container_id: call.request.container_id.clone(),
        netns: netns.to_string_lossy().into_owned(),
        ifname: call.request.ifname.clone(),
        args: call.request.args.clone(),
        pod,
    };
    Ok((args, sandbox))
}

fn cni_dir(keys: &Keys) -> &Path {
    Path::new(if keys.cni_dir.is_empty() {
        names::CNI_DIR
    } else {
        &keys.cni_dir
    })
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}
