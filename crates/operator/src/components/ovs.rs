//! Open vSwitch: CNI plugins, and a marker that advertises bridges as resources (operands §5).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context, replace_roles};
use crate::{
    manifest::{Error, Manifest},
    names,
};

/// See the module.
pub struct Ovs;

impl Component for Ovs {
    fn name(&self) -> &'static str {
        "ovs"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.ovs.is_some()
    }

    fn has_programs(&self, context: &Context<'_>) -> bool {
        context.images.can_run(&[names::env::OVS_CNI_IMAGE])
    }

    fn render(&self, context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        let mut objects = context.namespace_object()?;
        let mut node = context.objects("ovs/node.yaml", include_str!("ovs/node.yaml"))?;
        for workload in node.iter_mut().filter(|object| object.has_pods()) {
            complete(workload, context)?;
        }
        if context.images.of(names::env::OVS_CNI_IMAGE)?.is_native() {
            let narrow = include_str!("ovs/native-role.yaml");
            replace_roles(&mut node, context.objects("ovs/native-role.yaml", narrow)?);
        }
        objects.extend(node);
        if context.cluster.platform.scc {
            objects.extend(context.objects("ovs/scc.yaml", include_str!("ovs/scc.yaml"))?);
        }
        Ok(objects)
    }
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::OVS_CNI_IMAGE)?;
    let mut pods = workload.pods()?;
    pods.place(&context.workloads())?;
    pods.host_path("cnibin", context.directories().bin)?;
    let mut install = pods.container("ovs-cni-plugin")?;
    install.run(image, context.pull_policy());
    if image.is_native() {
        let plugins = ["ovs", "ovs-mirror-producer", "ovs-mirror-consumer"];
        let install_plugins = ["/weft", "install-plugins", "--to", "/host/opt/cni/bin"];
        install
            .command(&[&install_plugins[..], &plugins].concat())
            .without("args");
    }
    let mut marker = pods.container("ovs-cni-marker")?;
    marker.run(image, context.pull_policy());
    if image.is_native() {
        marker.command(&["/weft", "ovs-marker"]);
        marker.probe_command("livenessProbe", &["/weft", "ovs-marker", "--check"])?;
    }
    Ok(())
}
