//! The configuration resource in a file of a user: YAML or JSON, alone, among other documents, or in a list.

use std::{io, path::Path};

use api::names::{
    NETWORK_ADDONS_GROUP, NETWORK_ADDONS_KIND, NETWORK_ADDONS_OLD_VERSION, NETWORK_ADDONS_SINGLETON,
    NETWORK_ADDONS_STORED_VERSION,
};
use kube_kit::document;
use kube_kit::object::ObjectId;
use program::terminal::{self, LARGEST, STDIN};
use serde_json::Value;

use super::unknown;

/// Maximum number of other objects that an error names.
const NAMED: usize = 3;

/// A file without a usable configuration resource. Each text has the next step.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot read {file}: {cause}")]
    Read { file: String, cause: io::Error },
    #[error("{file} is larger than {} MiB: too large for a manifest", LARGEST >> 20)]
    TooLarge { file: String },
    #[error("{file} is not UTF-8 text")]
    NoText { file: String },
    #[error("{file} is neither YAML nor JSON: {cause}")]
    Syntax { file: String, cause: String },
    #[error(
        "{file} is empty; a {NETWORK_ADDONS_KIND} has this form:\n\n\
         apiVersion: {NETWORK_ADDONS_GROUP}/{NETWORK_ADDONS_STORED_VERSION}\n\
         kind: {NETWORK_ADDONS_KIND}\n\
         metadata:\n  name: {NETWORK_ADDONS_SINGLETON}\n\
         spec:\n  multus: {{}}\n  linuxBridge: {{}}"
    )]
    Empty { file: String },
    /// The file has other objects only.
    #[error(
        "there is no {NETWORK_ADDONS_KIND} of {NETWORK_ADDONS_GROUP} in {file}, only {}",
        some(found)
    )]
    None {
        file: String,
        /// The other objects, for people.
        found: Vec<String>,
    },
    /// The operator would ignore it.
    #[error(
        "the {NETWORK_ADDONS_KIND} in {file} is named {}: the operator uses only the one named \
         {NETWORK_ADDONS_SINGLETON}; rename it",
        some(names)
    )]
    Name { file: String, names: Vec<String> },
    #[error("{file} has {count} objects {NETWORK_ADDONS_KIND} {NETWORK_ADDONS_SINGLETON}: leave one")]
    Several { file: String, count: usize },
    /// The operator serves no such version.
    #[error(
        "the {NETWORK_ADDONS_KIND} in {file} is of version {version:?}: there are \
         {NETWORK_ADDONS_STORED_VERSION} and {NETWORK_ADDONS_OLD_VERSION}"
    )]
    Version { file: String, version: String },
}

/// The configuration resource of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Input {
    pub(crate) object: Value,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// If it cannot be read, or has no configuration resource that the operator would reconcile.
pub(super) fn read(path: &Path) -> Result<Input, Error> {
    let file = if path == Path::new(STDIN) {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    match terminal::read(path) {
        Ok(text) => parse(&file, &text),
        Err(cause) => Err(match cause.kind() {
            io::ErrorKind::FileTooLarge => Error::TooLarge { file },
            io::ErrorKind::InvalidData => Error::NoText { file },
            _ => Error::Read { file, cause },
        }),
    }
}

/// Finds the configuration resource in a text; `file` names it in messages.
fn parse(file: &str, text: &str) -> Result<Input, Error> {
    let documents = documents(text).map_err(|cause| Error::Syntax {
        file: file.to_owned(),
        cause,
    })?;
    let objects: Vec<Value> = documents.into_iter().flat_map(items).collect();
    if objects.is_empty() {
        return Err(Error::Empty {
            file: file.to_owned(),
        });
    }
    let (ours, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_configuration);
    if ours.is_empty() {
        return Err(Error::None {
            file: file.to_owned(),
            found: others.iter().map(described).collect(),
        });
    }
    let (mut named, ignored): (Vec<_>, Vec<_>) = ours
        .into_iter()
        .partition(|object| name(object) == NETWORK_ADDONS_SINGLETON);
    let object = match named.len() {
        0 => {
            return Err(Error::Name {
                file: file.to_owned(),
                names: ignored
                    .iter()
                    .map(|object| format!("{:?}", name(object)))
                    .collect(),
            });
        }
        1 => named.remove(0),
        count => {
            return Err(Error::Several {
                file: file.to_owned(),
                count,
            });
        }
    };
    let version = ObjectId::of(&object).version;
    if ![NETWORK_ADDONS_STORED_VERSION, NETWORK_ADDONS_OLD_VERSION].contains(&version.as_str()) {
        return Err(Error::Version {
            file: file.to_owned(),
            version,
        });
    }
    let mut notes: Vec<_> = ignored
        .iter()
        .map(|object| {
            format!(
                "the operator ignores the {NETWORK_ADDONS_KIND} named {:?}",
                name(object)
            )
        })
        .collect();
    notes.extend(
        unknown::fields(&object)
            .iter()
            .map(|path| format!("the operator does not know the field {path}, and ignores it")),
    );
    Ok(Input { object, notes })
}

/// The documents of a text, without empty ones.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    let text = text.trim_start_matches('\u{feff}');
    // JSON is usually generated and long, and its own parser is many times faster than that of YAML.
    if text.trim_start().starts_with('{')
        && let Ok(object) = serde_json::from_str(text)
    {
        return Ok(vec![object]);
    }
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // A repository of manifests has more documents than the parser's default limit.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 50_000,
            max_nodes: 2_000_000,
            max_events: 6_000_000,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let text = error.to_string();
        text.strip_prefix("error: ").map_or(text.clone(), str::to_owned)
    })
}

