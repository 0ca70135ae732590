//! The layouts of a release against operator §13.2 and §15, and the checked-in files against the rendered ones.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use super::*;

fn install(version: &str) -> Install<'_> {
    Install {
        image: "registry.example/weft:v1",
        namespace: "cluster-network-addons",
        version,
        pull_policy: "Always",
    }
}

fn files(version: &str) -> Result<BTreeMap<String, String>, Error> {
    let files = release(&install(version), &Choice::default(), None)?;
    Ok(files.into_iter().collect())
}

#[test]
fn release_has_both_layouts() {
    let files = files("1.2.3").expect("a release");
    let tree = "manifests/cluster-network-addons";
    for name in [
        "namespace.yaml",
        "network-addons-config.crd.yaml",
        "operator.yaml",
        "network-addons-config-example.cr.yaml",
    ] {
        let flat = files.get(name).expect("a file of the release");
        assert_eq!(files.get(&format!("{tree}/1.2.3/{name}")), Some(flat), "{name}");
    }
    let csv = format!("{tree}/1.2.3/cluster-network-addons-operator.1.2.3.clusterserviceversion.yaml");
    let csv: Value = serde_saphyr::from_str(&files[&csv]).expect("YAML");
    assert_eq!(csv["metadata"]["name"], "cluster-network-addons-operator.1.2.3");
    let package: Value =
        serde_saphyr::from_str(&files[&format!("{tree}/cluster-network-addons.package.yaml")]).expect("YAML");
    assert_eq!(
        package,
        json!({
            "packageName": "cluster-network-addons",
            "channels": [{ "name": "alpha", "currentCSV": "cluster-network-addons-operator.1.2.3" }],
        })
    );
}

#[test]
fn bundle_has_objects_that_olm_does_not_create() {
    let files = files("1.2.3").expect("a release");
    let bundled: Vec<&str> = files
        .keys()
        .filter_map(|name| name.strip_prefix("bundle/manifests/"))
        .collect();
    assert_eq!(
        bundled,
        [
            "cluster-network-addons-operator.clusterserviceversion.yaml",
            "network-addons-config.crd.yaml",
            "nmstate-operator-namespace.clusterrole.yaml",
            "nmstate-operator.clusterrole.yaml",
        ]
    );
    for name in ["nmstate-operator", "nmstate-operator-namespace"] {
        let file = &files[&format!("bundle/manifests/{name}.clusterrole.yaml")];
        let role: Value = serde_saphyr::from_str(file).expect("YAML");
        assert_eq!(role["kind"], "ClusterRole");
        assert_eq!(role["metadata"]["name"], format!("cluster-network-addons-{name}"));
    }
    assert_eq!(
        files["bundle/manifests/network-addons-config.crd.yaml"],
        files["network-addons-config.crd.yaml"]
    );
    let annotations: Value =
        serde_saphyr::from_str(&files["bundle/metadata/annotations.yaml"]).expect("YAML");
    let annotations = annotations["annotations"].as_object().expect("annotations");
    // The labels of the image have the same values.
    for (key, value) in annotations {
        let label = format!("LABEL {key}={}\n", value.as_str().expect("text"));
        assert!(files["bundle/Containerfile"].contains(&label), "{label}");
    }
    assert_eq!(annotations.len(), 6);
    assert_eq!(
        annotations["operators.operatorframework.io.bundle.package.v1"],
        "cluster-network-addons"
    );
    assert_eq!(
        annotations["operators.operatorframework.io.bundle.channels.v1"],
        "alpha"
    );
}

#[test]
fn release_needs_semantic_version() {
    for version in [
        "1.2.3",
        "0.102.0",
        "1.2.3-rc.1",
        "1.2.3-RC-1.0",
        "1.2.3+build.05",
        "1.2.3-a+b",
    ] {
        assert!(is_version(version), "{version}");
    }
    for version in [
        "",
        "v1.2.3",
        "1.2",
        "1.2.3.4",
        "1.2.x",
        "1.2.3-",
        "1.2.3-a/b",
        "01.2.3",
        "1.2.3-01",
        "1.2.3-a-",
        "1.2.3-a..b",
        "1.2.3+",
        "1.2.3+a+b",
        "../1.2.3",
    ] {
        assert!(!is_version(version), "{version}");
    }
    let error = files("v1.2.3").expect_err("an error").to_string();
    assert_eq!(error, "version \"v1.2.3\" is not like 1.2.3 or 1.2.3-rc.1");
}

#[test]
fn checked_in_folders_are_up_to_date() {
    const FOLDERS: [&str; 3] = ["bundle", "chart", node_state::FOLDER];
    let version = env!("CARGO_PKG_VERSION");
    let image = format!("registry.example/weft:v{version}");
    let install = Install {
        image: &image,
        namespace: names::DEFAULT_NAMESPACE,
        version,
        pull_policy: "IfNotPresent",
    };
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let fresh: BTreeMap<String, String> = release(&install, &Choice::default(), None)
        .expect("a release")
        .into_iter()
        .filter(|(name, _)| FOLDERS.iter().any(|dir| name.starts_with(&format!("{dir}/"))))
        .collect();
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        for dir in FOLDERS {
            let _ = fs::remove_dir_all(deploy.join(dir));
        }
        for (name, content) in &fresh {
            let path = deploy.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, content).expect("a written file");
        }
    }
    let stored: BTreeMap<String, String> = FOLDERS.iter().flat_map(|dir| stored(&deploy, dir)).collect();
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    let advice = "run the tests of this crate once with UPDATE_GENERATED=1, and review the difference";
    assert_eq!(names(&stored), names(&fresh), "{advice}");
    for (name, content) in fresh {
        assert!(stored[&name] == content, "deploy/{name} is stale: {advice}");
    }
}

#[test]
fn migration_guide_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("../../docs/migration.md")).expect("the guide");
    let sources: String = stored(&root.join("../operator"), "tests")
        .into_iter()
        .map(|(_, source)| source)
        .collect();
    // Texts between backticks with the form of a test's name.
    let names = guide.split('`').skip(1).step_by(2).filter(|text| {
        let is_name = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        is_name && text.matches('_').count() > 3
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(sources.contains(&format!("fn {name}()")), "{name}");
    }
}

/// All files below `deploy/dir`, by their path below `deploy/`.
fn stored(deploy: &Path, dir: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(deploy.join(dir)).into_iter().flatten() {
        let entry = entry.expect("an entry");
        let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files.extend(stored(deploy, &name));
        } else {
            files.push((name, fs::read_to_string(entry.path()).expect("a text")));
        }
    }
    files
}
