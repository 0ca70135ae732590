//! The bill of materials: an SPDX 2.3 document in JSON.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::linked::{Id, Linked, Origin, Package};

const DOCUMENT: &str = "SPDXRef-DOCUMENT";
/// SPDX's value for an unknown party.
const UNKNOWN: &str = "NOASSERTION";

/// Writes the document. `created` is a time in SPDX form. `file` returns the program that contains a package.
pub(super) fn compose(linked: &Linked, created: &str, file: impl Fn(&Id) -> Option<&'static str>) -> Value {
    let packages: Vec<Value> = linked
        .packages
        .values()
        .map(|it| package(it, file(&it.id)))
        .collect();
    let describes = linked
        .programs
        .iter()
        .map(|program| relationship(DOCUMENT, "DESCRIBES", &reference(program)));
    let needs = linked.needs.iter().map(|(one, other)| {
        let is_system = linked
            .packages
            .get(other)
            .is_some_and(|it| it.origin == Origin::System);
        let kind = if is_system { "STATIC_LINK" } else { "DEPENDS_ON" };
        relationship(&reference(one), kind, &reference(other))
    });
    let relationships: Vec<Value> = describes.chain(needs).collect();
    let creators = json!(["Organization: Weft", "Tool: cargo-xtask"]);
    let name = format!("weft-{}", env!("CARGO_PKG_VERSION"));
    // Each document has its own namespace.
    let content = json!([created, packages, relationships]).to_string();
    let digest: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": name,
        "documentNamespace": format!("https://spdx.org/spdxdocs/{name}-{digest}"),
        "creationInfo": { "created": created, "creators": creators },
        "packages": packages,
        "relationships": relationships,
    })
}

fn package(package: &Package, file: Option<&str>) -> Value {
    let Id { name, version } = &package.id;
    let mut object = json!({
        "SPDXID": reference(&package.id),
        "name": name,
        "versionInfo": version,
        "filesAnalyzed": false,
        "downloadLocation": UNKNOWN,
        "licenseDeclared": package.license.as_deref().unwrap_or(UNKNOWN),
    });
    if let Some(file) = file {
        object["packageFileName"] = json!(file);
        object["primaryPackagePurpose"] = json!("APPLICATION");
    }
    let kind = match &package.origin {
        Origin::Workspace => return object,
        Origin::System => {
            object["homepage"] = json!(package.repository);
            "generic"
        }
        Origin::Registry { checksum } => {
            let archive = format!("https://static.crates.io/crates/{name}/{name}-{version}.crate");
            object["downloadLocation"] = json!(archive);
            if let Some(checksum) = checksum {
                object["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": checksum }]);
            }
            "cargo"
        }
    };
    // Some readers decode a plus sign as a space.
    let locator = format!("pkg:{kind}/{name}@{}", version.replace('+', "%2B"));
    object["externalRefs"] = json!([{
        "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator,
    }]);
    object
}

/// Identifiers consist of letters, digits, dots and hyphens.
fn reference(id: &Id) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let text = format!("{}-{}", id.name, id.version);
    let text: String = text.chars().map(|c| if plain(c) { c } else { '-' }).collect();
    format!("SPDXRef-{text}")
}

