//! The objects of one part, for its tests.

use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use serde_json::Value;

use super::{Context, Part, Rendered, render};
use crate::{facts::Facts, names, settings::Settings};

/// Variables of the operator. Earlier ones take precedence.
pub(super) type Variables<'a> = [(&'a str, &'a str)];

/// The settings of an operator with these variables and an image of its own.
pub(super) fn settings(variables: &Variables<'_>) -> Settings {
    let own = [("NETWORK_OPERATOR_IMAGE", "registry.example/weft:v1")];
    let settings = Settings::read("openshift-network-operator", |name| {
        let mut all = variables.iter().chain(&own);
        let found = all.find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    settings.expect("settings")
}

/// Objects and failures of a part.
pub(super) fn rendered(part: Part, spec: &NetworkSpec, facts: &Facts, settings: &Settings) -> Rendered {
    let mut rendered = render(&Context {
        spec,
        diagnostics: &NetworkDiagnostics::default(),
        facts,
        settings,
    });
    rendered
        .objects
        .retain(|it| it["metadata"]["labels"][names::PART_LABEL] == part.label());
    rendered.failed.retain(|(failed, _)| *failed == part);
    rendered
}

/// Objects of a part that must not fail.
pub(super) fn objects(part: Part, spec: &NetworkSpec, facts: &Facts, settings: &Settings) -> Vec<Value> {
    let rendered = rendered(part, spec, facts, settings);
    assert_eq!(rendered.failed, []);
    rendered.objects
}

/// Kind and name of each object.
pub(super) fn titles<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let title = |it: &Value| format!("{} {}", text(&it["kind"]), text(&it["metadata"]["name"]));
    objects.into_iter().map(title).collect()
}
