//! The parts of the operator that work beside its main loop, each with watches of its own.
//!
//! `OperatorPKI`s and signing requests are not among them: their only users are parts of OVN-Kubernetes, which is not
//! rendered yet, and without them nobody needs the right to read Secrets.

use kube::Client;
use kube_kit::shutdown::Shutdown;

use crate::report::Reports;
use crate::{ingress, proxy, trust};

/// Works until the end is wished for.
pub async fn run(client: Client, reports: &Reports, shutdown: &Shutdown) {
    tokio::join!(
        connectivity::generator::controller::run(client.clone(), shutdown),
        trust::controller::run(client.clone(), reports, shutdown),
        proxy::controller::run(
            client.clone(),
            proxy::controller::SYSTEM_BUNDLE.into(),
            reports,
            shutdown
        ),
        ingress::controller::run(client, shutdown),
    );
}
