//! `weft cluster-network-operator probe-mtu`: finds the MTU of the nodes (§4.3).
//!
//! ```text
//! node ── MTU ──> ConfigMap mtu-prober, a key for each node ── all of them, or a minute ──> ConfigMap mtu: the least
//! ```

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::wait::await_condition,
};
use kube_kit::client;
use linux::{address::Family, route::Socket};
use serde_json::{Value, json};

use crate::names;

/// Attempts to write the result, and the delay between them.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(10);
/// Deadline for the results of the other nodes: an unreachable node reports none.
const GATHER: Duration = Duration::from_mins(1);

/// Where the result is written.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the ConfigMap
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    namespace: String,
    /// Name of the ConfigMap
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// Number of probed nodes. The smallest MTU is used
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    nodes: usize,
    /// Name of this node, where several are probed
    #[arg(
        long,
        value_name = "NAME",
        env = "NODE_NAME",
        default_value = "",
        hide_default_value = true
    )]
    node_name: String,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Finds the MTU, records it in the ConfigMap, and ends.
///
/// # Errors
/// If a flag is missing, no default route exists, or the ConfigMap cannot be written for more than a minute and a half.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        namespace,
        name,
        nodes,
        node_name,
        kubeconfig,
    } = args;
    anyhow::ensure!(
        !namespace.is_empty() && !name.is_empty(),
        "--namespace and --name are required"
    );
    let mtu = node_mtu()?.context("unable to determine MTU")?;
    println!("Detected node MTU: {mtu}");
    let client = client::client_from(names::COMPONENT, kubeconfig.as_deref()).await?;
    report(client, &namespace, &name, &node_name, mtu, nodes).await
}

/// Records the MTU of this node, or the smallest MTU of several nodes, in the ConfigMap.
///
/// # Errors
/// If a ConfigMap cannot be written for more than a minute and a half.
pub async fn report(
    client: Client,
    namespace: &str,
    name: &str,
    node: &str,
    mtu: u32,
    nodes: usize,
) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let results = if nodes > 1 && !node.is_empty() {
        gather(&maps, node, mtu, nodes).await?
    } else {
        Results::from([(node.to_owned(), mtu)])
    };
    write(&maps, name, &result(namespace, name, &results)).await
}

/// The MTU of each node that has reported.
type Results = BTreeMap<String, u32>;

/// Reports the MTU of this node, and waits for the other nodes.
async fn gather(maps: &Api<ConfigMap>, node: &str, mtu: u32, nodes: usize) -> anyhow::Result<Results> {
    let own = json!({ "data": { node: mtu.to_string() } });
    let doing = format!("write ConfigMap {}", names::MTU_PROBER_RESULTS);
    let reported = retried(&doing, async || {
        let parameters = PatchParams::default();
        maps.patch(names::MTU_PROBER_RESULTS, &parameters, &Patch::Merge(&own))
            .await
    });
    let reported = results(Some(&reported.await?));
    let all = |map: Option<&ConfigMap>| results(map).len() >= nodes;
    let complete = await_condition(maps.clone(), names::MTU_PROBER_RESULTS, all);
    match tokio::time::timeout(GATHER, complete).await {
        Ok(Ok(map)) => Ok(results(map.as_ref())),
        // The smallest MTU of some nodes is better than none.
        Ok(Err(_)) | Err(_) => match maps.get(names::MTU_PROBER_RESULTS).await {
            Ok(map) => Ok(results(Some(&map))),
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot read ConfigMap {}", names::MTU_PROBER_RESULTS);
                Ok(reported)
            }
        },
    }
}

/// The valid results in a ConfigMap.
fn results(map: Option<&ConfigMap>) -> Results {
    let data = map.and_then(|map| map.data.as_ref()).into_iter().flatten();
    data.filter_map(|(node, mtu)| Some((node.clone(), mtu.parse().ok().filter(|mtu| *mtu > 0)?)))
        .collect()
}

/// The ConfigMap with the smallest MTU. The results of several nodes include the MTU of each.
fn result(namespace: &str, name: &str, results: &Results) -> Value {
    let least = results.values().min().copied().unwrap_or_default();
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": namespace },
        "data": { names::MTU: least.to_string() },
    });
    if results.len() > 1 {
        let lines = results.iter().map(|(node, mtu)| format!("{node}: {mtu}\n"));
        map["data"][names::MTU_OF_NODES] = json!(lines.collect::<String>());
    }
    map
}

