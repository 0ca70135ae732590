//! Secondary DNS: addresses of virtual machines on secondary networks (operands §7).

use api::network_addons::{
    KubeSecondaryDNS, KubeSecondaryDNSService, KubeSecondaryDNSServiceType, NetworkAddonsConfigSpec,
};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::Context;
use crate::{
    images::Image,
    manifest::{Error, Manifest, Pods},
    messages::specification,
    names,
};

/// Annotation of the pods with the settings at their start.
const SETTINGS: &str = "networkaddonsoperator.network.kubevirt.io/secondary-dns-settings";

/// The container of the name server.
const SERVER: &str = "secondary-dns";
/// Port of the name server in its pods.
const PORT: u16 = 5353;
/// Maximum TTL of answers, in seconds.
pub(crate) const LONGEST_TTL: i32 = 86_400;
/// Settings that only Weft's monitor supports: variables, and keys of the ConfigMap.
const TTL: &str = "KSD_TTL";
const ALLOWED_PREFIXES: &str = "KSD_ALLOWED_PREFIXES";
/// Mount path of the ConfigMap whose changes the monitor follows, and its volume.
const FOLLOWED: &str = "/etc/secondary-dns";
const FOLLOWED_VOLUME: &str = "settings";
/// Number of pods with Weft's programs.
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
            if images.monitor.is_native() && settings.follow_settings {
                for (key, value) in own_settings(&settings) {
                    object.add_data(key, &value)?;
                }
            }
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

/// Checks the TTL of answers and the prefixes.
pub(crate) fn validate(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    let Some(settings) = &spec.kube_secondary_dns else {
        return Vec::new();
    };
    let ttl = settings.ttl.filter(|ttl| !(0..=LONGEST_TTL).contains(ttl));
    let is_wrong = |prefix: &&String| prefix.trim().parse::<IpNet>().is_err();
    let prefixes = settings.allowed_prefixes.iter().filter(is_wrong);
    ttl.map(specification::dns_ttl)
        .into_iter()
        .chain(prefixes.map(specification::dns_prefix))
        .collect()
}

/// Settings that only Weft's monitor supports, with their values.
fn own_settings(settings: &KubeSecondaryDNS) -> Vec<(&'static str, String)> {
    let ttl = settings.ttl.map(|ttl| (TTL, ttl.to_string()));
    let prefixes = (!settings.allowed_prefixes.is_empty())
        .then(|| (ALLOWED_PREFIXES, settings.allowed_prefixes.join(",")));
    ttl.into_iter().chain(prefixes).collect()
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
        // One pod continues while the node of the other is drained.
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
        // The environment of a running container never changes: other settings need other pods.
        let started_with = if settings.follow_settings {
            KubeSecondaryDNS {
                single_process: settings.single_process,
                follow_settings: true,
                ..KubeSecondaryDNS::default()
            }
        } else {
            KubeSecondaryDNS {
                service: None,
                ..settings.clone()
            }
        };
        let started_with = Manifest::of("KubeSecondaryDNS", &started_with)?;
        pods.annotate(SETTINGS, &started_with.into_value().to_string())?;
    }
    let is_single = settings.single_process && images.are_native();
    if is_single {
        pods.without_container(SERVER)?;
        pods.set("volumes", json!([]))?;
    }
    if settings.follow_settings && images.monitor.is_native() {
        let map =
            json!({ "name": FOLLOWED_VOLUME, "configMap": { "name": "secondary-dns", "defaultMode": 420 } });
        pods.add_volume(map)?;
    } else if is_single {
        pods.without("volumes")?;
    }
    complete_monitor(&mut pods, context, images, settings)?;
    if is_single {
        return Ok(());
    }
    let mut server = pods.container(SERVER)?;
    server.run(images.server, context.pull_policy());
    if images.server.is_native() {
        server
            .command(&["/weft", "secondary-dns", "serve"])
            .add_port(json!({ "name": "dns-tcp", "containerPort": PORT, "protocol": "TCP" }))?
            .eager_readiness()
            .read_only_root()?;
    }
    Ok(())
}

fn complete_monitor(
    pods: &mut Pods<'_>,
    context: &Context<'_>,
    images: Containers<'_>,
    settings: &KubeSecondaryDNS,
) -> Result<(), Error> {
    let mut monitor = pods.container("status-monitor")?;
    monitor.run(images.monitor, context.pull_policy());
    if !images.monitor.is_native() {
        return Ok(());
    }
    let is_single = settings.single_process && images.are_native();
    let mode = if is_single { "all-in-one" } else { "monitor" };
    monitor
        .command(&["/weft", "secondary-dns", mode])
        .eager_readiness()
        .read_only_root()?;
    if is_single {
        // The server answers from memory.
        monitor.without("volumeMounts");
        for (name, protocol) in [("dns", "UDP"), ("dns-tcp", "TCP")] {
            monitor.add_port(json!({ "name": name, "containerPort": PORT, "protocol": protocol }))?;
        }
    }
    if settings.follow_settings {
        monitor.add_arguments(&["--config".to_owned(), FOLLOWED.to_owned()]);
        monitor.mount_read_only(FOLLOWED_VOLUME, FOLLOWED);
    } else {
        for (name, value) in own_settings(settings) {
            monitor.add_variable(name, &value)?;
        }
    }
    Ok(())
}

/// Prefers different nodes for the pods.
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
