//! The `ClusterServiceVersion`, from which the Operator Lifecycle Manager installs the operator (operator §13.3).

use serde_json::{Value, json};

use super::{Choice, Error, Install, parts};
use operator::{
    images::{OPERANDS, Operand},
    manifest::{self, Manifest},
    names::{self, env},
};

/// Name of the package, of its namespace and of the directory of its versions.
pub(super) const PACKAGE: &str = "cluster-network-addons";
/// The only channel.
pub(super) const CHANNEL: &str = "alpha";

/// Name of a version of the package. The name of an object has neither `+` nor capitals.
pub(super) fn name(version: &str) -> String {
    format!("{}.{}", names::OPERATOR, version.to_lowercase().replace('+', "-"))
}

/// An image of an installation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RelatedImage {
    /// The image without registry, tag and digest.
    pub(crate) name: String,
    pub(crate) reference: String,
}

/// The images in the order of `relatedImages` and of the flags of parents: the MAC pool comes before Open vSwitch.
pub(super) fn images_of_parents() -> [Operand; 10] {
    let mut operands = OPERANDS;
    let place = |variable| operands.iter().position(|operand| operand.variable == variable);
    if let (Some(pool), Some(ovs)) = (place(env::KUBEMACPOOL_IMAGE), place(env::OVS_CNI_IMAGE)) {
        operands.swap(pool, ovs);
    }
    operands
}

/// All images of an installation. The operator's own image replaces each that is not chosen.
pub(super) fn related_images(install: &Install<'_>, choice: &Choice) -> Vec<RelatedImage> {
    let chosen = images_of_parents().into_iter();
    let chosen = chosen.filter_map(|operand| choice.images.get(operand.variable));
    chosen
        .map(String::as_str)
        .filter(|reference| !reference.is_empty())
        .chain([install.image])
        .map(|reference| RelatedImage {
            name: short_name(reference).to_owned(),
            reference: reference.to_owned(),
        })
        .collect()
}

/// `registry:5000/organisation/NAME:tag@digest`
fn short_name(reference: &str) -> &str {
    let path = reference.split('@').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// Makes the `ClusterServiceVersion` of `version`, which may replace another with another name.
pub(super) fn cluster_service_version(
    install: &Install<'_>,
    choice: &Choice,
    version: &str,
    replaces: Option<&str>,
) -> Result<Value, Error> {
    const FILE: &str = "csv.yaml";
    let parts = parts(install, choice)?;
    let rules = |role: Option<&Manifest>| -> Value {
        json!([{
            "serviceAccountName": names::OPERATOR,
            "rules": role.map(|role| role.value()["rules"].clone()),
        }])
    };
    let role = parts.accounts.iter().find(|object| object.kind() == "Role");
    // A subscription may set any image variable.
    let cluster_role = parts.whole_cluster_role();
    let images: Vec<Value> = related_images(install, choice)
        .into_iter()
        .map(|image| json!({ "name": image.name, "image": image.reference }))
        .collect();
    let definition = api::network_addons::crd()?;
    // The first version is the newest, which is stored.
    let served = definition.spec.versions.first().map(|version| &version.name);

    let mut objects = manifest::parse(FILE, include_str!("csv.yaml"))?;
    let mut csv = objects.pop().ok_or(Error::Empty { file: FILE })?;
    csv.set_metadata("name", json!(name(version)))?;
    csv.annotate("alm-examples", &examples()?)?;
    csv.set_spec("version", json!(version))?;
    if let Some(replaced) = replaces.filter(|version| !version.is_empty()) {
        let name_of_replaced = name(replaced);
        if name_of_replaced == name(version) {
            return Err(Error::Replaces {
                version: version.to_owned(),
                replaces: replaced.to_owned(),
                name: name_of_replaced,
            });
        }
        csv.set_spec("replaces", json!(name_of_replaced))?;
    }
    csv.set_spec(
        "install",
        json!({
            "strategy": "deployment",
            "spec": {
                "permissions": rules(role),
                "clusterPermissions": rules(cluster_role.as_ref()),
                "deployments": [{
                    "name": names::OPERATOR,
                    "spec": parts.deployment.value()["spec"],
                }],
            },
        }),
    )?;
    csv.set_spec("relatedImages", json!(images))?;
    csv.set_spec(
        "customresourcedefinitions",
        json!({ "owned": [{
            "name": definition.metadata.name,
            "version": served,
            "group": definition.spec.group,
            "kind": definition.spec.names.kind,
            "displayName": "Cluster Network Addons",
            "description": "Configuration of the additional networking",
        }] }),
    )?;
    Ok(csv.into_value())
}

/// The examples that a console offers.
fn examples() -> Result<String, Error> {
    let mut objects = super::example_objects()?;
    let mut example = objects.pop().ok_or(Error::Empty {
        file: super::FILES[3],
    })?;
    example.replace(
        "/spec",
        json!({
            "multus": {},
            "linuxBridge": {},
            "kubeMacPool": { "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:FF:FF:FF:FF:FF" },
            "ovs": {},
            "imagePullPolicy": "IfNotPresent",
        }),
    )?;
    let mut examples = [example].map(Manifest::into_value);
    examples.iter_mut().for_each(Value::sort_all_objects);
    serde_json::to_string_pretty(&examples).map_err(|error| Error::Yaml {
        file: "alm-examples",
        cause: error.to_string(),
    })
}

#[cfg(test)]
mod tests;
