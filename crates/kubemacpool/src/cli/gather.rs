//! Reads all objects of a cluster that may hold addresses, and the configuration of the managed namespaces.

use std::fmt::Debug;

use cni::mac::Mac;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::ListParams;
use kube::{Api, Client};
use kube_kit::connection;
use kube_kit::pages::Pages;
use serde::de::DeserializeOwned;

use super::Error;
use super::inventory::{Installed, Inventory};
use crate::kubevirt::{Pod, VirtualMachine, VirtualMachineInstance};
use crate::names::{self, env};
use crate::namespaces::{Managed, Rules};
use crate::range::Range;

/// Note without KubeVirt.
const NO_KUBEVIRT: &str = "KubeVirt is not installed in this cluster: only pods were checked";

/// Reads everything. The pool is searched for in a namespace, or in all.
pub(super) async fn inventory(client: &Client, namespace: Option<&str>) -> Result<Inventory, Error> {
    let mut notes = Vec::new();
    let pods: Vec<Pod> = all(client, "pods").await?.unwrap_or_default();
    let machines: Option<Vec<VirtualMachine>> = all(client, "virtual machines").await?;
    let instances: Option<Vec<VirtualMachineInstance>> = all(client, "instances of virtual machines").await?;
    if machines.is_none() {
        notes.push(NO_KUBEVIRT.to_owned());
    }
    let managed = managed(client).await?;
    let range = match installed(client, namespace).await {
        Err(error @ Error::Connection(_)) => return Err(error),
        range => range,
    };
    let mut inventory = Inventory::new(
        &pods,
        &machines.unwrap_or_default(),
        &instances.unwrap_or_default(),
        managed,
        range,
    );
    inventory.notes = notes;
    Ok(inventory)
}

/// All objects of a kind; `None` if the API server does not serve it.
async fn all<K>(client: &Client, what: &str) -> Result<Option<Vec<K>>, Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    match Pages::new(api, ListParams::default()).all().await {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(connection::Error::of(what, &error).into()),
    }
}

async fn managed(client: &Client) -> Result<Managed, Error> {
    let mut managed = Managed::new();
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = configurations
        .get_opt(names::WEBHOOK_CONFIGURATION)
        .await
        .map_err(|error| connection::Error::of("the webhook configuration", &error))?;
    managed.set_rules(Rules::read(configuration.as_ref()));
    for namespace in all::<Namespace>(client, "namespaces").await?.unwrap_or_default() {
        let name = namespace.metadata.name.unwrap_or_default();
        managed.set_namespace(&name, namespace.metadata.labels.unwrap_or_default());
    }
    Ok(managed)
}

async fn installed(client: &Client, namespace: Option<&str>) -> Result<Installed, Error> {
    let api: Api<ConfigMap> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let named = ListParams::default().fields(&format!("metadata.name={}", names::RANGE_CONFIG_MAP));
    let found = api.list(&named).await;
    let mut found = found
        .map_err(|error| connection::Error::of("the range of the MAC pool", &error))?
        .items;
    if found.len() > 1 {
        let namespaces = found.into_iter().filter_map(|map| map.metadata.namespace);
        return Err(Error::Several(namespaces.collect()));
    }
    let map = found.pop().ok_or_else(|| Error::NotInstalled {
        place: match namespace {
            Some(namespace) => format!("namespace {namespace}"),
            None => "this cluster".to_owned(),
        },
    })?;
    let namespace = map.metadata.namespace.unwrap_or_default();
    let data = map.data.unwrap_or_default();
    let end = |key: &str| {
        let text = data.get(key).ok_or_else(|| format!("{key} is missing"))?;
        Mac::parse(text).map_err(|error| format!("{key}: {error}"))
    };
    let range =
        || Range::new(end(env::RANGE_START)?, end(env::RANGE_END)?).map_err(|error| error.to_string());
    match range() {
        Ok(range) => Ok(Installed { namespace, range }),
        Err(cause) => Err(Error::Range {
            name: format!("{namespace}/{}", names::RANGE_CONFIG_MAP),
            cause,
        }),
    }
}
