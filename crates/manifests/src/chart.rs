//! The Helm chart: the generated objects with chart values for the choices of users (operator §13.4).
//!
//! ```text
//! parts with placeholders in place of values ──> YAML ──> each placeholder becomes a template expression
//! ```

use serde_json::{Value, json};

use super::{Choice, Error, File, Install, documents, environment_value, in_order, parts};
use operator::{
    images::{OPERANDS, Operand},
    manifest::Manifest,
    names::{self, env},
};

/// Variables with a chart value: the variable, its placeholder, and the template expression.
const VARIABLES: [(&str, &str, &str); 4] = [
    (
        env::MONITORING_NAMESPACE,
        "chartMonitoringNamespace",
        "{{ .Values.monitoring.namespace | quote }}",
    ),
    (
        env::MONITORING_SERVICE_ACCOUNT,
        "chartMonitoringAccount",
        "{{ .Values.monitoring.serviceAccount | quote }}",
    ),
    (
        env::RUNBOOK_URL_TEMPLATE,
        "chartRunbooks",
        "{{ .Values.monitoring.runbookUrlTemplate | quote }}",
    ),
    (
        env::LOG_LEVEL,
        "chartLogLevel",
        "{{ include \"weft.logLevel\" . | quote }}",
    ),
];

/// Other placeholders with their template expressions.
const WORDS: [(&str, &str); 5] = [
    ("chartNamespace", "{{ .Release.Namespace }}"),
    ("chartImage", "{{ include \"weft.image\" . | quote }}"),
    ("chartPullPolicy", "{{ .Values.image.pullPolicy }}"),
    ("chartVersion", "{{ .Chart.AppVersion | quote }}"),
    (
        "chartLabelVersion",
        "{{ include \"weft.labelVersion\" . | quote }}",
    ),
];

/// Optional fields of the pod specification, by the path of the value.
const OPTIONAL: [(&str, &str); 4] = [
    ("imagePullSecrets", "imagePullSecrets"),
    ("nodeSelector", "placement.nodeSelector"),
    ("tolerations", "placement.tolerations"),
    ("affinity", "placement.affinity"),
];
/// Whether an image is chosen that needs more rights than Weft's.
const ESTABLISHED: &str = "include \"weft.establishedRights\" .";
/// Whether node state may be requested. Only the chart's own configuration is known to the chart.
const NODE_STATE: &str = "include \"weft.nodeState\" .";

/// Placeholder for the value of an optional field.
const BLOCK: &str = "chartBlock";

/// All files of the chart, below `chart/`.
pub(super) fn files(install: &Install<'_>, choice: &Choice) -> Result<Vec<File>, Error> {
    let file = |name: &str, content: String| (format!("chart/{name}"), content);
    let (repository, tag, digest) = reference(install.image);
    let words = [
        ("chartVersion", install.version),
        ("chartRepository", repository),
        ("chartTag", tag),
        ("chartDigest", digest),
        ("chartPullPolicy", install.pull_policy),
    ];
    let meaning = |word: &str| {
        let known = words.iter().find(|(it, _)| *it == word).map(|(_, value)| *value);
        let image = || {
            let image = choice.images.get(operand(word)?.variable);
            Some(image.map_or("", String::as_str))
        };
        Some(json!(known.or_else(image)?).to_string())
    };
    let filled = |text: &str| replaced(text, meaning);
    let definition = in_order("chart", &api::network_addons::crd()?)?;
    let admission = super::render_admission()?.into_iter();
    let admission = admission.map(|(name, content)| file(&format!("files/{name}"), content));
    let rest = vec![
        file("Chart.yaml", filled(include_str!("chart/Chart.yaml"))),
        file("values.yaml", filled(include_str!("chart/values.yaml"))),
        file("values.schema.json", schema()?),
        file("crds/network-addons-config.crd.yaml", definition),
        file(
            "templates/_helpers.tpl",
            include_str!("chart/_helpers.tpl").into(),
        ),
        file("templates/NOTES.txt", include_str!("chart/NOTES.txt").into()),
        file("templates/operator.yaml", operator()?),
        file(
            "templates/network-addons-config.yaml",
            include_str!("chart/network-addons-config.yaml").into(),
        ),
        file(
            "templates/admission-policy.yaml",
            include_str!("chart/admission-policy.yaml").into(),
        ),
    ];
    Ok(admission.chain(rest).collect())
}

