//! The API server of a manager, and its objects.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use cluster::{ApiServer, wait};
use linux::netns::unshare_network;
use linux::route::Socket;
use serde_json::{Value, json};

use crate::http::{Connection, Server};

/// Number of connections for writes of objects.
const WRITERS: usize = 4;
/// Timeout until a new kind is served.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Moves this process into new network and mount namespaces. Must be called while the process has only one thread.
/// Child processes inherit the namespaces.
pub fn isolate() -> anyhow::Result<()> {
    unshare_network()?;
    linux::process::unshare_mounts()?;
    let mut socket = Socket::open()?;
    let loopback = socket.find_link("lo")?.context("no loopback interface")?;
    Ok(socket.set_up(&loopback)?)
}

/// Returns the environment that results depend on.
pub fn facts(ours: &Path) -> anyhow::Result<String> {
    let kernel = rustix::system::uname();
    let cores = std::thread::available_parallelism().context("cannot count processors")?;
    let size = fs::metadata(ours)
        .with_context(|| format!("cannot read {}", ours.display()))?
        .len();
    Ok(format!(
        "Linux {}, {cores} cores, clients and server on the same; weft {} of {} KiB",
        kernel.release().to_string_lossy(),
        env!("CARGO_PKG_VERSION"),
        size / 1024,
    ))
}

/// Returns a direct connection to the API server, without a process for each request.
pub fn writer(api: &ApiServer) -> anyhow::Result<Server> {
    let port = api.url().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let text = fs::read_to_string(api.kubeconfig()).context("cannot read the kubeconfig")?;
    let config: Value = serde_json::from_str(&text).context("the kubeconfig is not JSON")?;
    let token = config
        .pointer("/users/0/user/token")
        .and_then(Value::as_str)
        .map(str::to_owned);
    Server::new(port.context("the API server has no port")?, token)
}

/// Waits until new kinds are served. A kind is given as the path of its collection.
pub fn wait_until_served(server: &Server, kinds: &[&str]) -> anyhow::Result<()> {
    for kind in kinds {
        wait::until(kind, TIMEOUT, || {
            let path = format!("{kind}?limit=1");
            let asked = server
                .connect()
                .and_then(|mut connection| connection.ask("GET", &path, "application/json", b""));
            match asked {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(String::from_utf8_lossy(&answer.body).into_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        })?;
    }
    Ok(())
}

/// Runs a function for each number, on several connections.
pub fn each(
    server: &Server,
    numbers: Range<usize>,
    work: impl Fn(&mut Connection, usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(numbers.start);
    let writer = || -> anyhow::Result<()> {
        let mut connection = server.connect()?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return Ok(());
            }
            work(&mut connection, number)?;
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(writer)).collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(written) => written,
            Err(_) => bail!("a writer panicked"),
        })
    })
}

/// Sends a request for each number, on several connections.
pub fn write(
    server: &Server,
    numbers: Range<usize>,
    request: impl Fn(usize) -> (&'static str, String, Value) + Sync,
) -> anyhow::Result<()> {
    each(server, numbers, |connection, number| {
        let (method, path, body) = request(number);
        connection.write(method, &path, &body)?;
        Ok(())
    })
}

/// A kind of KubeVirt with an open schema.
pub fn definition(kind: &str) -> Value {
    let singular = kind.to_lowercase();
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{singular}s.kubevirt.io") },
        "spec": {
            "group": "kubevirt.io",
            "names": { "kind": kind, "listKind": format!("{kind}List"), "singular": singular, "plural": format!("{singular}s") },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    })
}

/// A namespace.
pub fn namespace(name: &str, labels: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

/// Returns the review of a pod or a virtual machine, as sent by the API server: of a creation, or of an update if there
/// is an old object.
pub fn review(uid: &str, (namespace, name): (&str, &str), object: &Value, old: &Value) -> Value {
    let kind = object["kind"].as_str().unwrap_or_default();
    let (group, resource) = match kind {
        "Pod" => ("", "pods"),
        _ => ("kubevirt.io", "virtualmachines"),
    };
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": { "group": group, "version": "v1", "kind": kind },
            "resource": { "group": group, "version": "v1", "resource": resource },
            "requestKind": { "group": group, "version": "v1", "kind": kind },
            "requestResource": { "group": group, "version": "v1", "resource": resource },
            "name": name,
            "namespace": namespace,
            "operation": operation,
            "userInfo": { "username": "admin", "groups": ["system:masters", "system:authenticated"] },
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
}
