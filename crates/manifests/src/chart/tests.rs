//! Tests of the chart's files; the api tier tests them with Helm.

use super::*;

fn install() -> Install<'static> {
    Install {
        image: "registry.example:5000/o/weft:v1@sha256:0123",
        namespace: "addons",
        version: "1.2.3",
        pull_policy: "Always",
    }
}

fn file(name: &str) -> String {
    let files = files(&install(), &Choice::default()).expect("a chart");
    let (_, content) = files.into_iter().find(|(it, _)| it == name).expect("the file");
    content
}

#[test]
fn chart_has_no_placeholder_left() {
    for (name, content) in files(&install(), &Choice::default()).expect("a chart") {
        let words = VARIABLES.map(|it| it.1).into_iter().chain(WORDS.map(|it| it.0));
        let words = words.chain([BLOCK, "chartRepository", "chartTag", "chartDigest"]);
        let images = OPERANDS.map(|operand| placeholder(&operand));
        for word in words.map(str::to_owned).chain(images) {
            assert!(!content.contains(&word), "{word} in {name}");
        }
    }
}

#[test]
fn values_name_image_of_release() {
    let values: Value = serde_saphyr::from_str(&file("chart/values.yaml")).expect("YAML");
    assert_eq!(
        values["image"],
        json!({
            "repository": "registry.example:5000/o/weft", "tag": "v1", "digest": "sha256:0123", "pullPolicy": "Always",
        })
    );
    assert_eq!(values["operandImages"]["ovs"], "");
    let choice = Choice {
        images: [(env::OVS_CNI_IMAGE, "r.example/ovs:1".to_owned())].into(),
        ..Choice::default()
    };
    let chosen = files(&install(), &choice).expect("a chart");
    let (_, chosen) = chosen
        .iter()
        .find(|(name, _)| name == "chart/values.yaml")
        .expect("values");
    let chosen: Value = serde_saphyr::from_str(chosen).expect("YAML");
    assert_eq!(chosen["operandImages"]["ovs"], "r.example/ovs:1");
    let chart: Value = serde_saphyr::from_str(&file("chart/Chart.yaml")).expect("YAML");
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&json!("1.2.3"), &json!("1.2.3"))
    );
}

#[test]
fn schema_has_every_value_and_every_field_of_configuration() {
    let schema: Value = serde_json::from_str(&file("chart/values.schema.json")).expect("JSON");
    let values: Value = serde_saphyr::from_str(&file("chart/values.yaml")).expect("YAML");
    known(&values, &schema, "");
    let fields = &schema["properties"]["networkAddonsConfig"]["properties"]["spec"]["properties"];
    assert_eq!(fields["multus"], json!({ "type": "object" }));
    assert_eq!(fields["imagePullPolicy"], json!({ "type": "string" }));
}

fn known(value: &Value, schema: &Value, path: &str) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        let schema = &schema["properties"][name];
        assert!(schema.is_object(), "{path}.{name} is not in the schema");
        known(inner, schema, &format!("{path}.{name}"));
    }
}

#[test]
fn reference_splits_repository_tag_and_digest() {
    for (image, parts) in [
        ("weft", ("weft", "", "")),
        ("localhost:5000/weft", ("localhost:5000/weft", "", "")),
        ("localhost:5000/weft:v1", ("localhost:5000/weft", "v1", "")),
        ("r.example/weft@sha256:01", ("r.example/weft", "", "sha256:01")),
        (
            "r.example/weft:v1@sha256:01",
            ("r.example/weft", "v1", "sha256:01"),
        ),
    ] {
        assert_eq!(reference(image), parts, "{image}");
    }
}
