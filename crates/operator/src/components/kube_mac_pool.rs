//! The MAC pool: addresses of virtual machines and pods without collisions (operands §4).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::{
    cluster_facts::Cluster,
    mac,
    manifest::{Error, Manifest},
};

/// See the module.
pub struct KubeMacPool;

impl Component for KubeMacPool {
    fn name(&self) -> &'static str {
        "kubeMacPool"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.kube_mac_pool.is_some()
    }

    fn validate(&self, spec: &NetworkAddonsConfigSpec, _cluster: &Cluster) -> Vec<String> {
        let pool = spec.kube_mac_pool.as_ref();
        pool.and_then(|pool| mac::check_range(&pool.range_start, &pool.range_end))
            .into_iter()
            .collect()
    }

    fn defaults(
        &self,
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
        let before = previous
            .and_then(|spec| spec.kube_mac_pool.as_ref())
            .filter(|pool| !pool.range_start.is_empty() && !pool.range_end.is_empty());
        (pool.range_start, pool.range_end) = match before {
            Some(pool) => (pool.range_start.clone(), pool.range_end.clone()),
            None => mac::range_with_prefix(random),
        };
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
