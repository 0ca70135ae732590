//! Installation of multus alone, without the operator (multus.md §12.1, §12.3): in `kube-system` and under upstream's
//! names, so that it replaces an existing installation.

use super::{Error, Install, documents, with_image};
use operator::manifest::{self, Manifest};

/// Folder of the files in a release.
pub(crate) const FOLDER: &str = "multus";

/// One of the first two files is applied: multus with a daemon, or without. The third one is for nodes with
/// certificates of their own.
pub(crate) const FILES: [&str; 3] = ["thick.yaml", "thin.yaml", "cert-approver.yaml"];

/// Containers, which all run Weft's image.
const CONTAINERS: [&str; 3] = ["install-multus-binary", "kube-multus", "cert-approver"];

/// Renders the [files](FILES): pairs of name and YAML.
///
/// # Errors
/// If a file of this module is invalid.
pub(crate) fn render(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let [thick, thin, approver] = FILES;
    let mut access = vec![Manifest::definition(api::net_attach_def::crd())?];
    access.extend(manifest::parse(
        "multus/access.yaml",
        include_str!("multus/access.yaml"),
    )?);
    let file = |name, before: &[Manifest], text| {
        let own = with_image(name, text, &CONTAINERS, install)?;
        Ok::<_, Error>((name, documents(name, &[before, &own].concat())?))
    };
    Ok(vec![
        file(thick, &access, include_str!("multus/thick.yaml"))?,
        file(thin, &access, include_str!("multus/thin.yaml"))?,
        file(approver, &[], include_str!("multus/cert-approver.yaml"))?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn files() -> [Vec<Value>; 3] {
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
        parsed.try_into().expect("three files")
    }

    fn ids(objects: &[Value]) -> Vec<String> {
        let id = |object: &Value| {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("-");
            format!(
                "{} {namespace}/{}",
                object["kind"].as_str().expect("a kind"),
                object["metadata"]["name"].as_str().expect("a name")
            )
        };
        objects.iter().map(id).collect()
    }

    #[test]
    fn objects_have_names_of_upstream() {
        let [thick, thin, approver] = files();
        let access = [
            "CustomResourceDefinition -/network-attachment-definitions.k8s.cni.cncf.io",
            "ServiceAccount kube-system/multus",
            "ClusterRole -/multus",
            "ClusterRoleBinding -/multus",
        ];
        assert_eq!(
            ids(&thick),
            [
                &access[..],
                &[
                    "ConfigMap kube-system/multus-daemon-config",
                    "DaemonSet kube-system/kube-multus-ds"
                ]
            ]
            .concat()
        );
        assert_eq!(
            ids(&thin),
            [
                &access[..],
                &[
                    "ConfigMap kube-system/multus-cni-config",
                    "DaemonSet kube-system/kube-multus-ds"
                ]
            ]
            .concat()
        );
        assert_eq!(
            ids(&approver)[0],
            "ServiceAccount kube-system/multus-cert-approver"
        );
        assert_eq!(
            ids(&approver).last().map(String::as_str),
            Some("Deployment kube-system/multus-cert-approver")
        );
    }

    #[test]
    fn containers_run_own_image_under_names_of_upstream() {
        let [thick, thin, approver] = files();
        for (objects, commands) in [
            (
                thick,
                json!([
                    [
                        "/usr/src/multus-cni/bin/install_multus",
                        "-d",
                        "/host/opt/cni/bin",
                        "-t",
                        "thick"
                    ],
                    ["/usr/src/multus-cni/bin/multus-daemon"]
                ]),
            ),
            (
                thin,
                json!([["/install_multus", "--type", "thin"], ["/thin_entrypoint"]]),
            ),
            (approver, json!([["/cert-approver"]])),
        ] {
            let pods = &objects.last().expect("a workload")["spec"]["template"]["spec"];
            let containers = ["initContainers", "containers"]
                .into_iter()
                .flat_map(|key| pods[key].as_array().cloned().unwrap_or_default());
            let containers: Vec<Value> = containers.collect();
            assert!(containers.iter().all(
                |it| it["image"] == "registry.example/weft:v1" && it["imagePullPolicy"] == "IfNotPresent"
            ));
            assert_eq!(
                json!(
                    containers
                        .iter()
                        .map(|it| it["command"].clone())
                        .collect::<Vec<_>>()
                ),
                commands
            );
            assert!(
                containers
                    .iter()
                    .all(|it| it["resources"].get("limits").is_none()),
                "plugins run in the container's share"
            );
            assert!(
                containers
                    .iter()
                    .all(|it| it["securityContext"]["readOnlyRootFilesystem"] == true),
                "they write into volumes alone"
            );
        }
    }

    #[test]
    fn daemon_mounts_required_paths_of_node() {
        // multus.md §12.1
        let [thick, ..] = files();
        let pods = &thick.last().expect("a workload")["spec"]["template"]["spec"];
        let path = |volume: &str| {
            let volumes = pods["volumes"].as_array().expect("volumes");
            let found = volumes.iter().find(|it| it["name"] == volume).expect("a volume");
            found["hostPath"]["path"].as_str().unwrap_or("-").to_owned()
        };
        let mounts = pods["containers"][0]["volumeMounts"].as_array().expect("mounts");
        let seen: Vec<String> = mounts
            .iter()
            .map(|it| {
                let propagation = it["mountPropagation"].as_str().unwrap_or("");
                format!(
                    "{} {} {propagation}",
                    path(it["name"].as_str().expect("a name")),
                    it["mountPath"].as_str().expect("a path")
                )
                .trim()
                .to_owned()
            })
            .collect();
        assert_eq!(
            seen,
            [
                "/etc/cni/net.d /host/etc/cni/net.d",
                "/opt/cni/bin /opt/cni/bin",
                "/run /host/run",
                "/var/lib/cni/multus /var/lib/cni/multus",
                "/var/lib/kubelet /var/lib/kubelet HostToContainer",
                "/run/k8s.cni.cncf.io /run/k8s.cni.cncf.io",
                "/run/netns/ /run/netns HostToContainer",
                "- /etc/cni/net.d/multus.d",
                "/ /hostroot HostToContainer",
                "/etc/cni/multus/net.d /etc/cni/multus/net.d",
            ]
        );
        assert_eq!(
            (&pods["hostNetwork"], &pods["hostPID"]),
            (&json!(true), &json!(true))
        );
    }
}
