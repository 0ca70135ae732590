//! Secondary DNS: addresses of virtual machines on secondary networks (operands §7).

use api::network_addons::{KubeSecondaryDNS, NetworkAddonsConfigSpec};

use super::{Component, Context};
use crate::{
    manifest::{Error, Manifest},
    names,
};

/// Annotation of the pods with the settings that they were started with.
const SETTINGS: &str = "networkaddonsoperator.network.kubevirt.io/secondary-dns-settings";

/// See the module.
pub struct KubeSecondaryDns;

impl Component for KubeSecondaryDns {
    fn name(&self) -> &'static str {
        "kubeSecondaryDNS"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.kube_secondary_dns.is_some()
    }

    fn has_programs(&self, context: &Context<'_>) -> bool {
        context
            .images
            .can_run(&[names::env::KUBE_SECONDARY_DNS_IMAGE, names::env::CORE_DNS_IMAGE])
    }

    fn render(&self, context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        let mut objects = context.namespace_object()?;
        objects.extend(context.objects(
            "kube_secondary_dns/objects.yaml",
            include_str!("kube_secondary_dns/objects.yaml"),
        )?);
        let settings = context.spec.kube_secondary_dns.clone().unwrap_or_default();
        for object in &mut objects {
            if object.kind() == "ConfigMap" {
                object.set_data("DOMAIN", &settings.domain)?;
                object.set_data("NAME_SERVER_IP", &settings.name_server_ip)?;
            }
            if object.has_pods() {
                complete(object, context, &settings)?;
            }
        }
        Ok(objects)
    }
}

fn complete(
    workload: &mut Manifest,
    context: &Context<'_>,
    settings: &KubeSecondaryDNS,
) -> Result<(), Error> {
    let monitor_image = context.images.of(names::env::KUBE_SECONDARY_DNS_IMAGE)?;
    let server_image = context.images.of(names::env::CORE_DNS_IMAGE)?;
    let mut pods = workload.pods()?;
    pods.place(&context.infra())?;
    if context.cluster.platform.scc {
        pods.without_user()?;
    }
    if monitor_image.is_native() {
        // The environment of a container stays what it was at its start: other settings need other pods.
        pods.annotate(
            SETTINGS,
            &Manifest::of("KubeSecondaryDNS", settings)?
                .into_value()
                .to_string(),
        )?;
    }
    let mut server = pods.container("secondary-dns")?;
    server.run(server_image, context.pull_policy());
    if server_image.is_native() {
        server.command(&["/weft", "secondary-dns", "serve"]);
    }
    let mut monitor = pods.container("status-monitor")?;
    monitor.run(monitor_image, context.pull_policy());
    if monitor_image.is_native() {
        monitor.command(&["/weft", "secondary-dns", "monitor"]);
    }
    Ok(())
}
