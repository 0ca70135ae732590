//! Components that give each node of OVN-Kubernetes its own user, without rights on other nodes (§17.2).

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{find, parse, set, use_image},
    ovn::OVN,
    parts::{complete, control_plane_selector},
};
use crate::{facts::NodeIdentity, messages, names};

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
    let workload = find(&mut objects, "DaemonSet", names::NODE_IDENTITY)?;
    set(
        workload,
        "/spec/template/spec/nodeSelector",
        control_plane_selector(facts),
    )?;
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
    Ok(objects)
}
