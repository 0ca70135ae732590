//! Components that give each node of OVN-Kubernetes its own user, without rights on other nodes (§17.2).

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    Context, Error,
    hosted::Place,
    objects::{container, extend, find, parse, set, set_variable, use_image},
    ovn::OVN,
    parts::{complete, control_plane_selector},
};
use crate::{facts::NodeIdentity, messages, names, settings::SERVICE_CA};

const WEBHOOK: &str = "network-node-identity.openshift.io";

/// All objects. The webhook configuration has to wait for the webhook: without an answer, the API server refuses
/// statuses of nodes and pods.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let Context { facts, settings, .. } = *context;
    let Some(image) = &settings.ovn.image else {
        return Err(Error::Refused(messages::NO_OVN_IMAGE.to_owned()));
    };
    let mut objects = parse("node_identity.yaml", include_str!("node_identity.yaml"))?;
    use_image(&mut objects, OVN, image, &settings.pull_policy);
    complete(&mut objects, context);
    let place = Place::of(context)?;
    let moved = if let Some(place) = &place {
        objects.retain(|object| !is_moved(object));
        let configuration = find(&mut objects, "ValidatingWebhookConfiguration", WEBHOOK)?;
        serve_from(configuration, &place.settings.namespace);
        hosted(context, place)?
    } else {
        let workload = find(&mut objects, "DaemonSet", names::NODE_IDENTITY)?;
        let selector = control_plane_selector(facts);
        set(workload, "/spec/template/spec/nodeSelector", selector)?;
        with_profile(workload, context)?;
        Vec::new()
    };
    let NodeIdentity {
        is_bootstrapped,
        bundle,
        is_rolled_out,
    } = &facts.node_identity;
    let configuration = find(&mut objects, "ValidatingWebhookConfiguration", WEBHOOK)?;
    if *is_bootstrapped && *is_rolled_out && !bundle.is_empty() {
        let bundle = ByteString(bundle.clone().into_bytes());
        for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
            webhook["clientConfig"]["caBundle"] = json!(bundle);
        }
    } else {
        configuration["metadata"]["annotations"] = json!({ names::CREATE_WAIT: "" });
    }
    objects.extend(moved);
    Ok(objects)
}

/// True for an object of the hosted cluster that the management cluster has instead (§18.3).
fn is_moved(object: &Value) -> bool {
    ["DaemonSet", "OperatorPKI", "ConfigMap"]
        .iter()
        .any(|kind| object["kind"] == *kind)
}

/// Lets the API server of a hosted cluster call the Service in the management cluster.
fn serve_from(configuration: &mut Value, namespace: &str) {
    for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
        let url = webhook["clientConfig"]["url"].as_str().unwrap_or_default();
        let path = url.rsplit('/').next().unwrap_or_default();
        let name = names::NODE_IDENTITY;
        webhook["clientConfig"]["url"] = json!(format!("https://{name}.{namespace}.svc:9743/{path}"));
    }
}

/// Restricts the TLS of the webhook to the profile of the cluster.
fn with_profile(workload: &mut Value, context: &Context<'_>) -> Result<(), Error> {
    if let Some(profile) = &context.facts.tls_profile {
        extend(&mut container(workload, "webhook")?["args"], profile.flags());
    }
    Ok(())
}

/// The objects for the management cluster.
fn hosted(context: &Context<'_>, place: &Place<'_>) -> Result<Vec<Value>, Error> {
    let yaml = include_str!("node_identity_hosted.yaml");
    let mut objects = parse("node_identity_hosted.yaml", yaml)?;
    if place.settings.authorities.0 == SERVICE_CA {
        let service = find(&mut objects, "Service", names::NODE_IDENTITY)?;
        service["metadata"]["annotations"] = json!({
            "service.beta.openshift.io/serving-cert-secret-name": "network-node-identity-secret",
        });
    }
    let workload = find(&mut objects, "Deployment", names::NODE_IDENTITY)?;
    with_profile(workload, context)?;
    let (namespace, account) = (names::NODE_IDENTITY_NAMESPACE, names::NODE_IDENTITY);
    place.minted(workload, namespace, account)?;
    set_variable(&mut objects, "API_SERVER", Some(&place.settings.api_server));
    place.complete(&mut objects)?;
    Ok(objects)
}
