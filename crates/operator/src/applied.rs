//! What was applied last, kept in a ConfigMap: the complete specification, and the inventory of objects
//! (operator §6). Both are read from what any version of the operator wrote.

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::{
    inventory::{self, Inventory},
    object::ObjectId,
};
use serde_json::{Value, json};

use crate::{configuration, manifest::Manifest, names};

/// Content of the ConfigMap.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// The complete specification; none when nothing was applied yet.
    pub spec: Option<NetworkAddonsConfigSpec>,
    /// Objects that were applied; none when the ConfigMap was written by an operator that keeps no
    /// inventory.
    pub inventory: Option<Inventory>,
}

/// Why the ConfigMap can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no JSON.
    #[error("{key}: {0}", key = names::APPLIED_KEY)]
    Syntax(#[from] serde_json::Error),
    /// The specification is no specification.
    #[error("{key}: {0}", key = names::APPLIED_KEY)]
    Spec(#[from] configuration::Unreadable),
}

/// Reads the ConfigMap. An inventory that can't be read counts as none: it is made anew from the
/// specification.
pub fn read(config_map: &Value) -> Result<Applied, Error> {
    let text = |key: &str| {
        config_map
            .get("data")
            .and_then(|data| data.get(key))
            .and_then(Value::as_str)
    };
    let spec = match text(names::APPLIED_KEY) {
        Some(json) => Some(configuration::read(serde_json::from_str(json)?)?),
        None => None,
    };
    let inventory = text(inventory::KEY).and_then(|json| {
        Inventory::parse(json)
            .inspect_err(|error| tracing::warn!(%error, "the inventory is made anew"))
            .ok()
    });
    Ok(Applied { spec, inventory })
}

/// Renders the ConfigMap.
pub fn render(
    spec: &NetworkAddonsConfigSpec,
    inventory: &Inventory,
    operator_namespace: &str,
) -> Result<Manifest, Error> {
    let spec = serde_json::to_string(spec)?;
    Ok(Manifest::from_value(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": names::APPLIED_CONFIG_MAP, "namespace": operator_namespace },
        "data": { names::APPLIED_KEY: spec, inventory::KEY: inventory.to_json() },
    })))
}

/// Identity of the ConfigMap.
pub fn id(operator_namespace: &str) -> ObjectId {
    kube_kit::object::CONFIG_MAP.object(Some(operator_namespace), names::APPLIED_CONFIG_MAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(data: &Value) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": data })
    }

    #[test]
    fn what_the_first_generation_wrote_is_read() {
        let old = config_map(
            &json!({ "applied": r#"{"multus":{},"sriov":{},"ovs":null,"imagePullPolicy":"IfNotPresent"}"# }),
        );
        let applied = read(&old).expect("the applied configuration");
        let spec = applied.spec.expect("a specification");
        assert!(spec.multus.is_some() && spec.ovs.is_none() && spec.placement_configuration.is_none());
        assert_eq!(spec.image_pull_policy, "IfNotPresent");
        assert_eq!(applied.inventory, None);
    }

    #[test]
    fn nothing_and_nonsense_are_told_apart() {
        assert!(read(&config_map(&json!({}))).expect("nothing").spec.is_none());
        assert!(
            read(&json!({ "kind": "ConfigMap" }))
                .expect("nothing")
                .spec
                .is_none()
        );
        assert!(read(&config_map(&json!({ "applied": "{" }))).is_err());
        assert!(read(&config_map(&json!({ "applied": r#"{"multus":7}"# }))).is_err());
        let inventory = read(&config_map(&json!({ "applied": "{}", "inventory": "?" })))
            .expect("a configuration")
            .inventory;
        assert_eq!(inventory, None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let spec = NetworkAddonsConfigSpec {
            image_pull_policy: "Always".into(),
            ..Default::default()
        };
        let inventory = Inventory::of([kube_kit::object::DAEMON_SET.object(Some("ns"), "multus")]);
        let rendered = render(&spec, &inventory, "ns").expect("a ConfigMap").into_value();
        assert_eq!(
            rendered["metadata"]["name"],
            "cluster-networks-addons-operator-applied-cluster"
        );
        assert_eq!(rendered["data"]["applied"], r#"{"imagePullPolicy":"Always"}"#);
        let applied = read(&rendered).expect("the applied configuration");
        assert_eq!((applied.spec, applied.inventory), (Some(spec), Some(inventory)));
    }
}
