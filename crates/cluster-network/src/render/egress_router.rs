//! The objects of an egress router (§17.5).

use kube_kit::object::EGRESS_ROUTER;
use serde_json::{Value, json};

use super::Error;
use super::objects::{containers_of, find, parse, set, use_image};
use super::parts::hash;
use crate::{egress_router::Router, names, settings::Settings};

/// Placeholder of the image in the file.
const IMAGE: &str = "egress-router";

/// The `EgressRouter` that owns the objects.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Namespace of the router and of its objects.
    pub namespace: &'a str,
    /// Name of the router.
    pub name: &'a str,
    /// UID of the router.
    pub uid: &'a str,
}

/// The network of an egress router, followed by the Deployment of its pod.
///
/// # Errors
/// If the embedded file is invalid.
pub fn egress_router(router: &Router, owner: &Owner<'_>, settings: &Settings) -> Result<Vec<Value>, Error> {
    let mut objects = parse("egress_router.yaml", include_str!("egress_router.yaml"))?;
    let config = router.config();
    let network = find(
        &mut objects,
        "NetworkAttachmentDefinition",
        names::EGRESS_ROUTER_NETWORK,
    )?;
    set(network, "/spec/config", json!(config))?;
    let deployment = find(&mut objects, "Deployment", names::EGRESS_ROUTER_DEPLOYMENT)?;
    let annotations = "/spec/template/metadata/annotations";
    let networks = kube_kit::patch::escape(names::NETWORKS);
    set(
        deployment,
        &format!("{annotations}/{networks}"),
        json!(selection(router)),
    )?;
    let config_hash = kube_kit::patch::escape(names::CONFIG_HASH);
    set(
        deployment,
        &format!("{annotations}/{config_hash}"),
        json!(hash(&config)),
    )?;
    if settings.egress_router_image.is_none() {
        use_weft(deployment)?;
    }
    let image = settings.egress_router_image.as_ref().unwrap_or(&settings.image);
    use_image(&mut objects, IMAGE, image, &settings.pull_policy);
    for object in &mut objects {
        let metadata = &mut object["metadata"];
        metadata["namespace"] = json!(owner.namespace);
        metadata["annotations"][names::VERSION_ANNOTATION] = json!(settings.version);
        metadata["ownerReferences"] = json!([{
            "apiVersion": EGRESS_ROUTER.api_version(), "kind": EGRESS_ROUTER.kind, "name": owner.name,
            "uid": owner.uid, "controller": true,
        }]);
    }
    Ok(objects)
}

/// The pod's selection of the network, byte for byte as upstream renders it.
fn selection(router: &Router) -> String {
    format!(
        "[\n  {{\n    \"name\":\"{}\",\n    \"default-route\": [{}]\n  }}\n]\n",
        names::EGRESS_ROUTER_NETWORK,
        json!(router.gateway)
    )
}

/// Replaces the shell of upstream's image by the program of Weft, which needs no right.
fn use_weft(deployment: &mut Value) -> Result<(), Error> {
    for container in containers_of(deployment)? {
        container["command"] = json!(["/weft", "cluster-network-operator", "egress-router"]);
        container["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
            "seccompProfile": { "type": "RuntimeDefault" },
        });
    }
    deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] = json!(false);
    Ok(())
}
