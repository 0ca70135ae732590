//! `cargo xtask demo --network`: from nodes without any network to pods that reach each other across nodes.

use std::process::Command;

use anyhow::{Context, ensure};
use cluster::{Cluster, Kubectl, Options, Progress, Steps, run};
use serde_json::Value;

use super::{commands, prepare};
use crate::image;
use crate::install::{apply, example, wait_for};

/// Two pods of [`PODS`] with a Service before each.
const PODS: &str = "cluster-network-pods.yaml";

pub(super) fn show(_: &Cluster, steps: &mut Steps) -> anyhow::Result<()> {
    let options = Options {
        pod_network: false,
        ..Options::from_env()?
    };
    let cluster = Cluster::new(options)?;
    let built = prepare(&cluster, steps)?;
    cluster.up(steps)?;
    let kubectl = cluster.kubectl();
    let before = nodes(&kubectl)?;

    steps.step(&format!("loading {} into the nodes", built.reference));
    cluster.load(&built.archive)?;
    steps.step("installing the cluster network operator: weft network manifests");
    install(&kubectl, &built)?;
    steps.step("creating the network: examples/cluster-network.yaml");
    cluster::wait::until("the kinds of the operator to be known", super::PATIENCE, || {
        apply(&kubectl, &[example("cluster-network.yaml")]).map_err(|error| format!("{error:#}"))
    })?;
    steps.step("waiting until the nodes are Ready, and the operator Available");
    wait_for(&kubectl, steps, &["nodes"], "nodes to be Ready", all_ready)?;
    let operator = ["clusteroperator", "network"];
    wait_for(
        &kubectl,
        steps,
        &operator,
        "the network to be Available",
        crate::install::available,
    )?;

    steps.step(&format!(
        "creating a pod on each node, with a Service: examples/{PODS}"
    ));
    apply(&kubectl, &[example(PODS)])?;
    let mut visits = Vec::new();
    for (from, to) in [("alpha", "beta"), ("beta", "alpha")] {
        visits.push(visit(&kubectl, steps, from, to)?);
    }
    steps.step("waiting until all nodes reach all endpoints: weft network check");
    let check = reached(&built, &kubectl, steps)?;
    steps.step("done");
    print!("{}", story(&before, &nodes(&kubectl)?, &visits, &check));
    let next = [
        "kubectl get network.operator cluster --output yaml",
        "kubectl get podnetworkconnectivitychecks --all-namespaces",
        "kubectl get pods --all-namespaces --output wide",
        "cargo xtask cluster shell node01 -- ip route",
        "cargo xtask demo --down",
    ];
    print!("{}", commands(&cluster, &next));
    Ok(())
}

fn install(kubectl: &Kubectl, built: &image::Built) -> anyhow::Result<()> {
    let mut weft = Command::new(&built.weft);
    weft.args(["network", "manifests", "--image", &built.reference]);
    let manifests = run::output(&mut weft)?;
    let mut command = kubectl.command(["apply", "--server-side", "--force-conflicts", "--filename", "-"]);
    run::output_with_input(&mut command, manifests.as_bytes())?;
    Ok(())
}

fn nodes(kubectl: &Kubectl) -> anyhow::Result<String> {
    Ok(kubectl.run(["get", "nodes"])?)
}

/// Whether all objects of a list are Ready.
fn all_ready(list: &Value) -> Result<(), String> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let waiting = items.iter().filter(|node| !cluster::is_ready(node));
    let waiting: Vec<&str> = waiting
        .filter_map(|node| node["metadata"]["name"].as_str())
        .collect();
    if waiting.is_empty() && !items.is_empty() {
        Ok(())
    } else {
        Err(format!("not Ready: {}", waiting.join(", ")))
    }
}

/// One pod asks another on the other node, by its address and by its Service.
#[derive(Debug)]
struct Visit {
    from: String,
    to: String,
    address: String,
    service: String,
}

fn visit(kubectl: &Kubectl, steps: &mut Steps, from: &str, to: &str) -> anyhow::Result<Visit> {
    steps.step(&format!(
        "pod {from} asks pod {to}, by its address and by its Service"
    ));
    let pod = |steps: &mut Steps, name: &str| {
        wait_for(
            kubectl,
            steps,
            &["pod", name],
            &format!("pod {name} to be Ready"),
            |pod| {
                if cluster::is_ready(pod) {
                    Ok(pod.clone())
                } else {
                    Err(format!(
                        "it is {}",
                        pod["status"]["phase"].as_str().unwrap_or_default()
                    ))
                }
            },
        )
    };
    let (asking, asked) = (pod(steps, from)?, pod(steps, to)?);
    ensure!(
        asking["spec"]["nodeName"] != asked["spec"]["nodeName"],
        "both pods are on one node"
    );
    let service = kubectl.json(["get", "service", to])?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let visit = Visit {
        from: from.to_owned(),
        to: to.to_owned(),
        address: text(&asked["status"]["podIP"]),
        service: text(&service["spec"]["clusterIP"]),
    };
    for address in [&visit.address, &visit.service] {
        cluster::wait::until(&format!("an answer of {address}"), super::PATIENCE, || {
            let url = format!("http://{address}:8080/");
            let answer = kubectl.run(["exec", from, "--", "wget", "-q", "-T", "5", "-O", "-", &url]);
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.trim() == to { Ok(()) } else { Err(answer) }
        })?;
    }
    Ok(visit)
}

/// What `weft network check` prints once everything is reachable.
fn reached(built: &image::Built, kubectl: &Kubectl, steps: &mut Steps) -> anyhow::Result<String> {
    let check = || {
        let mut weft = Command::new(&built.weft);
        weft.args(["network", "check"])
            .env("KUBECONFIG", kubectl.kubeconfig());
        run::output(&mut weft).map_err(|error| {
            let text = error.to_string();
            steps.tick(text.lines().last().unwrap_or_default());
            text
        })
    };
    cluster::wait::until("all endpoints to be reachable", super::PATIENCE, check)
        .context("some endpoints are out of reach")
}

fn story(before: &str, after: &str, visits: &[Visit], check: &str) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("  {line}\n")).collect::<String>();
    let mut text = format!(
        "\nThe nodes before, without any network:\n\n{}\nand now:\n\n{}\n",
        indented(before),
        indented(after)
    );
    for Visit {
        from,
        to,
        address,
        service,
    } in visits
    {
        text.push_str(&format!(
            "{from} was answered by {to} on the other node, at {address} and by its Service at {service}\n"
        ));
    }
    text.push_str(&format!("\nweft network check:\n\n{}", indented(check)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_are_ready_when_there_are_some_and_each_is() {
        let node = |name: &str, status: &str| json!({ "metadata": { "name": name }, "status": { "conditions": [{ "type": "Ready", "status": status }] } });
        let list = |nodes: &[Value]| json!({ "items": nodes });
        assert_eq!(all_ready(&list(&[node("a", "True"), node("b", "True")])), Ok(()));
        let waiting = all_ready(&list(&[node("a", "True"), node("b", "False")]));
        assert_eq!(waiting.unwrap_err(), "not Ready: b");
        assert!(all_ready(&list(&[])).is_err());
    }
}
