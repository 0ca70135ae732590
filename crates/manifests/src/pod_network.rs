//! Installation of the pod network without the cluster network operator, and its removal from the nodes
//! (docs/pod-network.md).

use super::{Error, Install, documents, with_image};

/// Folder of the files in a release.
pub(crate) const FOLDER: &str = "pod-network";

/// The first file installs the network. The second one replaces it, and removes the network from the nodes.
pub(crate) const FILES: [&str; 2] = ["pod-network.yaml", "remove.yaml"];

/// Containers, which all run Weft's image.
const CONTAINERS: [&str; 4] = ["install-plugins", "pod-network", "remove", "stay"];

/// Renders the [files](FILES): pairs of name and YAML.
///
/// # Errors
/// If a file of this module is invalid.
pub(crate) fn render(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let file = |name, text| {
        let objects = with_image(name, text, &CONTAINERS, install)?;
        Ok::<_, Error>((name, documents(name, &objects)?))
    };
    let [network, remove] = FILES;
    Ok(vec![
        file(network, include_str!("pod_network/pod-network.yaml"))?,
        file(remove, include_str!("pod_network/remove.yaml"))?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn files() -> [Vec<Value>; 2] {
        let install = Install {
            image: "registry.example/weft:v1",
            namespace: "elsewhere",
            version: "1.2.3",
            pull_policy: "IfNotPresent",
        };
        let files = render(&install).expect("files");
        assert_eq!(files.iter().map(|(name, _)| *name).collect::<Vec<_>>(), FILES);
        let parsed: Vec<Vec<Value>> = files
            .iter()
            .map(|(_, text)| serde_saphyr::from_multiple(text).expect("objects"))
            .collect();
        parsed.try_into().expect("two files")
    }

    #[test]
    fn removal_replaces_daemon() {
        let [network, remove] = files();
        let daemon = network.last().expect("a workload");
        let [remove] = remove.as_slice() else {
            panic!("{remove:#?}");
        };
        for pointer in ["/kind", "/metadata/name", "/metadata/namespace", "/spec/selector"] {
            assert_eq!(daemon.pointer(pointer), remove.pointer(pointer), "{pointer}");
        }
    }

    #[test]
    fn containers_run_own_image_with_minimal_privileges() {
        for objects in files() {
            let pods = &objects.last().expect("a workload")["spec"]["template"]["spec"];
            assert_eq!(pods["hostNetwork"], true);
            let of = |key: &str| pods[key].as_array().cloned().expect("containers");
            for container in of("initContainers").into_iter().chain(of("containers")) {
                assert_eq!(container["image"], "registry.example/weft:v1");
                let context = &container["securityContext"];
                let added = match container["name"].as_str() {
                    Some("install-plugins") => Value::Null,
                    _ => json!(["NET_ADMIN"]),
                };
                assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
                assert_eq!(context["capabilities"]["add"], added);
                assert_eq!(context["readOnlyRootFilesystem"], true);
                assert_eq!(context["privileged"], Value::Null);
            }
        }
    }
}