/// The operator's objects as a template.
fn operator() -> Result<String, Error> {
    let install = Install {
        image: "chartImage",
        namespace: "chartNamespace",
        version: "chartVersion",
        pull_policy: "chartPullPolicy",
    };
    let choice = Choice {
        images: OPERANDS
            .map(|operand| (operand.variable, placeholder(&operand)))
            .into(),
        allow_multus: true,
    };
    let mut parts = parts(&install, &choice)?;
    let deployment = &mut parts.deployment;
    deployment.set_metadata(
        "annotations",
        json!({ api::names::VERSION_LABEL: "chartLabelVersion" }),
    )?;
    let mut pods = deployment.pods()?;
    let environment: Vec<Value> = super::environment(&install, &choice)
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| {
            let word = VARIABLES.iter().find(|(name, ..)| entry["name"] == *name);
            word.map_or_else(|| entry.clone(), |(name, word, _)| environment_value(name, word))
        })
        .collect();
    pods.container(names::OPERATOR)?.set("env", json!(environment));
    for (member, path) in OPTIONAL {
        let pointer = format!("{BLOCK}.{path}");
        add_to_pods(deployment, member, &pointer)?;
    }
    let always = documents("chart", &[parts.accounts, vec![parts.deployment]].concat())?;
    let upstream = documents("chart", &parts.upstream)?;
    let granted = documents("chart", &parts.granted)?;
    let yaml = [
        always,
        only_if(ESTABLISHED, &upstream),
        only_if(NODE_STATE, &granted),
    ]
    .concat();
    let words = replaced(&yaml, |word| {
        let image = operand(word).map(|it| format!("{{{{ .Values.operandImages.{} | quote }}}}", it.value));
        let variable = || {
            VARIABLES
                .iter()
                .find(|(_, it, _)| *it == word)
                .map(|it| it.2.to_owned())
        };
        let other = || WORDS.iter().find(|(it, _)| *it == word).map(|it| it.1.to_owned());
        image.or_else(variable).or_else(other)
    });
    Ok(words.lines().map(optional).collect())
}

/// Placeholder of an image in YAML: `chartOvs`.
fn placeholder(operand: &Operand) -> String {
    let (first, rest) = operand.value.split_at(1);
    format!("chart{}{rest}", first.to_ascii_uppercase())
}

/// The image of a placeholder.
fn operand(word: &str) -> Option<Operand> {
    OPERANDS.into_iter().find(|operand| placeholder(operand) == word)
}

/// Documents under a condition, after others.
fn only_if(condition: &str, documents: &str) -> String {
    format!("{{{{- if {condition} }}}}\n---\n{documents}{{{{- end }}}}\n")
}

fn add_to_pods(deployment: &mut Manifest, member: &str, value: &str) -> Result<(), Error> {
    let mut spec = deployment.value()["spec"]["template"]["spec"].clone();
    spec[member] = json!(value);
    Ok(deployment.replace("/spec/template/spec", spec)?)
}

/// Replaces the placeholders at the ends of lines.
fn replaced(yaml: &str, meaning: impl Fn(&str) -> Option<String>) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((rest, word)) => match meaning(word) {
            Some(value) => format!("{rest} {value}\n"),
            None => format!("{line}\n"),
        },
        None => format!("{line}\n"),
    };
    yaml.lines().map(line).collect()
}

/// A line, or the template expression that replaces the line of an optional field.
fn optional(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let blanks = " ".repeat(indent);
    let block = line.trim().split_once(": ").and_then(|(member, value)| {
        let path = value.strip_prefix(BLOCK)?.strip_prefix('.')?;
        Some((member, path))
    });
    match block {
        Some((member, path)) => format!(
            "{blanks}{{{{- with .Values.{path} }}}}\n\
             {blanks}{member}:\n\
             {blanks}  {{{{- toYaml . | nindent {} }}}}\n\
             {blanks}{{{{- end }}}}\n",
            indent + 2
        ),
        None => format!("{line}\n"),
    }
}

/// Repository, tag and digest of an image; absent ones are empty.
fn reference(image: &str) -> (&str, &str, &str) {
    let (image, digest) = image.split_once('@').unwrap_or((image, ""));
    // The port of a registry is not a tag.
    let tag = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
    let (repository, tag) = tag.unwrap_or((image, ""));
    (repository, tag, digest)
}

/// The schema of the values: those of the file, and for the configuration the fields of its definition.
fn schema() -> Result<String, Error> {
    const FILE: &str = "values.schema.json";
    let failed = |cause: String| Error::Yaml { file: FILE, cause };
    let mut schema: Value = serde_json::from_str(include_str!("chart/values.schema.json"))
        .map_err(|error| failed(error.to_string()))?;
    let definition = api::network_addons::crd()?;
    let definition = serde_json::to_value(&definition).map_err(|error| failed(error.to_string()))?;
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let fields = definition.pointer(fields).and_then(Value::as_object);
    let fields: serde_json::Map<String, Value> = fields
        .ok_or_else(|| failed("the definition has no fields".to_owned()))?
        .iter()
        .map(|(name, field)| (name.clone(), json!({ "type": field["type"] })))
        .collect();
    let spec = schema
        .pointer_mut("/properties/networkAddonsConfig/properties/spec/properties")
        .ok_or_else(|| failed("the values have no field for the configuration".to_owned()))?;
    *spec = json!(fields);
    schema.sort_all_objects();
    let text = serde_json::to_string_pretty(&schema).map_err(|error| failed(error.to_string()))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests;
