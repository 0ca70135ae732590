//! FRR on each node, which exchanges routes with routers outside of the cluster (§18.2).

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{containers_of, find, parse, set, use_image, use_secret},
    ovn,
    parts::{complete, create_only, hash, skip_verification, without_monitoring},
};
use crate::{messages, names, tls_profile::Profile};

/// The `DaemonSet`, the `OperatorPKI`, and the placeholder of the image in the files.
const FRR_K8S: &str = "frr-k8s";
const WEBHOOK: &str = "frr-k8s-validating-webhook-configuration-ocp";
const WEBHOOK_DEPLOYMENT: &str = "frr-k8s-statuscleaner";
/// Containers that serve TLS.
const SERVERS: [&str; 3] = ["controller", "frr-metrics", WEBHOOK_DEPLOYMENT];
/// Secret with the certificate of `OperatorPKI` [`FRR_K8S`].
const SECRET: &str = "frr-k8s-cert";

/// All objects.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let Context {
        spec,
        facts,
        settings,
        ..
    } = *context;
    let Some(image) = &settings.frr_image else {
        return Err(Error::Refused(messages::NO_FRR_IMAGE.to_owned()));
    };
    let mut objects = parse("rbac.yaml", include_str!("frr/rbac.yaml"))?;
    let definitions = parse("definitions.yaml", include_str!("frr/definitions.yaml"))?;
    objects.extend(definitions.into_iter().map(create_only));
    objects.extend(parse("node.yaml", include_str!("frr/node.yaml"))?);
    objects.extend(parse("metrics.yaml", include_str!("frr/metrics.yaml"))?);
    objects.extend(parse("webhook.yaml", include_str!("frr/webhook.yaml"))?);
    use_image(&mut objects, FRR_K8S, image, &settings.pull_policy);
    complete(&mut objects, context);

    let startup = find(&mut objects, "ConfigMap", "frr-startup")?;
    set(
        startup,
        "/data/daemons",
        json!(daemons(ovn::has_managed_bgp(spec))),
    )?;
    let startup = hash(&startup["data"].to_string());
    let daemon = find(&mut objects, "DaemonSet", FRR_K8S)?;
    // The pods copy the files at their start.
    daemon["spec"]["template"]["metadata"]["annotations"][names::CONFIG_HASH] = json!(startup);
    if let Some(profile) = &facts.tls_profile {
        for (kind, name) in [("DaemonSet", FRR_K8S), ("Deployment", WEBHOOK_DEPLOYMENT)] {
            serve_by(find(&mut objects, kind, name)?, profile)?;
        }
    }
    if facts.control_plane_nodes == 1 {
        let deployment = find(&mut objects, "Deployment", WEBHOOK_DEPLOYMENT)?;
        // A second pod would need the same port of the same node.
        let update = json!({ "maxSurge": 0, "maxUnavailable": 1 });
        set(deployment, "/spec/strategy/rollingUpdate", update)?;
    }
    if facts.openshift {
        objects.retain(|object| object["kind"] != "OperatorPKI");
    } else {
        certify(&mut objects, &facts.frr_bundle)?;
    }
    Ok(without_monitoring(objects, facts))
}

/// Replaces the certificates of OpenShift by that of `OperatorPKI` [`FRR_K8S`]. The webhook configuration waits for the
/// certificate authorities.
fn certify(objects: &mut [Value], bundle: &str) -> Result<(), Error> {
    let daemon = find(objects, "DaemonSet", FRR_K8S)?;
    use_secret(daemon, "metrics-certs", SECRET);
    let deployment = find(objects, "Deployment", WEBHOOK_DEPLOYMENT)?;
    use_secret(deployment, "cert", SECRET);
    skip_verification(objects);
    let configuration = find(objects, "ValidatingWebhookConfiguration", WEBHOOK)?;
    if bundle.is_empty() {
        configuration["metadata"]["annotations"] = json!({ names::CREATE_WAIT: "" });
    } else {
        let bundle = ByteString(bundle.to_owned().into_bytes());
        configuration["metadata"]["annotations"] = json!({});
        for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
            webhook["clientConfig"]["caBundle"] = json!(bundle);
        }
    }
    Ok(())
}

/// Adds the flags of a TLS profile to the servers of a workload. An unset variable is an argument that is no flag, and
/// ends the flags.
fn serve_by(workload: &mut Value, profile: &Profile) -> Result<(), Error> {
    let servers = containers_of(workload)?.iter_mut();
    for server in servers.filter(|it| SERVERS.iter().any(|name| it["name"] == *name)) {
        if let Some(arguments) = server["args"].as_array_mut() {
            arguments.splice(0..0, profile.flags().into_iter().map(Value::from));
        }
    }
    Ok(())
}

/// The daemons of FRR and their options. zebra and staticd always run. BGP daemons that only connect to neighbors
/// listen on no port.
fn daemons(accepts_bgp: bool) -> String {
    let port = if accepts_bgp { 179 } else { 0 };
    let local = "-A 127.0.0.1";
    let files = "--limit-fds 100000";
    format!(
        r#"bgpd=yes
bfdd=yes
vtysh_enable=yes
zebra_options="{local} -s 90000000 {files}"
bgpd_options="{local} -p {port} {files}"
staticd_options="{local} {files}"
bfdd_options="{local} {files}"
MAX_FDS=65536
"#
    )
}

#[cfg(test)]
mod tests;
