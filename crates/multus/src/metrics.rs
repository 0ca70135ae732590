//! The request counter (multus.md §7.9).

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    handler: String,
    code: u32,
    method: String,
}

/// Figures of the daemon. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    requests: Family<Labels, Counter>,
}

impl Metrics {
    /// Adds the figures to a registry. The counter's name gets its `_total` when it is written.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "multus_server_request",
            "Counter of HTTP requests",
            self.requests.clone(),
        );
    }

    /// Counts one answered request.
    pub fn count(&self, handler: &str, code: u16, method: String) {
        let labels = Labels {
            handler: handler.to_owned(),
            code: code.into(),
            method,
        };
        self.requests.get_or_create(&labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_for_each_handler_code_and_method() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        metrics.count("/cni", 200, "post".into());
        metrics.count("/cni", 200, "post".into());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = r#"multus_server_request_total{handler="/cni",code="200",method="post"} 2"#;
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
