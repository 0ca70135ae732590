//! The certificate manager: the mode of the program that issues and rotates the webhooks' certificates
//! (kubemacpool §15).

use kube::Client;
use kube_kit::shutdown::Shutdown;
use webhook::manager::{self, Names};

use crate::names::{AUTHORITY, SERVICE, WEBHOOK_CONFIGURATION};

pub use webhook::manager::{InvalidSettings, Settings, is_wanted};

/// Manages the certificates until shutdown. Errors of the API server are retried.
pub async fn run(settings: &Settings, client: Client, shutdown: &Shutdown) {
    let names = Names {
        configuration: WEBHOOK_CONFIGURATION,
        kinds: manager::MUTATING,
        authority: AUTHORITY,
        service: SERVICE,
    };
    manager::run(names, settings, client, shutdown).await;
}