/// The items of a list, nested ones included, else the object itself.
pub(super) fn items(object: Value) -> Vec<Value> {
    let is_list = object
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.ends_with("List"));
    match object {
        Value::Null => Vec::new(),
        Value::Object(mut fields) if is_list => match fields.shift_remove("items") {
            Some(Value::Array(found)) => found.into_iter().flat_map(items).collect(),
            _ => Vec::new(),
        },
        object => vec![object],
    }
}

fn is_configuration(object: &Value) -> bool {
    let id = ObjectId::of(object);
    id.kind == NETWORK_ADDONS_KIND && id.group == NETWORK_ADDONS_GROUP
}

fn name(object: &Value) -> &str {
    document::text(object, "/metadata/name")
}

/// The name of another object, in an error.
fn described(object: &Value) -> String {
    let id = ObjectId::of(object);
    if id.kind.is_empty() {
        return "an object without a kind".to_owned();
    }
    let api_version = id.api_version();
    if id.kind == NETWORK_ADDONS_KIND {
        return format!("a {} of {api_version:?}", id.kind);
    }
    format!("{} {:?}", id.kind, id.name)
}

/// The first of the texts, for a sentence.
fn some(texts: &[String]) -> String {
    let shown = texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match texts.len().checked_sub(NAMED) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CR: &str = "apiVersion: networkaddonsoperator.network.kubevirt.io/v1\nkind: NetworkAddonsConfig\nmetadata:\n  \
                      name: cluster\nspec:\n  multus: {}\n";

    fn fails(text: &str) -> String {
        parse("cr.yaml", text).expect_err("an error").to_string()
    }

    fn spec(text: &str) -> Value {
        let input = parse("cr.yaml", text).expect("a configuration");
        assert_eq!(input.notes, Vec::<String>::new());
        input.object["spec"].clone()
    }

    #[test]
    fn parse_finds_configuration_in_every_form() {
        let json = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1alpha1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" }, "spec": { "multus": {} },
        });
        for text in [
            CR.to_owned(),
            CR.replace('\n', "\r\n"),
            format!("\u{feff}{CR}"),
            format!("# comment\n---\n{CR}---\n"),
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: a}}\n---\n{CR}"),
            json.to_string(),
            format!("{json:#}\n"),
            json!({ "apiVersion": "v1", "kind": "List", "items": [{ "kind": "Pod" }, json] }).to_string(),
            json!({ "kind": "NetworkAddonsConfigList", "items": [json] }).to_string(),
            "{apiVersion: networkaddonsoperator.network.kubevirt.io/v1, kind: NetworkAddonsConfig, metadata: {name: \
             cluster}, spec: {multus: {}}}"
                .to_owned(),
        ] {
            assert_eq!(spec(&text), json!({ "multus": {} }), "{text}");
        }
    }

    #[test]
    fn parse_error_names_problem_of_file() {
        for text in [
            "",
            "\n\n",
            "---\n---\n",
            "# nothing\n",
            r#"{"kind":"List","items":[]}"#,
        ] {
            assert!(
                fails(text).starts_with("cr.yaml is empty; a NetworkAddonsConfig has this form:"),
                "{text}"
            );
        }
        let pods = "kind: Pod\nmetadata: {name: a}\n---\nkind: Service\nmetadata: {name: b}\n---\n7\n---\nkind: Pod\n";
        assert_eq!(
            fails(pods),
            "there is no NetworkAddonsConfig of networkaddonsoperator.network.kubevirt.io in cr.yaml, only Pod \"a\", \
             Service \"b\", an object without a kind and 1 more"
        );
        let group = CR.replace("network.kubevirt.io/v1", "example/v1");
        assert!(
            fails(&group).ends_with("only a NetworkAddonsConfig of \"networkaddonsoperator.example/v1\""),
            "{}",
            fails(&group)
        );
        assert_eq!(
            fails(&CR.replace("name: cluster", "name: mine")),
            "the NetworkAddonsConfig in cr.yaml is named \"mine\": the operator uses only the one named cluster; \
             rename it"
        );
        assert_eq!(
            fails(&CR.replace("io/v1", "io/v2")),
            "the NetworkAddonsConfig in cr.yaml is of version \"v2\": there are v1 and v1alpha1"
        );
        assert_eq!(
            fails(&format!("{CR}---\n{CR}")),
            "cr.yaml has 2 objects NetworkAddonsConfig cluster: leave one"
        );
        assert!(fails("a: [").starts_with("cr.yaml is neither YAML nor JSON: "));
    }

    #[test]
    fn notes_name_ignored_objects_and_fields() {
        let other = CR.replace("name: cluster", "name: mine");
        let text = format!("{other}---\n{CR}  linuxbridge: {{}}\n  kubeMacPool: {{rangestart: 'a'}}\n");
        let input = parse("cr.yaml", &text).expect("a configuration");
        assert_eq!(
            input.notes,
            [
                "the operator ignores the NetworkAddonsConfig named \"mine\"",
                "the operator does not know the field spec.kubeMacPool.rangestart, and ignores it",
                "the operator does not know the field spec.linuxbridge, and ignores it",
            ]
        );
    }

    #[test]
    fn parse_accepts_ten_megabytes() {
        let padding = format!("# {}\n", "x".repeat(10 << 20));
        assert_eq!(spec(&format!("{CR}{padding}")), json!({ "multus": {} }));
        let many =
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  key: value\n".repeat(2000);
        assert_eq!(spec(&format!("{CR}{many}")), json!({ "multus": {} }));
    }
}