fn relationship(one: &str, kind: &str, other: &str) -> Value {
    json!({ "spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other })
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;
    use crate::image::linked::tests::sample;

    const CREATED: &str = "2026-01-02T03:04:05Z";

    fn document() -> Value {
        let mut linked = sample();
        linked.add_system(Package {
            id: Id::new("glibc", "2.36"),
            origin: Origin::System,
            license: None,
            repository: Some("https://example.org/glibc".to_owned()),
            texts: vec![PathBuf::from("/somewhere")],
        });
        compose(&linked, CREATED, |id| (id.name == "weft").then_some("/weft"))
    }

    /// Checks the requirements of SPDX for the used parts.
    pub(in crate::image) fn assert_valid(document: &Value) {
        for (key, value) in [
            ("spdxVersion", "SPDX-2.3"),
            ("dataLicense", "CC0-1.0"),
            ("SPDXID", DOCUMENT),
        ] {
            assert_eq!(document[key], value);
        }
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).unwrap().to_owned();
        assert!(text(&document["documentNamespace"]).starts_with("https://"));
        assert_eq!(text(&document["creationInfo"]["created"]).len(), CREATED.len());
        assert!(!text(&document["name"]).is_empty());
        let mut ids = BTreeSet::from([DOCUMENT.to_owned()]);
        for package in document["packages"].as_array().unwrap() {
            let id = text(&package["SPDXID"]);
            let rest = id.strip_prefix("SPDXRef-").unwrap();
            assert!(
                rest.chars()
                    .all(|c| c.is_ascii_alphanumeric() || ".-".contains(c)),
                "{id}"
            );
            assert!(ids.insert(id.clone()), "{id} stands for two packages");
            for key in ["name", "versionInfo", "downloadLocation", "licenseDeclared"] {
                assert!(!text(&package[key]).is_empty(), "{id}: {key}");
            }
            assert_eq!(package["filesAnalyzed"], false);
        }
        let mut reached = BTreeSet::from([DOCUMENT.to_owned()]);
        for relationship in document["relationships"].as_array().unwrap() {
            for key in ["spdxElementId", "relatedSpdxElement"] {
                let id = text(&relationship[key]);
                assert!(ids.contains(&id), "nothing is called {id}");
            }
            reached.insert(text(&relationship["relatedSpdxElement"]));
        }
        assert_eq!(reached, ids, "every package is needed by something");
    }

    #[test]
    fn document_is_valid_and_reproducible() {
        assert_valid(&document());
        assert_eq!(document().to_string(), document().to_string());
    }

    #[test]
    fn package_has_its_licence_archive_and_locator() {
        let document = document();
        let packages = document["packages"].as_array().unwrap();
        let package = |name: &str| packages.iter().find(|it| it["name"] == name).unwrap();
        let shared = package("shared");
        assert_eq!(shared["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(shared["checksums"][0]["checksumValue"], "ab12");
        assert_eq!(
            shared["downloadLocation"],
            "https://static.crates.io/crates/shared/shared-1.2.3.crate"
        );
        let locator = |name: &str| package(name)["externalRefs"][0]["referenceLocator"].clone();
        assert_eq!(locator("own_one"), "pkg:cargo/own_one@0.4.0%2Bc");
        assert_eq!(package("own_one")["SPDXID"], "SPDXRef-own-one-0.4.0-c");
        assert_eq!(locator("glibc"), "pkg:generic/glibc@2.36");
        assert_eq!(locator("weft"), Value::Null);
        assert_eq!(package("weft")["packageFileName"], "/weft");
        assert!(!document.to_string().contains("/w/crates"), "{document}");
    }

    #[test]
    fn relationships_reach_all_elements_from_the_document() {
        let document = document();
        let related: Vec<String> = document["relationships"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| {
                let part = |key: &str| it[key].as_str().unwrap().replace("SPDXRef-", "");
                let (one, other) = (part("spdxElementId"), part("relatedSpdxElement"));
                format!("{one} {} {other}", part("relationshipType"))
            })
            .collect();
        assert_eq!(
            related,
            [
                "DOCUMENT DESCRIBES plugins-0.1.0",
                "DOCUMENT DESCRIBES weft-0.1.0",
                "own-one-0.4.0-c DEPENDS_ON shared-1.2.3",
                "plugins-0.1.0 STATIC_LINK glibc-2.36",
                "plugins-0.1.0 DEPENDS_ON shared-1.2.3",
                "weft-0.1.0 STATIC_LINK glibc-2.36",
                "weft-0.1.0 DEPENDS_ON own-one-0.4.0-c",
                "weft-0.1.0 DEPENDS_ON shared-1.2.3",
            ]
        );
    }
}
