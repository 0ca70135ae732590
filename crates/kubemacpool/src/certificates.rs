//! The certificate manager: the mode of the program in which it issues and renews what the webhooks' server shows, and
//! what the API server trusts it by (kubemacpool §15).

use kube::Client;
use kube_kit::shutdown::Shutdown;
use webhook::manager::{self, Names};

use crate::names::{AUTHORITY, SERVICE, WEBHOOK_CONFIGURATION};

pub use webhook::manager::{InvalidSettings, Settings, is_wanted};

/// Keeps the certificates until the end is wished for. A failing API server is no error: it is tried again.
pub async fn run(settings: &Settings, client: Client, shutdown: &Shutdown) {
    let names = Names {
        configuration: WEBHOOK_CONFIGURATION,
        kinds: manager::MUTATING,
        authority: AUTHORITY,
        service: SERVICE,
    };
    manager::run(names, settings, client, shutdown).await;
}
