//! The operator's metrics (operator §10.1): two gauges of its own, on which its alerts are based, and the metrics of
//! all controllers. They are served over TLS with the configuration's profile, to clients with a right in the cluster.

use std::fmt;

use kube::Client;
use kube_kit::{
    auth,
    metrics::Controller,
    serve::{self, Server},
    tls::{self, Identity, Profile, Tls},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::Gauge,
    registry::Registry,
};

use crate::{messages, names, settings::Settings, tls::TlsSettings};

/// Port of the metrics.
pub const PORT: u16 = 8443;

/// Path of the metrics, also in the right to read them.
const PATH: &str = "/metrics";

/// The operator's metrics and their server's settings. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    state: State,
    controller: Controller,
    tls: Tls,
}

/// Metrics of the configuration resource.
#[derive(Debug, Clone, Default)]
struct State {
    ready: Gauge,
    mac_pool: Gauge,
}

impl Metrics {
    /// Metrics with all values 0. The server has a self-signed certificate for the names of the Service, and serves
    /// only TLS 1.3 until a profile is published.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn new(settings: &Settings) -> Result<Self, tls::Error> {
        let identity = Identity::self_signed(&tls::service_names(
            names::METRICS_SERVICE,
            &settings.operand_namespace,
        ))?;
        Ok(Self {
            state: State::default(),
            controller: Controller::new(names::CONTROLLER),
            tls: Tls::new(identity)?,
        })
    }

    /// Serves the metrics on a port of all addresses, to clients that the API server allows to `get` their path.
    ///
    /// # Errors
    /// If the port cannot be listened on.
    pub async fn serve(&self, client: Client, port: u16) -> Result<Server, serve::Error> {
        let router = auth::guarded(serve::metrics(self.registry().into()), client, PATH);
        Server::on_port_tls(port, router, &self.tls).await
    }

    /// Publishes the TLS profile of the configuration. It takes effect with the next handshake.
    pub fn publish_tls(&self, settings: &TlsSettings) {
        let profile = Profile::read(&settings.min_version, &settings.ciphers);
        if let Err(error) = self.tls.set_profile(profile) {
            tracing::error!(%error, "the metrics keep their TLS profile");
        }
    }

    /// Sets whether Available is True.
    pub fn set_ready(&self, ready: bool) {
        self.state.ready.set(ready.into());
    }

    /// Sets whether the MAC pool is deployed.
    pub fn set_mac_pool(&self, deployed: bool) {
        self.state.mac_pool.set(deployed.into());
    }

    /// The metrics of every controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.state.clone()));
        self.controller.register(&mut registry);
        registry
    }
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // The registry would append a full stop to the help texts, and users know the texts without one.
        for (name, help, gauge) in [
            (names::metric::READY, messages::READY_HELP, &self.ready),
            (names::metric::MAC_POOL, messages::MAC_POOL_HELP, &self.mac_pool),
        ] {
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &metrics.registry()).expect("text");
        text
    }

    #[test]
    fn the_own_figures_are_exactly_as_users_know_them() {
        let metrics = Metrics::new(&Settings::default()).expect("metrics");
        for (ready, mac_pool) in [(false, false), (true, false), (true, true), (false, false)] {
            metrics.set_ready(ready);
            metrics.set_mac_pool(mac_pool);
            let expected = format!(
                "# HELP kubevirt_cnao_cr_ready CNAO CR Ready\n\
                # TYPE kubevirt_cnao_cr_ready gauge\n\
                kubevirt_cnao_cr_ready {}\n\
                # HELP kubevirt_cnao_cr_kubemacpool_deployed KubeMacpool is deployed by CNAO CR\n\
                # TYPE kubevirt_cnao_cr_kubemacpool_deployed gauge\n\
                kubevirt_cnao_cr_kubemacpool_deployed {}\n",
                u8::from(ready),
                u8::from(mac_pool)
            );
            let text = text(&metrics);
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn all_metrics_of_controllers_exist_from_the_start() {
        let text = text(&Metrics::new(&Settings::default()).expect("metrics"));
        let controller = r#"controller="networkaddonsconfig-controller""#;
        for line in [
            format!(r#"controller_runtime_reconcile_total{{{controller},result="success"}} 0"#),
            format!(r#"controller_runtime_reconcile_total{{{controller},result="error"}} 0"#),
            format!(r#"workqueue_depth{{{controller},name="networkaddonsconfig-controller"}} 0"#),
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    }

    #[test]
    fn the_certificate_is_for_the_service() {
        assert_eq!(
            tls::service_names(names::METRICS_SERVICE, "addons"),
            [
                "cluster-network-addons-operator-prometheus-metrics.addons.svc",
                "cluster-network-addons-operator-prometheus-metrics.addons.svc.cluster.local",
                "cluster-network-addons-operator-prometheus-metrics.addons",
                "cluster-network-addons-operator-prometheus-metrics",
            ]
        );
    }

    #[tokio::test]
    async fn taken_port_is_reported() {
        let metrics = Metrics::new(&Settings::default()).expect("metrics");
        // The server sends no request before the first scrape.
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let client = Client::try_from(nowhere).expect("a client");
        let first = metrics.serve(client.clone(), 0).await.expect("a server");
        let port = first.address().port();
        let error = metrics.serve(client, port).await.expect_err("an error");
        let text = format!("{:#}", anyhow::Error::new(error).context("the metrics"));
        assert!(text.starts_with("the metrics: cannot listen on "), "{text}");
        assert!(
            text.contains(&format!(":{port}: Address already in use")),
            "{text}"
        );
    }
}
