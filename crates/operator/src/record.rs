//! The record of the last applied configuration in a ConfigMap: the complete specification, and the inventory of
//! objects (operator §6). The reader supports records of all versions of the operator.

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::{
    inventory::{self, Inventory},
    object::ObjectId,
};
use serde_json::{Value, json};

use crate::{configuration, manifest::Manifest, names, resource};

/// Content of the ConfigMap.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The complete specification; `None` if nothing was applied yet.
    pub spec: Option<NetworkAddonsConfigSpec>,
    /// Recorded objects; `None` if an operator without inventories wrote the ConfigMap.
    pub inventory: Option<Inventory>,
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The specification is not JSON.
    #[error("{key}: {0}", key = names::APPLIED_KEY)]
    Syntax(#[from] serde_json::Error),
    /// The specification has a field of the wrong type.
    #[error("{key}: {0}", key = names::APPLIED_KEY)]
    Spec(#[from] configuration::Unreadable),
}

/// Reads the record of the configuration resource with this uid. The specification of an earlier resource with the same
/// name is ignored; its objects stay on record.
///
/// # Errors
/// If the specification cannot be read.
pub fn read_under(config_map: &Value, uid: &str) -> Result<Record, Error> {
    let mut applied = read(config_map)?;
    if resource::owner_uid(config_map).is_some_and(|owner| owner != uid) {
        applied = Record {
            spec: None,
            inventory: Some(applied.inventory.take().unwrap_or_default()),
        };
    }
    Ok(applied)
}

/// Reads the ConfigMap. An unreadable inventory counts as absent: it is rebuilt from the specification.
pub(crate) fn read(config_map: &Value) -> Result<Record, Error> {
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
            .inspect_err(|error| tracing::warn!(%error, "cannot read the recorded inventory, rebuilding it from the specification"))
            .ok()
    });
    Ok(Record { spec, inventory })
}

pub(crate) fn render(
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
    fn read_record_of_first_generation_has_specification_alone() {
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
    fn read_distinguishes_absent_record_from_invalid_one() {
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
    fn rendered_record_is_read_back() {
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
