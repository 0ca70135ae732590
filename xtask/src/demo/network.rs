//! `cargo xtask demo --network`: from nodes without any network to pods that reach each other across nodes.

use std::process::Command;

use anyhow::{Context, ensure};
use cluster::{Cluster, Kubectl, Options, Progress, Steps};
use serde_json::Value;

use super::{commands, prepare};
use crate::install::{self, apply, example, wait_for};
use crate::{default_network, image};

/// Two pods, each with a Service and a port of its node.
const PODS: &str = "cluster-network-pods.yaml";
/// Port of the pods and their Services.
const PORT: &str = "8080";
/// Number of nodes. Each one has a target.
const NODES: usize = 2;
/// Prefix of endpoints on nodes, before the name of the node; and an endpoint that needs DNS.
const TARGET: &str = "network-check-target-";
const NAMED: &str = "network-check-target-service-cluster";

pub(super) fn show(_: &Cluster, steps: &mut Steps) -> anyhow::Result<()> {
    let options = Options {
        pod_network: false,
        kube_proxy: false,
        ..Options::from_env()?
    };
    let cluster = Cluster::new(options)?;
    let built = prepare(&cluster, steps)?;
    cluster.up(steps)?;
    default_network::refuse_second(&cluster)?;
    let kubectl = cluster.kubectl();
    let before = nodes(&kubectl)?;

    install::cluster_network(&cluster, &built, steps)?;

    steps.step(&format!(
        "creating a pod on each node, with a Service: examples/{PODS}"
    ));
    apply(&kubectl, &[example(PODS)])?;
    let mut visits = Vec::new();
    for (from, to) in [("alpha", "beta"), ("beta", "alpha")] {
        visits.push(visit(&kubectl, steps, from, to)?);
    }
    steps.step("waiting until all endpoints are reachable: weft network check");
    reached(&built, &kubectl, steps, &[], NODES)?;
    steps.step("waiting until all nodes reach all endpoints: weft network check --matrix");
    let check = reached(&built, &kubectl, steps, &["--matrix"], NODES * NODES)?;
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

fn nodes(kubectl: &Kubectl) -> anyhow::Result<String> {
    Ok(kubectl.run(["get", "nodes"])?)
}

/// A pod sends requests to a pod on the other node: to its address, its Service and its port of the node.
#[derive(Debug)]
struct Visit {
    from: String,
    to: String,
    address: String,
    service: String,
    /// Address and port.
    node: [String; 2],
}

fn visit(kubectl: &Kubectl, steps: &mut Steps, from: &str, to: &str) -> anyhow::Result<Visit> {
    steps.step(&format!(
        "pod {from} asks pod {to}, by its address, its Service and its port of the node"
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
        node: [
            text(&asked["status"]["hostIP"]),
            asked["spec"]["containers"][0]["ports"][0]["hostPort"].to_string(),
        ],
    };
    let [node, node_port] = &visit.node;
    for (address, port) in [
        (&visit.address, PORT),
        (&visit.service, PORT),
        (node, node_port.as_str()),
    ] {
        cluster::wait::until(&format!("an answer of {address}"), super::TIMEOUT, || {
            let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}");
            let answer = kubectl.run(["exec", from, "--", "sh", "-c", &ask]);
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.lines().next_back() == Some(to) {
                Ok(())
            } else {
                Err(answer)
            }
        })?;
    }
    Ok(visit)
}

/// Returns the output of `weft network check` once all endpoints without DNS are reachable, and at least this many
/// connections to targets succeed. This cluster has no DNS server.
fn reached(
    built: &image::Built,
    kubectl: &Kubectl,
    steps: &mut Steps,
    more: &[&str],
    least: usize,
) -> anyhow::Result<String> {
    let check = || {
        let mut weft = Command::new(&built.weft);
        weft.args(["network", "check"])
            .args(more)
            .env("KUBECONFIG", kubectl.kubeconfig());
        // The exit code also depends on the endpoint with a name.
        let output = weft.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        is_reached(&text, least)
            .map(|()| text)
            .inspect_err(|missing| steps.tick(missing))
    };
    cluster::wait::until("all endpoints to be reachable", super::TIMEOUT, check)
        .context("some endpoints are unreachable")
}

/// Returns an error unless there are results, and all are good except that of the name.
fn is_reached(check: &str, least: usize) -> Result<(), String> {
    let (mut reached, mut missing) = (0, Vec::new());
    for line in check.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("ok"), Some(endpoint)) => reached += usize::from(endpoint.starts_with(TARGET)),
            (Some("FAIL" | "?"), Some(endpoint)) if endpoint != NAMED => missing.push(endpoint),
            _ => {}
        }
    }
    if reached >= least && missing.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{reached} of {least} connections to targets work; unreachable: {}",
            missing.join(", ")
        ))
    }
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
        node: [node, port],
    } in visits
    {
        text.push_str(&format!(
            "{from} was answered by {to} on the other node: at {address}, by its Service at {service}, and by \
             port {port} of the node at {node}\n"
        ));
    }
    text.push_str(&format!(
        "\nweft network check --matrix, in a cluster without DNS:\n\n{}",
        indented(check)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_reached_if_only_the_name_is_unreachable() {
        let node = |name: &str, more: &str| {
            format!(
                "{name}: 3 of 4 endpoints reachable\n  ok    network-check-target-node01  10.244.1.2:8080  456µs\n  \
                 ok    network-check-target-node02  10.244.2.2:8080  456µs\n{more}\n"
            )
        };
        let text =
            |more: &str| node("node01", more) + &node("node02", more) + "\n2 of 8 connections failed.\n";
        let named = "  FAIL  network-check-target-service-cluster  network-check-target:80  failure";
        assert_eq!(is_reached(&text(named), 4), Ok(()));
        let alone = is_reached(
            &(node("node01", named) + "node02: no results\n  pod a is Pending\n"),
            4,
        );
        assert_eq!(
            alone.unwrap_err(),
            "2 of 4 connections to targets work; unreachable: "
        );
        let other = is_reached(
            &text("  FAIL  kubernetes-default-service-cluster-0  10.96.0.1:443  failed"),
            4,
        );
        assert_eq!(
            other.unwrap_err(),
            "4 of 4 connections to targets work; unreachable: kubernetes-default-service-cluster-0, \
             kubernetes-default-service-cluster-0"
        );
        assert!(is_reached("there are no checks\n", 1).is_err());
    }
}
