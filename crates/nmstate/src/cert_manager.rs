//! The webhook's certificate manager outside OpenShift (nmstate §8): `webhook::manager` with our names.

use anyhow::Context as _;
use kube_kit::{client, shutdown::Shutdown};
use webhook::manager::{self, Names, Settings};

use crate::{Args, names, settings};

/// Names of the objects.
pub const NAMES: Names = Names {
    configuration: names::WEBHOOK_CONFIGURATION,
    kinds: manager::MUTATING,
    authority: names::WEBHOOK_AUTHORITY,
    service: names::WEBHOOK_SERVICE,
};

/// The names with the prefix of an installation (nmstate §10.4).
fn names_with(prefix: Option<String>) -> Names {
    let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) else {
        return NAMES;
    };
    // Leaked once per process, and used until its end.
    let with = |name: &str| -> &'static str { Box::leak(format!("{prefix}-{name}").into_boxed_str()) };
    Names {
        configuration: with(NAMES.configuration),
        kinds: NAMES.kinds,
        authority: with(NAMES.authority),
        service: with(NAMES.service),
    }
}

/// Runs until SIGTERM.
///
/// # Errors
/// If a variable is missing or invalid, or the client of the cluster cannot be created.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let settings = Settings::read(settings::variable)?;
    let client = client::client_from(names::COMPONENT, args.kubeconfig.as_deref()).await?;
    let names = names_with(settings::variable(names::env::PREFIX));
    manager::run(names, &settings, client, &shutdown).await;
    Ok(())
}
