//! The controller that assigns private addresses of the cloud to nodes, for `EgressIP`s (§18.5).

use serde_json::{Value, json};

use super::{
    Context, Error,
    hosted::{Place, TOKEN_DIR},
    objects::{container, find, parse, push, set, set_variable, use_image},
    parts::{create_only, left_out, place_on_control_plane},
};
use crate::{
    facts::{Facts, Platform},
    messages, names, settings,
};

/// Container of the controller.
const CONTROLLER: &str = "controller";
/// Key of certificate authorities in the configuration of AWS, and its file in the container.
const AWS_BUNDLE: &str = "ca-bundle.pem";
/// Directory of the cloud's credentials in the container.
const CREDENTIALS_DIR: &str = "/etc/secret/cloudprovider";
/// Directory of certificates for Azure in the management cluster, and the volume of that directory.
const AZURE_DIR: &str = "/var/run/secrets/azure";
const AZURE_VOLUME: &str = "cncc-cert";

/// True if the controller supports the cloud.
pub(super) fn supports(platform: &Platform) -> bool {
    matches!(
        platform,
        Platform::Aws | Platform::Azure | Platform::Gcp | Platform::OpenStack
    )
}

/// All objects. Nothing is rendered without the image.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let settings = context.settings;
    let Some(image) = &settings.cloud_network_image else {
        left_out(messages::NO_CLOUD_NETWORK_IMAGE);
        return Ok(Vec::new());
    };
    let mut objects = parse("common.yaml", include_str!("cloud_network/common.yaml"))?;
    // The platform owns the namespace with its credentials, and users of the cluster own objects of the definition.
    for object in &mut objects {
        if ["Namespace", "CustomResourceDefinition"]
            .iter()
            .any(|kind| object["kind"] == *kind)
        {
            *object = create_only(object.take());
        }
    }
    let mut controller = match Place::of(context)? {
        Some(place) => hosted(context, &place)?,
        None => own(context)?,
    };
    use_image(
        &mut controller,
        names::CLOUD_NETWORK,
        image,
        &settings.pull_policy,
    );
    set_variable(&mut controller, names::env::VERSION, Some(&settings.version));
    objects.extend(controller);
    Ok(objects)
}

/// The controller on nodes of the cluster's own control plane.
fn own(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let facts = context.facts;
    let yaml = include_str!("cloud_network/controller.yaml");
    let mut objects = parse("controller.yaml", yaml)?;
    configure(find(&mut objects, "ConfigMap", names::CLOUD_CONFIG)?, facts);
    let deployment = find(&mut objects, "Deployment", names::CLOUD_NETWORK)?;
    place_on_control_plane(deployment, facts)?;
    let controller = container(deployment, CONTROLLER)?;
    set(controller, "/args", json!(arguments(facts, "cloud-credentials")))?;
    for (name, value) in &facts.proxy {
        push(&mut controller["env"], json!({ "name": name, "value": value }));
    }
    Ok(objects)
}

/// The controller in the management cluster (§18.3).
fn hosted(context: &Context<'_>, place: &Place<'_>) -> Result<Vec<Value>, Error> {
    let facts = context.facts;
    let settings = &place.settings.cloud;
    let mut objects = parse("hosted.yaml", include_str!("cloud_network/hosted.yaml"))?;
    let name = format!("{}-{}", names::CLOUD_NETWORK, names::CLOUD_CONFIG);
    configure(find(&mut objects, "ConfigMap", &name)?, facts);
    let deployment = find(&mut objects, "Deployment", names::CLOUD_NETWORK)?;
    let controller = container(deployment, CONTROLLER)?;
    let mut arguments = arguments(facts, "cloud-network-config-controller-creds");
    arguments.extend(["-kubeconfig".to_owned(), format!("{TOKEN_DIR}/kubeconfig")]);
    set(controller, "/args", json!(arguments))?;
    for (name, value) in variables(settings)? {
        push(&mut controller["env"], json!({ "name": name, "value": value }));
    }
    if let Some(azure) = &settings.azure {
        let mount = json!({ "name": AZURE_VOLUME, "mountPath": AZURE_DIR, "readOnly": true });
        push(&mut controller["volumeMounts"], mount);
        let volume = json!({ "name": AZURE_VOLUME, "csi": {
            "driver": "secrets-store.csi.k8s.io", "readOnly": true,
            "volumeAttributes": { "secretProviderClass": azure.class },
        } });
        push(&mut deployment["spec"]["template"]["spec"]["volumes"], volume);
    }
    place.minted(deployment, names::CLOUD_NETWORK_NAMESPACE, names::CLOUD_NETWORK)?;
    set_variable(&mut objects, "API_SERVER", Some(&place.settings.api_server));
    place.complete(&mut objects)?;
    Ok(objects)
}

/// Variables of the controller in the management cluster: the proxy and the credentials there.
fn variables(settings: &settings::HostedCloud) -> Result<Vec<(&'static str, String)>, Error> {
    let mut variables = settings.proxy.clone();
    if let Some(azure) = &settings.azure {
        let path = format!("{AZURE_DIR}/{}", azure.file);
        variables.push(("ARO_HCP_CLIENT_CREDENTIALS_PATH", path));
    }
    if let Some(file) = &settings.gcp_file {
        if file.contains('/') || [".", ".."].contains(&file.as_str()) {
            return Err(Error::Refused(messages::no_file_name(
                names::env::GCP_CREDENTIALS,
                file,
            )));
        }
        let path = format!("{CREDENTIALS_DIR}/{file}");
        variables.push(("GOOGLE_APPLICATION_CREDENTIALS", path));
    }
    Ok(variables)
}

/// Copies the configuration of the cloud.
fn configure(map: &mut Value, facts: &Facts) {
    if !facts.cloud.config.is_empty() {
        map["data"] = json!(facts.cloud.config);
    }
}

/// Arguments of the controller. `secret` has the credentials of the cloud.
fn arguments(facts: &Facts, secret: &str) -> Vec<String> {
    let cloud = &facts.cloud;
    let has_bundle = cloud.config.get(AWS_BUNDLE).is_some_and(|text| !text.is_empty());
    let bundle = if facts.platform == Platform::Aws && has_bundle {
        format!("/{}/{AWS_BUNDLE}", names::CLOUD_CONFIG)
    } else {
        String::new()
    };
    vec![
        "-platform-type".to_owned(),
        facts.platform.to_string(),
        format!("-platform-region={}", cloud.region),
        format!("-platform-api-url={}", cloud.api_url),
        format!("-platform-aws-ca-override={bundle}"),
        format!("-platform-azure-environment={}", cloud.azure_environment),
        "-secret-name".to_owned(),
        secret.to_owned(),
    ]
}

#[cfg(test)]
mod tests;
