//! Open vSwitch: CNI plugins, and a marker that advertises bridges as resources (operands §5).

use super::{Context, permit_confined, replace_roles};
use crate::{
    images::Image,
    manifest::{Error, Manifest, Pods},
    names,
};

/// Capability of the marker: the owner of OVSDB's socket is the user of Open vSwitch, who is not root on some hosts.
const MARKER_CAPABILITY: &str = "DAC_OVERRIDE";

/// Volume for the file of the marker's own probe, and its mount path.
const TMP: (&str, &str) = ("tmp", "/tmp");

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let ours = context.images.of(names::env::OVS_CNI_IMAGE)?.is_native();
    let mut objects = context.namespace_object()?;
    let mut node = context.objects("ovs/node.yaml", include_str!("ovs/node.yaml"))?;
    for workload in node.iter_mut().filter(|object| object.has_pods()) {
        complete(workload, context)?;
    }
    if ours {
        let narrow = include_str!("ovs/native-role.yaml");
        replace_roles(&mut node, context.objects("ovs/native-role.yaml", narrow)?);
    }
    objects.extend(node);
    if context.cluster.platform.scc {
        let mut constraints = context.objects("ovs/scc.yaml", include_str!("ovs/scc.yaml"))?;
        if ours {
            permit_confined(&mut constraints, &[MARKER_CAPABILITY]);
        }
        objects.extend(constraints);
    }
    Ok(objects)
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::OVS_CNI_IMAGE)?;
    let mut pods = workload.pods()?;
    pods.place(&context.workloads())?;
    pods.host_path("cnibin", context.directories().bin)?;
    complete_installer(&mut pods, image, context.pull_policy())?;
    complete_marker(&mut pods, image, context.pull_policy())
}

fn complete_installer(pods: &mut Pods<'_>, image: Image<'_>, pull_policy: &str) -> Result<(), Error> {
    let mut install = pods.container("ovs-cni-plugin")?;
    install.run(image, pull_policy);
    if image.is_native() {
        let plugins = ["ovs", "ovs-mirror-producer", "ovs-mirror-consumer"];
        let install_plugins = ["/weft", "install-plugins", "--to", "/host/opt/cni/bin"];
        install
            .command(&[&install_plugins[..], &plugins].concat())
            .without("args")
            .read_only_root()?;
    }
    Ok(())
}

fn complete_marker(pods: &mut Pods<'_>, image: Image<'_>, pull_policy: &str) -> Result<(), Error> {
    if image.is_native() {
        pods.add_empty_dir(TMP.0)?;
    }
    let mut marker = pods.container("ovs-cni-marker")?;
    marker.run(image, pull_policy);
    if image.is_native() {
        marker
            .command(&["/weft", "ovs-marker"])
            .probe_command("livenessProbe", &["/weft", "ovs-marker", "--check"])?
            .also_mount(TMP.0, TMP.1)?
            // The marker needs one socket of the host.
            .without_privileges()?
            .with_capability(MARKER_CAPABILITY)?
            .as_root_of_the_host()?;
    }
    Ok(())
}
