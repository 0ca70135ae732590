//! Settings that belong to no component: pull policy, certificates, placement, TLS (operator §5).

use std::collections::BTreeMap;

use api::{
    network_addons::{NetworkAddonsConfigSpec, PlacementConfiguration, SelfSignConfiguration},
    placement::{
        Affinity, NodeAffinity, NodeSelectorTerm, Placement, PreferredSchedulingTerm, Requirement, Toleration,
    },
};

use kube_kit::duration::GoDuration;
use webhook::certificates::Intervals;

use crate::{messages::specification, tls::TlsSettings};

pub(crate) fn validate_pull_policy(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    match spec.image_pull_policy.as_str() {
        "" | "Always" | "Never" | "IfNotPresent" => Vec::new(),
        other => vec![specification::pull_policy(other)],
    }
}

/// Checks that the change from the previously applied specification is allowed: the pull policy must stay the same.
pub(crate) fn change_safe(previous: &NetworkAddonsConfigSpec, spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    if previous.image_pull_policy.is_empty() || previous.image_pull_policy == spec.image_pull_policy {
        Vec::new()
    } else {
        vec!["cannot modify ImagePullPolicy configuration once components were deployed".into()]
    }
}

/// Intervals of certificates, in the order of validation.
pub(crate) const INTERVALS: [&str; 4] = [CA_ROTATE, "caOverlapInterval", CERT_ROTATE, "certOverlapInterval"];
const CA_ROTATE: &str = "caRotateInterval";
const CERT_ROTATE: &str = "certRotateInterval";

/// Pairs of intervals. The first must not exceed the second. The order is the order of validation.
pub(crate) const INTERVAL_BOUNDS: [(&str, &str); 3] = [
    (INTERVALS[1], CA_ROTATE),
    (CERT_ROTATE, CA_ROTATE),
    (INTERVALS[3], CERT_ROTATE),
];

/// Checks the intervals of certificates in three groups: presence, syntax, bounds. Stops after the first group with
/// errors.
pub(crate) fn validate_self_sign(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    let Some(settings) = &spec.self_sign_configuration else {
        return Vec::new();
    };
    let texts = [
        &settings.ca_rotate_interval,
        &settings.ca_overlap_interval,
        &settings.cert_rotate_interval,
        &settings.cert_overlap_interval,
    ];
    let members = || INTERVALS.into_iter().zip(texts);
    let missing: Vec<_> = members()
        .filter(|(_, text)| text.is_empty())
        .map(|(name, _)| specification::interval_missing(name))
        .collect();
    if !missing.is_empty() {
        return missing;
    }
    let parsed: Result<BTreeMap<_, _>, _> = members()
        .map(|(name, text)| Ok::<_, String>((name, interval(name, text)?)))
        .collect();
    let Ok(parsed) = parsed else {
        return members()
            .filter_map(|(name, text)| interval(name, text).err())
            .collect();
    };
    let bounds = INTERVAL_BOUNDS.into_iter();
    let compared =
        bounds.filter_map(|(small, big)| Some(((small, *parsed.get(small)?), (big, *parsed.get(big)?))));
    compared
        .filter(|((_, short), (_, long))| short > long)
        .map(|((small, short), (big, long))| specification::interval_too_long(small, short, big, long))
        .collect()
}

fn interval(name: &str, text: &str) -> Result<GoDuration, String> {
    let parsed = GoDuration::parse(text).map_err(|error| specification::interval_unreadable(name, error))?;
    if parsed.is_positive() {
        Ok(parsed)
    } else {
        Err(specification::interval_not_positive(name))
    }
}

pub(crate) fn validate_tls(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    TlsSettings::of(spec.tls_security_profile.as_ref())
        .err()
        .into_iter()
        .collect()
}

