//! Progress of the machine config operator with the operator's machine configurations (§11.2).
//!
//! ```text
//! rendered configurations ──┬─> recorded in the `ClusterOperator`, until no pool carries them
//! recorded configurations ──┤
//! pools ────────────────────┴─> Progressing, Degraded
//! ```

use std::collections::BTreeSet;

use kube_kit::object;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::observed::{ROLE, is_carried_by, selects};
use crate::messages;

/// A machine configuration of the operator.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    /// Name of the object.
    pub name: String,
    /// Role of the nodes that need it.
    pub role: String,
}

/// Content of the annotation of the `ClusterOperator`, in upstream's format.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct Recorded {
    /// Upstream writes `null` for an empty list.
    rendered_machine_config: Option<BTreeSet<Config>>,
}

/// Reads the annotation. A malformed one counts as empty.
pub fn read(annotation: Option<&str>) -> BTreeSet<Config> {
    let recorded: Recorded = annotation
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    recorded.rendered_machine_config.unwrap_or_default()
}

/// Text of the annotation.
pub fn written(configs: &BTreeSet<Config>) -> String {
    let recorded = Recorded {
        rendered_machine_config: Some(configs.clone()),
    };
    serde_json::to_string(&recorded).unwrap_or_default()
}

/// The machine configurations among these objects.
pub fn rendered(objects: &[Value]) -> BTreeSet<Config> {
    let config = |object: &Value| {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &object["metadata"];
        Some(Config {
            name: text(&metadata["name"])?,
            role: text(&metadata["labels"][ROLE])?,
        })
    };
    let configs = objects
        .iter()
        .filter(|it| it["kind"] == object::MACHINE_CONFIG.kind);
    configs.filter_map(config).collect()
}

/// Result of the comparison with the pools.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Assessment {
    /// Configurations to record: the rendered ones, and those that a pool may still carry.
    pub recorded: BTreeSet<Config>,
    /// Message about a degraded pool.
    pub degraded: Option<String>,
    /// Message about a pool that still has to add or to remove a configuration.
    pub progressing: Option<String>,
}

/// Compares the configurations with the pools of their roles. Before the first rendering, all recorded
/// configurations count as rendered.
///
/// A paused pool makes no progress until a user resumes it, so that it does not count as progressing. It may be
/// degraded.
pub fn assess(
    recorded: &BTreeSet<Config>,
    rendered: Option<&BTreeSet<Config>>,
    pools: &[&Value],
) -> Assessment {
    let mut found = Assessment::default();
    for config in recorded.iter().chain(rendered.into_iter().flatten()) {
        let is_wanted = rendered.is_none_or(|rendered| rendered.contains(config));
        let pools = || pools.iter().filter(|pool| selects(pool, &config.role));
        if let Some(pool) = pools().find(|pool| is_degraded(pool)) {
            found
                .degraded
                .get_or_insert_with(|| messages::degraded_pool(name(pool)));
        }
        let mut active = pools().filter(|pool| pool["spec"]["paused"] != true).peekable();
        let has_active = active.peek().is_some();
        let late = active.find(|pool| is_carried_by(pool, &config.name) != is_wanted);
        if let Some(pool) = late {
            found
                .progressing
                .get_or_insert_with(|| messages::processing_pool(name(pool), &config.name));
        }
        if is_wanted || late.is_some() || !has_active {
            found.recorded.insert(config.clone());
        }
    }
    found
}

fn name(pool: &Value) -> &str {
    pool["metadata"]["name"].as_str().unwrap_or_default()
}

