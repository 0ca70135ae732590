//! Dashboards of OpenShift's web console (§16.1).

use serde_json::{Value, json};

use super::Context;
use crate::names;

/// A row of graphs.
struct Row {
    title: &'static str,
    graphs: &'static [Graph],
}

/// A graph of one query.
struct Graph {
    title: &'static str,
    query: &'static str,
    /// Name of a line, with labels of the result in braces.
    line: &'static str,
    /// Unit of the values, in Grafana's notation.
    unit: &'static str,
}

const BYTES_PER_SECOND: &str = "Bps";
const PACKETS_PER_SECOND: &str = "pps";
const SECONDS: &str = "s";
const BYTES: &str = "bytes";
const SHARE: &str = "percentunit";
const NUMBER: &str = "short";

/// Traffic of nodes and pods, from the exporter of nodes and from the kubelet. Values of nodes are those of single
/// interfaces, because a packet passes several of them.
const NETWORK_STATS: &[Row] = &[
    Row {
        title: "Traffic of nodes, top 10",
        graphs: &[
            Graph {
                title: "Received",
                query: "topk(10, rate(node_network_receive_bytes_total{device!=\"lo\"}[5m]))",
                line: "{{instance}} {{device}}",
                unit: BYTES_PER_SECOND,
            },
            Graph {
                title: "Sent",
                query: "topk(10, rate(node_network_transmit_bytes_total{device!=\"lo\"}[5m]))",
                line: "{{instance}} {{device}}",
                unit: BYTES_PER_SECOND,
            },
        ],
    },
    Row {
        title: "Traffic of pods, top 10",
        graphs: &[
            Graph {
                title: "Received",
                query: "topk(10, sum by (namespace, pod) \
                        (rate(container_network_receive_bytes_total{pod!=\"\"}[5m])))",
                line: "{{namespace}}/{{pod}}",
                unit: BYTES_PER_SECOND,
            },
            Graph {
                title: "Sent",
                query: "topk(10, sum by (namespace, pod) \
                        (rate(container_network_transmit_bytes_total{pod!=\"\"}[5m])))",
                line: "{{namespace}}/{{pod}}",
                unit: BYTES_PER_SECOND,
            },
        ],
    },
    Row {
        title: "Losses of nodes, top 10",
        graphs: &[
            Graph {
                title: "Dropped packets",
                query: "topk(10, rate(node_network_receive_drop_total[5m]) + \
                        rate(node_network_transmit_drop_total[5m]))",
                line: "{{instance}} {{device}}",
                unit: PACKETS_PER_SECOND,
            },
            Graph {
                title: "Errors of interfaces",
                query: "topk(10, rate(node_network_receive_errs_total[5m]) + \
                        rate(node_network_transmit_errs_total[5m]))",
                line: "{{instance}} {{device}}",
                unit: PACKETS_PER_SECOND,
            },
            Graph {
                title: "TCP segments that were sent again",
                query: "topk(10, rate(node_netstat_Tcp_RetransSegs[5m]) / \
                        rate(node_netstat_Tcp_OutSegs[5m]))",
                line: "{{instance}}",
                unit: SHARE,
            },
        ],
    },
];

/// OVN-Kubernetes, from its own metrics, the kubelet and the connectivity checks.
const OVN_HEALTH: &[Row] = &[
    Row {
        title: "Pods",
        graphs: &[
            Graph {
                title: "Time to attach a pod, 99th percentile",
                query: "histogram_quantile(0.99, sum by (le) \
                        (rate(ovnkube_node_cni_request_duration_seconds_bucket{command=\"ADD\"}[5m])))",
                line: "ADD",
                unit: SECONDS,
            },
            Graph {
                title: "Time to detach a pod, 99th percentile",
                query: "histogram_quantile(0.99, sum by (le) \
                        (rate(ovnkube_node_cni_request_duration_seconds_bucket{command=\"DEL\"}[5m])))",
                line: "DEL",
                unit: SECONDS,
            },
            Graph {
                title: "Failed requests per second",
                query: "sum by (command) \
                        (rate(ovnkube_node_cni_request_duration_seconds_count{err=\"true\"}[5m]))",
                line: "{{command}}",
                unit: NUMBER,
            },
        ],
    },
    Row {
        title: "Connections",
        graphs: &[
            Graph {
                title: "Nodes without a connection to the southbound database",
                query: "count(ovn_controller_southbound_database_connected == 0) or vector(0)",
                line: "nodes",
                unit: NUMBER,
            },
            Graph {
                title: "Time to connect to a checked endpoint",
                // Nanoseconds.
                query: "max(pod_network_connectivity_check_tcp_connect_latency_gauge) / 1e9",
                line: "slowest",
                unit: SECONDS,
            },
        ],
    },
    Row {
        title: "Resources",
        graphs: &[
            Graph {
                title: "Processors in use, top 10",
                query: "topk(10, sum by (pod) (rate(container_cpu_usage_seconds_total\
                        {namespace=\"openshift-ovn-kubernetes\",container!=\"\"}[5m])))",
                line: "{{pod}}",
                unit: NUMBER,
            },
            Graph {
                title: "Memory in use, top 10",
                query: "topk(10, sum by (pod) (container_memory_working_set_bytes\
                        {namespace=\"openshift-ovn-kubernetes\",container!=\"\"}))",
                line: "{{pod}}",
                unit: BYTES,
            },
        ],
    },
];

