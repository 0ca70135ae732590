//! Secondary DNS: addresses of virtual machines on secondary networks (operands §7).

use api::network_addons::{KubeSecondaryDNS, KubeSecondaryDNSService, KubeSecondaryDNSServiceType};
use serde_json::{Value, json};

use super::Context;
use crate::{
    images::Image,
    manifest::{Error, Manifest},
    names,
};

/// Annotation of the pods with the settings that they were started with.
const SETTINGS: &str = "networkaddonsoperator.network.kubevirt.io/secondary-dns-settings";

/// Port of the name server in its pods.
const PORT: u16 = 5353;
/// Pods of our own programs.
const REPLICAS: u8 = 2;

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let images = Containers::of(context)?;
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
        if object.kind() == "NetworkPolicy" && images.server.is_native() {
            object.replace("/spec/ingress/0/ports", json!([port("UDP"), port("TCP")]))?;
        }
        if object.has_pods() {
            complete(object, context, images, &settings)?;
        }
    }
    if images.are_native() {
        objects.extend(context.objects(
            "kube_secondary_dns/native-budget.yaml",
            include_str!("kube_secondary_dns/native-budget.yaml"),
        )?);
    }
    if let Some(wanted) = &settings.service {
        let service = include_str!("kube_secondary_dns/service.yaml");
        for mut service in context.objects("kube_secondary_dns/service.yaml", service)? {
            expose(&mut service, wanted)?;
            objects.push(service);
        }
    }
    Ok(objects)
}

/// Images of both containers.
#[derive(Clone, Copy)]
struct Containers<'a> {
    monitor: Image<'a>,
    server: Image<'a>,
}

impl<'a> Containers<'a> {
    fn of(context: &Context<'a>) -> Result<Self, Error> {
        Ok(Self {
            monitor: context.images.of(names::env::KUBE_SECONDARY_DNS_IMAGE)?,
            server: context.images.of(names::env::CORE_DNS_IMAGE)?,
        })
    }

    fn are_native(self) -> bool {
        self.monitor.is_native() && self.server.is_native()
    }
}

fn port(protocol: &str) -> Value {
    json!({ "protocol": protocol, "port": PORT })
}

fn complete(
    workload: &mut Manifest,
    context: &Context<'_>,
    images: Containers<'_>,
    settings: &KubeSecondaryDNS,
) -> Result<(), Error> {
    if images.are_native() {
        // One goes on while the node of the other is drained.
        workload.set_spec("replicas", json!(REPLICAS))?;
    }
    let mut pods = workload.pods()?;
    pods.place(&context.infra())?;
    if context.cluster.platform.scc {
        pods.without_user()?;
    }
    if images.are_native() {
        pods.set("topologySpreadConstraints", spread())?;
    }
    if images.monitor.is_native() {
        // The environment of a container stays what it was at its start: other settings need other pods.
        let started_with = KubeSecondaryDNS {
            service: None,
            ..settings.clone()
        };
        let started_with = Manifest::of("KubeSecondaryDNS", &started_with)?;
        pods.annotate(SETTINGS, &started_with.into_value().to_string())?;
    }
    let mut server = pods.container("secondary-dns")?;
    server.run(images.server, context.pull_policy());
    if images.server.is_native() {
        server
            .command(&["/weft", "secondary-dns", "serve"])
            .add_port(json!({ "name": "dns-tcp", "containerPort": PORT, "protocol": "TCP" }))?
            .eager_readiness()
            .read_only_root()?;
    }
    let mut monitor = pods.container("status-monitor")?;
    monitor.run(images.monitor, context.pull_policy());
    if images.monitor.is_native() {
        monitor
            .command(&["/weft", "secondary-dns", "monitor"])
            .eager_readiness()
            .read_only_root()?;
    }
    Ok(())
}

/// On different nodes where there are some.
fn spread() -> Value {
    json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "k8s-app": "secondary-dns" } },
    }])
}

fn expose(service: &mut Manifest, wanted: &KubeSecondaryDNSService) -> Result<(), Error> {
    let kind = wanted.kind.unwrap_or(KubeSecondaryDNSServiceType::ClusterIP);
    service.set_spec("type", json!(kind))?;
    let is_on_nodes = kind != KubeSecondaryDNSServiceType::ClusterIP;
    if let Some(number) = wanted.node_port.filter(|_| is_on_nodes) {
        let port = |name: &str, protocol: &str| json!({ "name": name, "port": 53, "protocol": protocol, "targetPort": PORT, "nodePort": number });
        service.set_spec("ports", json!([port("dns", "UDP"), port("dns-tcp", "TCP")]))?;
    }
    Ok(())
}
