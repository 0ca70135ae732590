//! A real Prometheus that scrapes the operator's metrics and evaluates its alerts.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use cluster::{Packages, free_port, wait};
use serde_json::{Value, json};
use stage::prometheus::programs;
use tempfile::TempDir;

use crate::{
    alerts,
    fixture::{DEADLINE, Fixture},
};

/// A Prometheus that scrapes an operator with the configuration of its `ServiceMonitor`.
struct Prometheus {
    programs: Packages,
    url: String,
    dir: TempDir,
    child: Child,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(programs: Packages, fixture: &Fixture, token: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("a file");
        let mut rule_files = Vec::new();
        for (name, rules) in alerts::rules() {
            write(&format!("{name}.json"), &rules.to_string());
            rule_files.push(format!("{name}.json"));
        }
        write("token", token);
        // The labels of a scrape through a Service.
        let labels = json!({ "namespace": "addons", "pod": "cluster-network-addons-operator-1" });
        let configuration = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": rule_files,
            "scrape_configs": [{
                "job_name": "operator", "scheme": "https",
                "authorization": { "credentials_file": "token" },
                "tls_config": { "insecure_skip_verify": true },
                "static_configs": [{ "targets": [fixture.metrics_address().to_string()], "labels": labels }],
            }],
        });
        write("prometheus.json", &configuration.to_string());
        let address = format!("127.0.0.1:{}", free_port().expect("a port"));
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        // The process ends with the test, even after a kill.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(programs.file("usr/bin/prometheus"))
            .current_dir(dir.path())
            .args(["--config.file=prometheus.json", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("Prometheus");
        Self {
            programs,
            url: format!("http://{address}"),
            dir,
            child,
        }
    }

    /// Waits until a query has these values, without their labels.
    fn wait_for(&self, query: &str, expected: &[&str]) {
        let answer = || {
            let mut ask = self.programs.command("usr/bin/promtool");
            let output = ask
                .args(["query", "instant", "--format=json", &self.url, query])
                .output()
                .expect("promtool");
            let answer: Value = serde_json::from_slice(&output.stdout)
                .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
            let samples = answer.as_array().into_iter().flatten();
            let values: Vec<_> = samples.filter_map(|sample| sample["value"][1].as_str()).collect();
            if values == expected {
                Ok(())
            } else {
                Err(answer.to_string())
            }
        };
        wait::until(&format!("{query}: {expected:?}"), DEADLINE, answer).unwrap_or_else(|error| {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            panic!("{error}\n{log}")
        });
    }
}

// operator#71, operator#72: the path from the configuration to an alert with its delay of five minutes
#[test]
fn prometheus_scrapes_metrics_and_fires_alert() {
    let Some(programs) = programs() else { return };
    let fixture = Fixture::running();
    let token = fixture.observer().token.expect("a token");
    let prometheus = Prometheus::start(programs, &fixture, &token);
    let pending = r#"ALERTS{alertname="NetworkAddonsConfigNotReady",alertstate="pending"}"#;

    prometheus.wait_for("cluster:kubevirt_cnao_operator_up:sum", &["1"]);
    prometheus.wait_for(pending, &["1"]);
    fixture.configure(&json!({}));
    prometheus.wait_for(r#"kubevirt_cnao_cr_ready{job="operator"}"#, &["1"]);
    prometheus.wait_for("cluster:kubevirt_cnao_cr_kubemacpool_deployed:sum", &["0"]);
    prometheus.wait_for("ALERTS", &[]);
    // Counters, gauges and histograms: no line of the text is lost.
    for query in [
        r#"count(controller_runtime_reconcile_total{result="success"} > 0)"#,
        "count(controller_runtime_reconcile_time_seconds_count > 0)",
        "count(workqueue_adds_total > 0)",
        "count(sum(rest_client_requests_total) > 0)",
        "count(process_resident_memory_bytes > 0)",
        "count(process_cpu_seconds_total)",
    ] {
        prometheus.wait_for(query, &["1"]);
    }

    // The pods have no node: the workload is never rolled out.
    fixture.configure(&json!({
        "kubeMacPool": {}, "placementConfiguration": { "infra": { "nodeSelector": { "no": "node" } } },
    }));
    prometheus.wait_for(pending, &["1"]);
    let pending = r#"ALERTS{alertname="KubemacpoolDown",alertstate="pending"}"#;
    prometheus.wait_for(pending, &["1"]);
}
