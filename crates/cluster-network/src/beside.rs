//! The controllers that run beside the main loop of the operator, each with its own watches.

use connectivity::generator;
use kube::Client;
use kube_kit::shutdown::Shutdown;

use crate::proxy::controller::SYSTEM_BUNDLE;
use crate::report::Reports;
use crate::settings::Settings;
use crate::{
    egress_router, infrastructure, ingress, mtu_migration, observability, pki, proxy, signer, trust,
};

/// Runs the controllers until the shutdown.
pub async fn run(client: &Client, settings: &Settings, reports: &Reports, shutdown: &Shutdown) {
    let client = || client.clone();
    tokio::join!(
        Box::pin(generator::controller::run(
            client(),
            reports.queue("connectivity_check", generator::controller::LONGEST),
            shutdown
        )),
        Box::pin(proxy::controller::run(
            client(),
            SYSTEM_BUNDLE.into(),
            settings.hosted.as_ref(),
            reports,
            shutdown
        )),
        Box::pin(trust::controller::run(client(), reports, shutdown)),
        Box::pin(pki::controller::run(client(), reports, shutdown)),
        Box::pin(egress_router::controller::run(
            client(),
            settings,
            reports,
            shutdown
        )),
        Box::pin(signer::controller::run(client(), reports, shutdown)),
        Box::pin(ingress::controller::run(client(), reports, shutdown)),
        Box::pin(infrastructure::controller::run(client(), reports, shutdown)),
        Box::pin(mtu_migration::controller::run(
            client(),
            &settings.namespace,
            reports,
            shutdown
        )),
        Box::pin(observability::controller::run(
            client(),
            &settings.version,
            reports,
            shutdown
        )),
    );
}
