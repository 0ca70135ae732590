//! The API server of a measured daemon: pods to attach, a network, and endpoints for statuses and events. Either a real
//! one, or a stand-in that answers at once.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use ::api::net_attach_def;
use anyhow::Context;
use cluster::ApiServer;
use serde_json::{Value, json};

/// Namespace of all objects.
pub(super) const NAMESPACE: &str = "bench";
/// The node of all pods.
pub(super) const NODE: &str = "node";
/// Number of pods of a full node: half of them with the cluster's network alone, half with one more.
pub(super) const PODS: usize = 110;
/// Name of the additional network.
const NETWORK: &str = "more";
const RESOURCE_VERSION: &str = "7";

/// Returns the name of a pod.
pub(super) fn pod_name(number: usize) -> String {
    format!("pod-{number}")
}

fn pod_uid(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// An API server with the pods and the network.
pub(super) struct Api {
    /// Kubeconfig of its clients.
    pub(super) kubeconfig: PathBuf,
    /// UIDs of the pods.
    pub(super) uids: Vec<String>,
    server: Option<ApiServer>,
}

/// Labels of the API server's metric for writes of pod statuses.
const STATUS_WRITES: [&str; 3] = ["resource=\"pods\"", "subresource=\"status\"", "verb=\"PUT\""];

impl Api {
    /// Starts the stand-in, which runs until the process ends. `network` is the configuration of the additional
    /// network, and `dir` the directory of its kubeconfig.
    pub(super) fn instant(network: &Value, dir: &Path) -> anyhow::Result<Self> {
        let address = serve(nad(network))?;
        let kubeconfig = dir.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        fs::write(&kubeconfig, config.to_string()).context("cannot write the kubeconfig")?;
        Ok(Self {
            kubeconfig,
            uids: (0..PODS).map(pod_uid).collect(),
            server: None,
        })
    }

    /// Starts a real API server, with a real etcd.
    pub(super) fn real(network: &Value) -> anyhow::Result<Self> {
        let server = ApiServer::start()?;
        let kubectl = server.kubectl();
        kubectl.apply(&serde_json::to_string(&net_attach_def::crd()?).context("cannot write the CRD")?)?;
        kubectl.run(["wait", "--for=condition=Established", "crd", "--all"])?;
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        let mut objects = vec![namespace, nad(network)];
        objects.extend((0..PODS).map(pod));
        for object in &mut objects {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                // The server sets these fields.
                metadata.shift_remove("uid");
                metadata.shift_remove("resourceVersion");
            }
        }
        kubectl.apply(&list("List", &objects).to_string())?;
        let uids = (0..PODS).map(|number| {
            let name = pod_name(number);
            let pod = kubectl.get(["pod", "--namespace", NAMESPACE, &name])?;
            let uid = pod.as_ref().and_then(|pod| pod["metadata"]["uid"].as_str());
            uid.map(str::to_owned)
                .with_context(|| format!("{name} has no UID"))
        });
        Ok(Self {
            kubeconfig: server.kubeconfig().to_owned(),
            uids: uids.collect::<anyhow::Result<_>>()?,
            server: Some(server),
        })
    }

    /// Returns the time of status writes since the start, from the metrics of a real API server.
    pub(super) fn status_writes(&self) -> anyhow::Result<Option<String>> {
        let Some(server) = &self.server else {
            return Ok(None);
        };
        let metrics = server.kubectl().run(["get", "--raw", "/metrics"])?;
        let count = total(&metrics, "apiserver_request_duration_seconds_count");
        let seconds = total(&metrics, "apiserver_request_duration_seconds_sum");
        let text = || {
            format!(
                "the API server took {:.2} ms for each of {count} writes of a status",
                seconds * 1e3 / count
            )
        };
        Ok((count > 0.0).then(text))
    }
}

/// Returns the sum of a metric over all series of [`STATUS_WRITES`].
fn total(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    let lines = lines.filter(|line| STATUS_WRITES.iter().all(|label| line.contains(label)));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn nad(network: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": NETWORK, "namespace": NAMESPACE, "uid": "nad", "resourceVersion": RESOURCE_VERSION },
        "spec": { "config": network.to_string() },
    })
}

fn serve(nad: Value) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
    let address = listener.local_addr().context("cannot listen")?;
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let nad = nad.clone();
            // A broken connection is the client's problem.
            std::thread::spawn(move || answer_all(&connection, &nad));
        }
    });
    Ok(address)
}

fn pod(number: usize) -> Value {
    let mut annotations = json!({});
    if number % 2 == 1 {
        annotations = json!({ "k8s.v1.cni.cncf.io/networks": NETWORK });
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod_name(number), "namespace": NAMESPACE, "uid": pod_uid(number),
            "resourceVersion": RESOURCE_VERSION, "annotations": annotations,
            "labels": { "app": "bench", "pod-template-hash": "5d8f7c9b66" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bench-5d8f7c9b66", "uid": "rs",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "nodeName": NODE, "serviceAccountName": "default", "restartPolicy": "Always",
            "containers": [{ "name": "main", "image": "registry.example/app:1", "imagePullPolicy": "IfNotPresent" }],
        },
        "status": { "phase": "Pending", "qosClass": "BestEffort" },
    })
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "metadata": { "resourceVersion": RESOURCE_VERSION }, "items": items })
}

fn answer_all(connection: &TcpStream, nad: &Value) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    let mut writer = connection;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if path.contains("watch=") {
            // No event ever occurs: the answer starts and never ends.
            write!(
                writer,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )?;
            std::io::copy(&mut reader, &mut std::io::sink())?;
            return Ok(());
        }
        let (status, text) = match method {
            "GET" => get(path, nad),
            // Statuses and events are accepted unchanged.
            _ => ("200 OK", String::from_utf8_lossy(&body).into_owned()),
        };
        write!(
            writer,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )?;
    }
}

fn get(path: &str, nad: &Value) -> (&'static str, String) {
    let path = path.split('?').next().unwrap_or_default();
    let found = if path == "/api/v1/pods" {
        Some(list("PodList", &(0..PODS).map(pod).collect::<Vec<_>>()))
    } else if path.ends_with("/network-attachment-definitions") {
        Some(list("NetworkAttachmentDefinitionList", std::slice::from_ref(nad)))
    } else {
        let name = path.rsplit('/').next().unwrap_or_default();
        (0..PODS).find(|number| pod_name(*number) == name).map(pod)
    };
    match found {
        Some(object) => ("200 OK", object.to_string()),
        None => (
            "404 Not Found",
            json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                "message": "not found" })
            .to_string(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_sums_up_writes_of_pod_statuses() {
        let metrics = "\
            # TYPE apiserver_request_duration_seconds histogram\n\
            apiserver_request_duration_seconds_sum{resource=\"pods\",subresource=\"status\",verb=\"PUT\"} 1.5\n\
            apiserver_request_duration_seconds_sum{dry_run=\"\",resource=\"pods\",subresource=\"status\",verb=\"PUT\"} 0.5\n\
            apiserver_request_duration_seconds_sum{resource=\"nodes\",subresource=\"status\",verb=\"PUT\"} 4\n\
            apiserver_request_duration_seconds_count{resource=\"pods\",subresource=\"status\",verb=\"PUT\"} 7\n";
        let is = |name, expected: f64| (total(metrics, name) - expected).abs() < 1e-9;
        assert!(is("apiserver_request_duration_seconds_sum", 2.0));
        assert!(is("apiserver_request_duration_seconds_count", 7.0));
    }
}
