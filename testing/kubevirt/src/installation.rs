//! Starts KubeVirt on a cluster, step by step. Every step skips work that is already done.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::{Cluster, Kubectl, Progress, run, wait};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::objects::{
    self, API_ACCOUNT, API_PORT, API_SERVICE, CONTROLLER_ACCOUNT, HANDLER_ACCOUNT, KUBEVIRT,
};
use crate::programs::Programs;
use crate::{NAMESPACE, StandIns, launcher};

/// Generous, because machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(5);
/// The ConfigMap with the digest of the applied objects.
const APPLIED: &str = "applied-objects";
/// Port of virt-controller's metrics.
const CONTROLLER_PORT: u16 = 8182;
/// The Lease of virt-controller's leader election.
const LEASE: [&str; 4] = ["lease", "--namespace", NAMESPACE, "virt-controller"];

/// Starts KubeVirt on a running cluster. Can be repeated, and is fast if nothing is missing. Programs of another build
/// are replaced.
pub fn up(
    cluster: &Cluster,
    programs: &Programs,
    stand_ins: &StandIns,
    progress: &mut dyn Progress,
) -> Result<()> {
    let kubectl = cluster.kubectl();
    has_front_proxy(cluster, &kubectl)?;
    progress.step("loading the image of launcher pods into the nodes");
    let image = launcher::load(cluster, &stand_ins.launcher, programs.dir())?;
    apply(cluster, programs, &kubectl, progress)?;

    progress.step("starting virt-api, virt-controller and the stand-in for virt-handler");
    start_api(cluster, programs)?;
    let led = leading_since(&kubectl)?;
    start_controller(cluster, programs, &image)?;
    let kubeconfig = account(cluster, HANDLER_ACCOUNT)?;
    cluster.start_beside(&stand_ins.handler, &[format!("--kubeconfig={kubeconfig}")])?;

    progress.step("waiting for KubeVirt");
    wait_for_services(&kubectl, progress)?;
    wait::until("virt-controller to be the leader", TIMEOUT, || {
        progress.tick("waiting for virt-controller");
        match leading_since(&kubectl) {
            Ok(now) if now.is_some() && now != led => Ok(()),
            Ok(_) => Err("the Lease is not renewed".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })?;
    kubectl.wait_for(&["nodes"], "nodes to take guests", TIMEOUT, takes_guests)?;
    Ok(())
}

/// virt-api exits at once without a front proxy.
fn has_front_proxy(cluster: &Cluster, kubectl: &Kubectl) -> Result<()> {
    let map = [
        "configmap",
        "--namespace",
        "kube-system",
        "extension-apiserver-authentication",
    ];
    // The API server creates it shortly after it is ready.
    let seen = kubectl.wait_for(
        &map,
        "the certificate authority of the front proxy",
        TIMEOUT,
        |map| Ok(map["data"]["requestheader-client-ca-file"].is_string()),
    )?;
    if seen {
        Ok(())
    } else {
        Err(Error::NoFrontProxy(cluster.name().to_owned()))
    }
}

/// Creates or updates the objects.
fn apply(
    cluster: &Cluster,
    programs: &Programs,
    kubectl: &Kubectl,
    progress: &mut dyn Progress,
) -> Result<()> {
    let authority = cluster.authority();
    let pem = fs::read_to_string(&authority).map_err(|source| Error::File {
        what: "read",
        path: authority,
        source,
    })?;
    let items = objects::complete(
        programs.objects()?,
        &pem,
        &STANDARD.encode(&pem),
        cluster.control_address(),
    );
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    let last = objects::kubevirt().to_string();
    let digest = Sha256::new().chain_update(&list).chain_update(&last).finalize();
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let applied = kubectl.get(["configmap", "--namespace", NAMESPACE, APPLIED])?;
    if applied.is_some_and(|map| map["data"]["digest"] == digest.as_str()) {
        return Ok(());
    }
    progress.step("creating the objects of KubeVirt");
    apply_to_server(kubectl, &list)?;
    wait::until("the kind KubeVirt to be served", TIMEOUT, || {
        progress.tick("waiting for the kind KubeVirt");
        apply_to_server(kubectl, &last).map_err(|error| error.to_string())
    })?;
    // KubeVirt ignores its configuration without a phase.
    let phase = json!({ "status": { "phase": "Deployed" } }).to_string();
    kubectl.run([
        "patch",
        "kubevirt",
        "--namespace",
        NAMESPACE,
        KUBEVIRT,
        "--subresource=status",
        "--type=merge",
        "--patch",
        &phase,
    ])?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": NAMESPACE, "name": APPLIED },
        "data": { "digest": digest },
    });
    apply_to_server(kubectl, &map.to_string())?;
    Ok(())
}

