//! The MAC pool: unique addresses of virtual machines and pods (operands §4).

use api::network_addons::{KubeMacPool as Range, NetworkAddonsConfigSpec};

use super::{Context, monitoring, replace_roles};
use crate::{
    cluster_facts::{Cluster, NodeState, Platform},
    images::Images,
    mac,
    manifest::{Error, Manifest},
    names,
    settings::Prometheus,
};

/// The Deployment that answers webhooks. Another Deployment renews its certificates.
pub const MANAGER: &str = "kubemacpool-mac-controller-manager";

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = monitoring::objects(
        context,
        "kube_mac_pool/monitoring.yaml",
        include_str!("kube_mac_pool/monitoring.yaml"),
    )?;
    objects.extend(context.namespace_object()?);
    let mut base = context.objects("kube_mac_pool/base.yaml", include_str!("kube_mac_pool/base.yaml"))?;
    if let Some(pool) = &context.spec.kube_mac_pool {
        for ranges in base.iter_mut().filter(|object| object.kind() == "ConfigMap") {
            ranges.set_data("RANGE_START", &pool.range_start)?;
            ranges.set_data("RANGE_END", &pool.range_end)?;
        }
    }
    if context.images.of(names::env::KUBEMACPOOL_IMAGE)?.is_native() {
        let narrow = include_str!("kube_mac_pool/native-role.yaml");
        replace_roles(
            &mut base,
            context.objects("kube_mac_pool/native-role.yaml", narrow)?,
        );
        // The new rights are applied before the replacement of the wider role.
        objects.extend(context.objects(
            "kube_mac_pool/native-namespace-role.yaml",
            include_str!("kube_mac_pool/native-namespace-role.yaml"),
        )?);
    }
    objects.extend(base);
    let mut workloads = context.objects(
        "kube_mac_pool/workloads.yaml",
        include_str!("kube_mac_pool/workloads.yaml"),
    )?;
    for workload in workloads.iter_mut().filter(|object| object.has_pods()) {
        complete(workload, context)?;
    }
    objects.extend(workloads);
    objects.extend(context.objects(
        "kube_mac_pool/webhook.yaml",
        include_str!("kube_mac_pool/webhook.yaml"),
    )?);
    Ok(objects)
}

/// The objects of a pool with this range in a cluster with a monitoring stack, in the order in which they are applied.
/// All containers have the operator's own `image`.
pub fn objects(
    range: Range,
    image: &str,
    pull_policy: &str,
    namespace: &str,
) -> Result<Vec<Manifest>, Error> {
    let spec = NetworkAddonsConfigSpec {
        kube_mac_pool: Some(range),
        image_pull_policy: pull_policy.to_owned(),
        ..NetworkAddonsConfigSpec::default()
    };
    let cluster = Cluster {
        platform: Platform {
            monitoring: true,
            ..Platform::default()
        },
        openshift_network: None,
    };
    render(&Context {
        spec: &spec,
        cluster: &cluster,
        images: &Images::default().with_own(Some(image.to_owned())),
        namespace,
        prometheus: &Prometheus::default(),
        node_state: &NodeState::default(),
    })
}

/// Checks the range of the pool.
pub(crate) fn validate(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    let pool = spec.kube_mac_pool.as_ref();
    pool.and_then(|pool| mac::check_range(&pool.range_start, &pool.range_end))
        .into_iter()
        .collect()
}

/// Keeps the range of the pool, or creates a range from two random bytes.
pub(crate) fn defaults(
    spec: &mut NetworkAddonsConfigSpec,
    previous: Option<&NetworkAddonsConfigSpec>,
    random: [u8; 2],
) {
    let Some(pool) = &mut spec.kube_mac_pool else {
        return;
    };
    if !pool.range_start.is_empty() || !pool.range_end.is_empty() {
        return;
    }
    (pool.range_start, pool.range_end) = match kept_range(previous) {
        Some(pool) => (pool.range_start.clone(), pool.range_end.clone()),
        None => mac::range_with_prefix(random),
    };
}

/// The range of a previous specification, if it is valid: an earlier operator may have applied another one.
pub(crate) fn kept_range(previous: Option<&NetworkAddonsConfigSpec>) -> Option<&Range> {
    let pool = previous?.kube_mac_pool.as_ref()?;
    let is_set = !pool.range_start.is_empty();
    (is_set && mac::check_range(&pool.range_start, &pool.range_end).is_none()).then_some(pool)
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::KUBEMACPOOL_IMAGE)?;
    let serves = workload.name() == MANAGER;
    let mut pods = workload.pods()?;
    pods.place(&context.infra())?;
    if context.cluster.platform.scc {
        pods.without_user()?;
    }
    let mut manager = pods.container("manager")?;
    manager.run(image, context.pull_policy());
    if image.is_native() {
        manager
            .command(&["/weft", "kubemacpool"])
            .eager_readiness()
            .read_only_root()?;
    }
    if serves {
        manager.add_arguments(&context.tls_arguments());
    } else if let Some(intervals) = &context.spec.self_sign_configuration {
        manager
            .variable("CA_ROTATE_INTERVAL", &intervals.ca_rotate_interval)?
            .variable("CA_OVERLAP_INTERVAL", &intervals.ca_overlap_interval)?
            .variable("CERT_ROTATE_INTERVAL", &intervals.cert_rotate_interval)?
            .variable("CERT_OVERLAP_INTERVAL", &intervals.cert_overlap_interval)?;
    }
    Ok(())
}
