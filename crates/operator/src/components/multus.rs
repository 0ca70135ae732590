//! Multus: attaches pods to more networks than the cluster's own (operands §1).

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::object::DAEMON_SET;

use super::{Component, Context, Leftover, Place};
use crate::{
    cluster_facts::Cluster,
    manifest::{Error, Manifest},
    names,
};

/// See the module.
pub struct Multus;

impl Component for Multus {
    fn name(&self) -> &'static str {
        "multus"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.multus.is_some()
    }

    fn validate(&self, spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
        let disabled = cluster
            .openshift_network
            .is_some_and(|network| network.multus_disabled);
        if self.enabled(spec) && disabled {
            vec!["multus has been requested, but is disabled on OpenShift Cluster Network Operator".into()]
        } else {
            Vec::new()
        }
    }

    fn render(&self, context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        if context.cluster.openshift_network.is_some() {
            // OpenShift deploys multus itself.
            return Ok(Vec::new());
        }
        let mut objects = context.namespace_object()?;
        objects.push(Manifest::definition(api::net_attach_def::crd())?);
        objects.extend(context.objects("multus/rbac.yaml", include_str!("multus/rbac.yaml"))?);
        let mut daemon = context.objects("multus/daemon.yaml", include_str!("multus/daemon.yaml"))?;
        for workload in daemon.iter_mut().filter(|object| object.has_pods()) {
            complete(workload, context)?;
        }
        objects.extend(daemon);
        if context.cluster.platform.scc {
            objects.extend(context.objects("multus/scc.yaml", include_str!("multus/scc.yaml"))?);
        }
        Ok(objects)
    }

    fn leftovers(&self, _cluster: &Cluster) -> &'static [Leftover] {
        // The DaemonSet of thin multus; it would go on writing the configuration of the node.
        const OLD: [Leftover; 1] = [Leftover {
            kind: DAEMON_SET,
            place: Place::Operands,
            name: "kube-multus-ds-amd64",
        }];
        &OLD
    }
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::MULTUS_IMAGE)?;
    let platform = context.cluster.platform;
    let mut pods = workload.pods()?;
    pods.place(&context.workloads())?;
    pods.host_path("cni", platform.cni_conf_dir())?;
    pods.host_path("cnibin", platform.cni_bin_dir())?;
    let mut install = pods.container("install-multus-binary")?;
    install.run(image, context.pull_policy());
    if image.is_native() {
        install.command(&["/weft", "install-multus", "--to", "/host/opt/cni/bin"]);
    }
    let mut daemon = pods.container("kube-multus")?;
    daemon.run(image, context.pull_policy());
    if image.is_native() {
        // No preStop: the node's configuration stays over a restart, and the shim waits for the daemon.
        daemon
            .command(&["/weft", "multus-daemon"])
            .startup_command(&["/weft", "multus-daemon", "--check"])
            .without("lifecycle");
    }
    Ok(())
}