/// The nodes with less than the largest MTU, from the ConfigMap of the prober.
pub fn outliers(map: &Value) -> Vec<String> {
    let lines = map["data"][names::MTU_OF_NODES]
        .as_str()
        .unwrap_or_default()
        .lines();
    let nodes: Vec<(&str, u32)> = lines
        .filter_map(|line| {
            let (node, mtu) = line.split_once(": ")?;
            Some((node, mtu.parse().ok()?))
        })
        .collect();
    let most = nodes.iter().map(|(_, mtu)| *mtu).max().unwrap_or_default();
    let less = nodes.iter().filter(|(_, mtu)| *mtu < most);
    less.map(|(node, mtu)| format!("{node}: {mtu}")).collect()
}

/// The smallest MTU of the links of all default routes, over all next hops. `None` without a default route.
///
/// # Errors
/// If the kernel refuses a request.
pub fn node_mtu() -> Result<Option<u32>, linux::Error> {
    let mut socket = Socket::open()?;
    let mut routes = socket.routes(Family::V4)?;
    routes.extend(socket.routes(Family::V6)?);
    let mut least = None;
    for link in routes
        .iter()
        .filter(|route| route.dst.prefix_len() == 0)
        .filter_map(|route| route.link)
    {
        let mtu = socket.link_by_index(link)?.mtu;
        least = Some(least.map_or(mtu, |least: u32| least.min(mtu)));
    }
    Ok(least)
}

async fn write(maps: &Api<ConfigMap>, name: &str, map: &Value) -> anyhow::Result<()> {
    let parameters = PatchParams::apply(names::MTU_PROBER).force();
    let doing = format!("write ConfigMap {name}");
    let written = retried(&doing, async || {
        maps.patch(name, &parameters, &Patch::Apply(map)).await
    });
    written.await.map(drop)
}

/// Retries a failing request: the network may not work yet.
async fn retried<T>(
    doing: &str,
    mut request: impl AsyncFnMut() -> Result<T, kube::Error>,
) -> anyhow::Result<T> {
    let mut attempt = 1;
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) if attempt == TRIES => anyhow::bail!("cannot {doing}: {}", client::message(&error)),
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot {doing}, trying again in {PAUSE:?}");
                tokio::time::sleep(PAUSE).await;
                attempt += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::{Method, Request, Response};
    use kube::client::Body;
    use tower::{BoxError, service_fn};

    use super::*;

    // cluster-network#98
    #[tokio::test(start_paused = true)]
    async fn node_that_reports_nothing_is_not_waited_for() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&written);
        let service = service_fn(move |request: Request<Body>| {
            let log = Arc::clone(&log);
            async move {
                let (head, body) = request.into_parts();
                let is_result = head.uri.path().ends_with("/configmaps/mtu");
                if head.method == Method::GET && head.uri.path().ends_with("/configmaps") {
                    // A list or a watch, which never shows another node.
                    std::future::pending::<()>().await;
                }
                let map = if is_result {
                    let bytes = body.collect_bytes().await?;
                    let map: Value = serde_json::from_slice(&bytes)?;
                    log.lock().expect("a log").push(map["data"].clone());
                    map
                } else {
                    json!({
                        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "mtu-prober" },
                        "data": { "node1": "1500" },
                    })
                };
                let body = Body::from(map.to_string().into_bytes());
                Ok::<_, BoxError>(Response::new(body))
            }
        });
        let began = tokio::time::Instant::now();
        let client = Client::new(service, "ns");
        report(client, "ns", "mtu", "node1", 1500, 2)
            .await
            .expect("a result");
        assert_eq!(began.elapsed().as_secs(), 60);
        assert_eq!(*written.lock().expect("a log"), [json!({ "mtu": "1500" })]);
    }

    // cluster-network#98
    #[test]
    fn least_mtu_of_nodes_counts_and_outliers_are_named() {
        let map = |data: Value| -> ConfigMap {
            serde_json::from_value(json!({ "data": data })).expect("a ConfigMap")
        };
        let found = results(Some(&map(
            json!({ "a": "1500", "b": "1400", "c": "1500", "d": "0", "e": "x" }),
        )));
        assert_eq!(found.len(), 3, "{found:?}");
        let written = result("ns", "mtu", &found);
        assert_eq!(
            written["data"],
            json!({ "mtu": "1400", "nodes": "a: 1500\nb: 1400\nc: 1500\n" })
        );
        assert_eq!(outliers(&written), ["b: 1400"]);

        let one = result("ns", "mtu", &Results::from([(String::new(), 9000)]));
        assert_eq!(one["data"], json!({ "mtu": "9000" }));
        assert_eq!(outliers(&one), Vec::<String>::new());
        assert!(results(None).is_empty());
    }
}