/// A `ConfigMap` for each dashboard, where the console finds them.
pub(super) fn objects(context: &Context<'_>) -> Vec<Value> {
    let mut objects = vec![config_map(
        "grafana-dashboard-network-stats",
        "Networking / Linux Subsystem Stats",
        NETWORK_STATS,
    )];
    if context.spec.default_network.kind == names::OVN_KUBERNETES {
        objects.push(config_map(
            "grafana-dashboard-ovn-health",
            "Networking / Infrastructure",
            OVN_HEALTH,
        ));
    }
    objects
}

fn config_map(name: &str, title: &str, rows: &[Row]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": names::MANAGED_NAMESPACE,
            "labels": { "console.openshift.io/dashboard": "true" },
        },
        "data": { "dashboard.json": format!("{:#}", dashboard(title, rows)) },
    })
}

/// A dashboard in the format of Grafana's version 5, which the console reads.
fn dashboard(title: &str, rows: &[Row]) -> Value {
    let mut id = 0;
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            // A row is twelve columns wide.
            let width = 12 / row.graphs.len().max(1);
            let panels: Vec<Value> = row
                .graphs
                .iter()
                .map(|graph| {
                    id += 1;
                    panel(graph, id, width)
                })
                .collect();
            json!({ "title": row.title, "showTitle": true, "collapse": false, "panels": panels })
        })
        .collect();
    json!({
        "title": title,
        "tags": ["networking-mixin"],
        "schemaVersion": 16,
        "timezone": "browser",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [] },
        "rows": rows,
    })
}

fn panel(graph: &Graph, id: usize, width: usize) -> Value {
    json!({
        "id": id,
        "type": "graph",
        "title": graph.title,
        "datasource": "prometheus",
        "span": width,
        "stack": false,
        "legend": { "show": true },
        "targets": [{
            "expr": graph.query, "format": "time_series", "legendFormat": graph.line, "refId": "A",
        }],
        "yaxes": [{ "format": graph.unit, "min": 0, "show": true }, { "format": NUMBER, "show": false }],
    })
}

#[cfg(test)]
mod tests {
    use api::cluster_network::operator::NetworkSpec;
    use serde_json::{Value, json};

    use super::super::{Part, sample};
    use crate::facts::Facts;

    fn rendered(openshift: bool, kind: &str) -> Vec<Value> {
        let mut spec = NetworkSpec::default();
        kind.clone_into(&mut spec.default_network.kind);
        let facts = Facts {
            openshift,
            ..Facts::default()
        };
        sample::objects(Part::Dashboards, &spec, &facts, &sample::settings(&[]))
    }

    // cluster-network#172
    #[test]
    fn dashboards_are_rendered_on_openshift_by_network_type() {
        let names = |openshift: bool, kind: &str| -> Vec<String> {
            let objects = rendered(openshift, kind);
            let name = |it: &Value| it["metadata"]["name"].as_str().expect("a name").to_owned();
            objects.iter().map(name).collect()
        };
        let (network, ovn) = ("grafana-dashboard-network-stats", "grafana-dashboard-ovn-health");
        assert_eq!(names(true, "OVNKubernetes"), [network, ovn]);
        assert_eq!(names(true, "Calico"), [network]);
        assert_eq!(names(false, "OVNKubernetes"), Vec::<String>::new());
    }

    // cluster-network#172
    #[test]
    fn dashboard_has_what_the_console_reads() {
        let objects = rendered(true, "OVNKubernetes");
        let titles: Vec<Value> = objects
            .iter()
            .map(|object| read(object)["title"].clone())
            .collect();
        assert_eq!(
            titles,
            [
                "Networking / Linux Subsystem Stats",
                "Networking / Infrastructure"
            ]
        );
        for object in &objects {
            assert_eq!(object["metadata"]["namespace"], "openshift-config-managed");
            let label = &object["metadata"]["labels"]["console.openshift.io/dashboard"];
            assert_eq!(label, "true");
            let mut ids = Vec::new();
            for row in read(object)["rows"].as_array().expect("rows") {
                let panels = row["panels"].as_array().expect("panels");
                let width: u64 = panels.iter().filter_map(|panel| panel["span"].as_u64()).sum();
                assert_eq!(width, 12, "{row}");
                for panel in panels {
                    ids.push(panel["id"].clone());
                    let expression = panel["targets"][0]["expr"].as_str().expect("a query");
                    assert!(is_balanced(expression), "{expression}");
                    assert_eq!(panel["type"], "graph");
                    assert!(panel["yaxes"][0]["format"].is_string(), "{panel}");
                }
            }
            let expected: Vec<Value> = (1..=ids.len()).map(|id| json!(id)).collect();
            assert_eq!(ids, expected);
        }
    }

    fn read(object: &Value) -> Value {
        let text = object["data"]["dashboard.json"].as_str().expect("a dashboard");
        serde_json::from_str(text).expect("JSON")
    }

    /// True if all brackets of a query are closed in their order.
    fn is_balanced(query: &str) -> bool {
        let mut open = Vec::new();
        for character in query.chars() {
            match character {
                '(' => open.push(')'),
                '[' => open.push(']'),
                '{' => open.push('}'),
                ')' | ']' | '}' if open.pop() != Some(character) => return false,
                _ => {}
            }
        }
        open.is_empty()
    }
}