fn is_degraded(pool: &Value) -> bool {
    let conditions = pool["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|it| it["type"] == "Degraded" && it["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(role: &str) -> Config {
        Config {
            name: format!("80-ipsec-{role}-extensions"),
            role: role.to_owned(),
        }
    }

    fn both() -> BTreeSet<Config> {
        [config("master"), config("worker")].into()
    }

    fn pool(role: &str, sources: &[&Config]) -> Value {
        let sources: Vec<Value> = sources.iter().map(|it| json!({ "name": it.name })).collect();
        json!({
            "metadata": { "name": role },
            "spec": { "machineConfigSelector": { "matchLabels": { ROLE: role } } },
            "status": { "configuration": { "source": sources } },
        })
    }

    fn processing(pool: &str, role: &str) -> String {
        format!("{pool} machine config pool is still processing 80-ipsec-{role}-extensions machine config")
    }

    // cluster-network#176
    #[test]
    fn pools_without_a_rendered_configuration_are_in_progress() {
        let (master, worker) = (config("master"), config("worker"));
        let progress = |pools: &[Value]| {
            let found = assess(&BTreeSet::new(), Some(&both()), &pools.iter().collect::<Vec<_>>());
            assert_eq!(found.recorded, both());
            assert_eq!(found.degraded, None);
            found.progressing
        };
        let ready = pool("master", &[&master]);
        assert_eq!(
            progress(&[pool("master", &[]), pool("worker", &[])]),
            Some(processing("master", "master"))
        );
        assert_eq!(
            progress(&[ready.clone(), pool("worker", &[])]),
            Some(processing("worker", "worker"))
        );
        assert_eq!(progress(&[ready.clone(), pool("worker", &[&worker])]), None);
        // A custom pool of workers.
        let mut custom = pool("infra", &[]);
        custom["spec"]["machineConfigSelector"] = json!({ "matchExpressions": [
            { "key": ROLE, "operator": "In", "values": ["worker", "infra"] },
        ] });
        let custom = [ready.clone(), pool("worker", &[&worker]), custom];
        assert_eq!(progress(&custom), Some(processing("infra", "worker")));
        // A paused pool processes nothing.
        let mut paused = pool("worker", &[]);
        paused["spec"]["paused"] = json!(true);
        assert_eq!(progress(&[ready, paused]), None);
        assert_eq!(progress(&[]), None);
    }

    // cluster-network#177
    #[test]
    fn removed_configuration_is_recorded_until_no_pool_has_it() {
        let (master, worker) = (config("master"), config("worker"));
        let none = BTreeSet::new();
        let removed = |recorded: &BTreeSet<Config>, pools: &[Value]| {
            let found = assess(recorded, Some(&none), &pools.iter().collect::<Vec<_>>());
            (found.recorded, found.progressing)
        };
        let with = [pool("master", &[&master]), pool("worker", &[&worker])];
        assert_eq!(
            removed(&both(), &with),
            (both(), Some(processing("master", "master")))
        );
        let half = [pool("master", &[]), pool("worker", &[&worker])];
        let left: BTreeSet<Config> = [worker.clone()].into();
        assert_eq!(
            removed(&both(), &half),
            (left.clone(), Some(processing("worker", "worker")))
        );
        // A paused pool keeps the configuration, which stays recorded.
        let mut paused = half.clone();
        paused[1]["spec"]["paused"] = json!(true);
        assert_eq!(removed(&left, &paused), (left.clone(), None));
        let without = [pool("master", &[]), pool("worker", &[])];
        assert_eq!(removed(&left, &without), (BTreeSet::new(), None));
        // After a restart, nothing is removed before the first rendering.
        let found = assess(&both(), None, &with.iter().collect::<Vec<_>>());
        assert_eq!((found.recorded, found.progressing), (both(), None));
    }

    // cluster-network#178
    #[test]
    fn degraded_pool_of_a_role_counts_even_if_it_is_paused() {
        let (rendered, unconcerned) = ([config("master")].into(), BTreeSet::new());
        let mut pool = pool("master", &[&config("master")]);
        pool["status"]["conditions"] = json!([
            { "type": "NodeDegraded", "status": "True" }, { "type": "Degraded", "status": "False" },
        ]);
        let degraded = |rendered: &BTreeSet<Config>, pool: &Value| {
            assess(&unconcerned, Some(rendered), &[pool]).degraded
        };
        assert_eq!(degraded(&rendered, &pool), None);
        pool["status"]["conditions"][1]["status"] = json!("True");
        pool["spec"]["paused"] = json!(true);
        let text = "master machine config pool in degraded state";
        assert_eq!(degraded(&rendered, &pool).as_deref(), Some(text));
        assert_eq!(degraded(&unconcerned, &pool), None);
    }

    // cluster-network#177
    #[test]
    fn record_has_the_format_of_upstream() {
        let text = r#"{"RenderedMachineConfig":[{"Name":"80-ipsec-master-extensions","Role":"master"}]}"#;
        let configs = [config("master")].into();
        assert_eq!(written(&configs), text);
        assert_eq!(read(Some(text)), configs);
        for empty in [Some(r#"{"RenderedMachineConfig":null}"#), Some("no"), None] {
            assert!(read(empty).is_empty(), "{empty:?}");
        }
    }

    #[test]
    fn rendered_configurations_have_a_role() {
        let object = |kind: &str, role: &str| {
            let metadata = json!({ "name": "80-ipsec-master-extensions", "labels": { ROLE: role } });
            json!({ "kind": kind, "metadata": metadata })
        };
        let objects = [object("MachineConfig", "master"), object("ConfigMap", "worker")];
        assert_eq!(rendered(&objects), [config("master")].into());
    }
}