/// Definitions exceed the size of the annotation of client-side apply.
fn apply_to_server(kubectl: &Kubectl, objects: &str) -> cluster::Result<String> {
    let mut command = kubectl.command(["apply", "--server-side", "--force-conflicts", "--filename", "-"]);
    run::output_with_input(&mut command, objects.as_bytes())
}

fn start_api(cluster: &Cluster, programs: &Programs) -> Result<()> {
    let names = [
        "",
        &format!(".{NAMESPACE}"),
        &format!(".{NAMESPACE}.svc"),
        &format!(".{NAMESPACE}.svc.cluster.local"),
    ]
    .map(|domain| format!("DNS:{API_SERVICE}{domain}"));
    let subject = format!("/CN={API_SERVICE}.{NAMESPACE}.pod.cluster.local");
    let server = cluster.certificate(API_SERVICE, &subject, &names)?;
    let client = cluster.certificate("virt-handler", "/CN=kubevirt.io:system:client:virt-handler", &[])?;
    let arguments = [
        format!("--kubeconfig={}", account(cluster, API_ACCOUNT)?),
        "--listen=0.0.0.0".to_owned(),
        format!("--port={API_PORT}"),
        format!("--tls-cert-file={}", server.certificate.display()),
        format!("--tls-key-file={}", server.key.display()),
        format!("--handler-cert-file={}", client.certificate.display()),
        format!("--handler-key-file={}", client.key.display()),
        "--console-server-port=8186".to_owned(),
        "-v=2".to_owned(),
    ];
    cluster.start_beside(&programs.api(), &arguments)?;
    Ok(cluster.wait_beside(API_SERVICE, API_PORT, TIMEOUT)?)
}

fn start_controller(cluster: &Cluster, programs: &Programs, image: &str) -> Result<()> {
    let metrics = cluster.certificate("virt-controller", "/CN=virt-controller", &[])?;
    let arguments = [
        format!("--kubeconfig={}", account(cluster, CONTROLLER_ACCOUNT)?),
        format!("--launcher-image={image}"),
        "--listen=127.0.0.1".to_owned(),
        format!("--port={CONTROLLER_PORT}"),
        format!("--prom-cert-file={}", metrics.certificate.display()),
        format!("--prom-key-file={}", metrics.key.display()),
        "-v=2".to_owned(),
    ];
    cluster.start_beside(&programs.controller(), &arguments)?;
    Ok(())
}

/// Returns the last renewal of the Lease.
fn leading_since(kubectl: &Kubectl) -> Result<Option<String>> {
    let lease = kubectl.get(LEASE)?;
    Ok(lease.and_then(|lease| lease["spec"]["renewTime"].as_str().map(str::to_owned)))
}

fn account(cluster: &Cluster, name: &str) -> Result<String> {
    Ok(cluster.service_account(NAMESPACE, name)?.display().to_string())
}

/// Waits until the API server reaches virt-api.
fn wait_for_services(kubectl: &Kubectl, progress: &mut dyn Progress) -> Result<()> {
    let service = ["apiservice", "v1.subresources.kubevirt.io"];
    kubectl.wait_for(&service, "the API server to reach virt-api", TIMEOUT, |service| {
        progress.tick("waiting for virt-api");
        let mut conditions = service["status"]["conditions"].as_array().into_iter().flatten();
        match conditions.find(|condition| condition["type"] == "Available") {
            Some(condition) if condition["status"] == "True" => Ok(()),
            Some(condition) => Err(condition["message"].to_string()),
            None => Err("the APIService has no condition yet".to_owned()),
        }
    })?;
    Ok(())
}

/// Returns an error unless all nodes accept guests.
fn takes_guests(nodes: &Value) -> std::result::Result<(), String> {
    let takes = |node: &&Value| node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true";
    let items = nodes["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lacking: Vec<String> = items
        .iter()
        .filter(|node| !takes(node))
        .map(|node| node["metadata"]["name"].to_string())
        .collect();
    if lacking.is_empty() && !items.is_empty() {
        Ok(())
    } else {
        Err(format!("not schedulable: {}", lacking.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_accepted_if_every_node_is_schedulable() {
        let node = |value: &str| json!({ "metadata": { "name": "n", "labels": { "kubevirt.io/schedulable": value } } });
        assert_eq!(
            takes_guests(&json!({ "items": [node("true"), node("true")] })),
            Ok(())
        );
        assert!(takes_guests(&json!({ "items": [node("true"), node("false")] })).is_err());
        assert!(takes_guests(&json!({ "items": [] })).is_err());
    }
}
