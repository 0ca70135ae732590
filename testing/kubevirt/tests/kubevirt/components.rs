//! Every component at once.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::stage::Stage;

/// Keys of a specification that are no component.
const SETTINGS: [&str; 5] = [
    "cniDirectories",
    "imagePullPolicy",
    "placementConfiguration",
    "selfSignConfiguration",
    "tlsSecurityProfile",
];
const CONFIGURATION: [&str; 2] = ["networkaddonsconfig", "cluster"];
const DEFINITION: [&str; 2] = [
    "customresourcedefinition",
    "networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io",
];

// operands#21
#[test]
fn configuration_with_every_component_is_available() {
    let Some(stage) = Stage::enter("kv-components") else {
        return;
    };
    let configuration = stage.wait("the configuration to be Available", || {
        let configuration = stage.kubectl.get(CONFIGURATION).unwrap()?;
        let has = |kind: &str, status: &str| {
            let mut conditions = configuration["status"]["conditions"].as_array()?.iter();
            conditions
                .find(|condition| condition["type"] == kind && condition["status"] == status)
                .map(drop)
        };
        has("Available", "True")
            .and(has("Progressing", "False"))
            .and(has("Degraded", "False"))?;
        Some(configuration)
    });
    let definition = stage.kubectl.get(DEFINITION).unwrap().unwrap();
    let mut versions = definition["spec"]["versions"].as_array().unwrap().iter();
    let served = versions.find(|version| version["name"] == "v1").unwrap();
    let possible = keys(&served["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]);
    assert_eq!(keys(&configuration["spec"]), possible);
}

/// The components of a specification, or of its schema.
fn keys(object: &Value) -> BTreeSet<&str> {
    let keys = object.as_object().unwrap().keys().map(String::as_str);
    keys.filter(|key| !SETTINGS.contains(key)).collect()
}
