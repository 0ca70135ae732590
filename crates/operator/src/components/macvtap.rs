//! Macvtap: a device plugin and a CNI plugin (operands §6).

use api::network_addons::NetworkAddonsConfigSpec;

use super::Context;
use crate::{
    cluster_facts::Cluster,
    manifest::{Error, Manifest},
    messages::specification,
    names,
};

/// Default ConfigMap of the device plugin.
const DEVICE_PLUGIN_CONFIG: &str = "macvtap-deviceplugin-config";

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.namespace_object()?;
    objects.extend(context.objects("macvtap/account.yaml", include_str!("macvtap/account.yaml"))?);
    if context.cluster.platform.scc {
        objects.extend(context.objects("macvtap/scc.yaml", include_str!("macvtap/scc.yaml"))?);
    }
    let mut node = context.objects("macvtap/node.yaml", include_str!("macvtap/node.yaml"))?;
    for workload in node.iter_mut().filter(|object| object.has_pods()) {
        complete(workload, context)?;
    }
    objects.extend(node);
    Ok(objects)
}

/// Refuses macvtap on OpenShift.
pub(crate) fn validate(spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
    if spec.macvtap.is_some() && cluster.openshift_network.is_some() {
        vec![specification::MACVTAP_ON_OPENSHIFT.into()]
    } else {
        Vec::new()
    }
}

/// Keeps the ConfigMap of the device plugin, or fills in the default one.
pub(crate) fn defaults(spec: &mut NetworkAddonsConfigSpec, previous: Option<&NetworkAddonsConfigSpec>) {
    let Some(macvtap) = &mut spec.macvtap else { return };
    if macvtap.device_plugin_config.is_empty() {
        let before = previous.and_then(|spec| spec.macvtap.as_ref());
        macvtap.device_plugin_config = before
            .map(|macvtap| macvtap.device_plugin_config.clone())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| DEVICE_PLUGIN_CONFIG.to_owned());
    }
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::MACVTAP_CNI_IMAGE)?;
    let mut pods = workload.pods()?;
    pods.place(&context.workloads())?;
    pods.host_path("cni", context.directories().bin)?;
    if image.is_native() {
        // The pods use only the kubelet's socket.
        pods.without_token()?;
    }
    let mut install = pods.container("install-cni")?;
    install.run(image, context.pull_policy());
    if image.is_native() {
        install
            .command(&["/weft", "install-plugins", "--to", "/host/opt/cni/bin", "macvtap"])
            .read_only_root()?;
    }
    let mut plugin = pods.container("macvtap-cni")?;
    plugin
        .run(image, context.pull_policy())
        .env_from_config_map(device_plugin_config(context))?;
    if image.is_native() {
        plugin
            .command(&["/weft", "macvtap-device-plugin"])
            .read_only_root()?;
    }
    Ok(())
}

/// Name of the ConfigMap that the device plugin reads. A complete specification has one; a record of an earlier
/// operator may be incomplete.
fn device_plugin_config<'a>(context: &Context<'a>) -> &'a str {
    let settings = context.spec.macvtap.as_ref();
    settings
        .map(|settings| settings.device_plugin_config.as_str())
        .filter(|name| !name.is_empty())
        .unwrap_or(DEVICE_PLUGIN_CONFIG)
}
