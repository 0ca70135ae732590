//! `weft cluster-network-operator probe-mtu`: how large packets of this node may be (§4.3).

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_kit::client;
use linux::{address::Family, route::Socket};
use serde_json::json;

use crate::names;

/// How often to try to write the result, and how long to wait in between.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(10);

/// Where the result is written.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the ConfigMap
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    namespace: String,
    /// Name of the ConfigMap
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    name: String,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Finds the MTU out, writes it down, and ends.
///
/// # Errors
/// When a flag is missing, there is no default route, or the ConfigMap can't be written for more than a minute and a
/// half.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        namespace,
        name,
        kubeconfig,
    } = args;
    anyhow::ensure!(
        !namespace.is_empty() && !name.is_empty(),
        "--namespace and --name are required"
    );
    let mtu = node_mtu()?.context("unable to determine MTU")?;
    println!("Detected node MTU: {mtu}");
    let client = client::client_from(names::COMPONENT, kubeconfig.as_deref()).await?;
    write(client, &namespace, &name, mtu).await
}

/// The smallest MTU of the links that default routes lead out of, over all next hops; `None` without any.
///
/// # Errors
/// The kernel's.
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

async fn write(client: Client, namespace: &str, name: &str, mtu: u32) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": namespace },
        "data": { names::MTU: mtu.to_string() },
    });
    let parameters = PatchParams::apply(names::MTU_PROBER).force();
    for attempt in 1.. {
        match maps.patch(name, &parameters, &Patch::Apply(&map)).await {
            Ok(_) => break,
            Err(error) if attempt == TRIES => {
                anyhow::bail!(
                    "cannot write ConfigMap {namespace}/{name}: {}",
                    client::message(&error)
                );
            }
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(
                    error,
                    "cannot write ConfigMap {namespace}/{name}, trying again in {PAUSE:?}"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    Ok(())
}