/// Fills in the pull policy, the intervals of certificates and the placement.
pub(crate) fn defaults(spec: &mut NetworkAddonsConfigSpec, previous: Option<&NetworkAddonsConfigSpec>) {
    if spec.image_pull_policy.is_empty() {
        spec.image_pull_policy = previous
            .map(|spec| spec.image_pull_policy.clone())
            .filter(|policy| !policy.is_empty())
            .unwrap_or_else(|| "IfNotPresent".to_owned());
    }
    if spec.self_sign_configuration.is_none() {
        // An earlier operator may have applied invalid intervals.
        let valid = previous.filter(|previous| validate_self_sign(previous).is_empty());
        let before = valid.and_then(|previous| previous.self_sign_configuration.clone());
        spec.self_sign_configuration = before.or_else(|| Some(default_intervals()));
    }
    let placement = spec
        .placement_configuration
        .get_or_insert_with(PlacementConfiguration::default);
    placement.infra.get_or_insert_with(infra);
    placement.workloads.get_or_insert_with(workloads);
}

/// The intervals of certificates. The default replaces an invalid interval, which another version may have applied.
pub(crate) fn intervals(spec: &NetworkAddonsConfigSpec) -> Intervals {
    let default = default_intervals();
    let settings = spec.self_sign_configuration.as_ref().unwrap_or(&default);
    let interval = |text: &str, default: &str| {
        let parse = |text| GoDuration::parse(text).ok().filter(|length| length.is_positive());
        let found = parse(text).or_else(|| parse(default));
        found.map(GoDuration::length).unwrap_or_default()
    };
    Intervals {
        ca_rotate: interval(&settings.ca_rotate_interval, &default.ca_rotate_interval),
        ca_overlap: interval(&settings.ca_overlap_interval, &default.ca_overlap_interval),
        cert_rotate: interval(&settings.cert_rotate_interval, &default.cert_rotate_interval),
        cert_overlap: interval(&settings.cert_overlap_interval, &default.cert_overlap_interval),
    }
}

fn default_intervals() -> SelfSignConfiguration {
    SelfSignConfiguration {
        ca_rotate_interval: "48h0m0s".into(),
        ca_overlap_interval: "24h0m0s".into(),
        cert_rotate_interval: "24h0m0s".into(),
        cert_overlap_interval: "12h0m0s".into(),
    }
}

/// Prefers control plane nodes.
fn infra() -> Placement {
    let prefer = |weight, key: &str| PreferredSchedulingTerm {
        preference: NodeSelectorTerm {
            match_expressions: vec![Requirement {
                key: key.to_owned(),
                operator: "Exists".to_owned(),
                values: Vec::new(),
            }],
            match_fields: Vec::new(),
        },
        weight,
    };
    let node_affinity = NodeAffinity {
        preferred_during_scheduling_ignored_during_execution: vec![
            prefer(10, "node-role.kubernetes.io/control-plane"),
            prefer(1, "node-role.kubernetes.io/master"),
        ],
        required_during_scheduling_ignored_during_execution: None,
    };
    Placement {
        affinity: Affinity {
            node_affinity: Some(node_affinity),
            ..Affinity::default()
        },
        ..Placement::default()
    }
}

/// The default node selector of workloads: all Linux nodes.
pub(crate) fn linux_nodes() -> BTreeMap<String, String> {
    [("kubernetes.io/os".to_owned(), "linux".to_owned())].into()
}

/// All Linux nodes, cordoned ones included.
fn workloads() -> Placement {
    Placement {
        node_selector: linux_nodes(),
        tolerations: vec![Toleration {
            key: "node.kubernetes.io/unschedulable".into(),
            operator: "Exists".into(),
            effect: "NoSchedule".into(),
            ..Toleration::default()
        }],
        ..Placement::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn invalid_intervals_become_defaults() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let usual = intervals(&NetworkAddonsConfigSpec::default());
        let found = [
            usual.ca_rotate,
            usual.ca_overlap,
            usual.cert_rotate,
            usual.cert_overlap,
        ];
        assert_eq!(found, [48, 24, 24, 12].map(hours));
        let settings = SelfSignConfiguration {
            ca_rotate_interval: "90s".into(),
            ca_overlap_interval: "-1h".into(),
            cert_rotate_interval: "soon".into(),
            cert_overlap_interval: String::new(),
        };
        let odd = intervals(&NetworkAddonsConfigSpec {
            self_sign_configuration: Some(settings),
            ..NetworkAddonsConfigSpec::default()
        });
        let found = [odd.ca_rotate, odd.ca_overlap, odd.cert_rotate, odd.cert_overlap];
        assert_eq!(found, [Duration::from_secs(90), hours(24), hours(24), hours(12)]);
    }
}
