//! Directories of platforms and of users, against operator §5.1 and §12.

use serde_json::{Value, json};

use super::*;
use crate::configuration;

fn directories(spec: Value, platform: Platform) -> (String, String, bool, Option<&'static str>) {
    let spec = configuration::read(spec).expect("a specification");
    let found = Directories::of(&spec, platform);
    (
        found.bin.into(),
        found.conf.into(),
        found.moved,
        found.bin_targets(),
    )
}

#[test]
fn directories_of_specification_override_platform() {
    let k3s = Platform {
        layout: Layout::of(&json!({ "status": { "nodeInfo": { "kubeletVersion": "v1.33.1+k3s1" } } })),
        ..Platform::default()
    };
    let openshift = Platform {
        openshift4: true,
        ..Platform::default()
    };
    let k3s_data = Some("/var/lib/rancher/k3s/data");
    let row = |bin: &str, conf: &str, moved, targets| (bin.to_owned(), conf.to_owned(), moved, targets);
    for (spec, platform, expected) in [
        (
            json!({}),
            Platform::default(),
            row("/opt/cni/bin", "/etc/cni/net.d", false, None),
        ),
        (
            json!({ "cniDirectories": {} }),
            openshift,
            row("/var/lib/cni/bin", "/etc/kubernetes/cni/net.d", false, None),
        ),
        (
            json!({}),
            k3s,
            row(
                "/var/lib/rancher/k3s/data/cni",
                "/var/lib/rancher/k3s/agent/etc/cni/net.d",
                true,
                k3s_data,
            ),
        ),
        (
            json!({ "cniDirectories": { "bin": "/opt/cni/bin/" } }),
            k3s,
            row(
                "/opt/cni/bin",
                "/var/lib/rancher/k3s/agent/etc/cni/net.d",
                false,
                None,
            ),
        ),
        (
            json!({ "cniDirectories": { "bin": "/var/lib/cni/bin", "conf": "/srv/cni/net.d/" } }),
            Platform::default(),
            row("/var/lib/cni/bin", "/srv/cni/net.d", true, None),
        ),
        (
            json!({ "cniDirectories": { "bin": "/opt/cni/bin" } }),
            openshift,
            row("/opt/cni/bin", "/etc/kubernetes/cni/net.d", false, None),
        ),
        (
            json!({ "cniDirectories": { "bin": "/var/lib/rancher/k3s/data/current/bin" } }),
            Platform::default(),
            row(
                "/var/lib/rancher/k3s/data/current/bin",
                "/etc/cni/net.d",
                true,
                k3s_data,
            ),
        ),
        (
            json!({ "cniDirectories": { "bin": "/var/lib/rancher/k3s/database" } }),
            Platform::default(),
            row("/var/lib/rancher/k3s/database", "/etc/cni/net.d", true, None),
        ),
    ] {
        assert_eq!(directories(spec.clone(), platform), expected, "{spec}");
    }
}

#[test]
fn validate_accepts_absolute_paths_of_harmless_characters() {
    let errors = |path: &str| {
        let spec = json!({ "cniDirectories": { "bin": path, "conf": path } });
        validate(&configuration::read(spec).expect("a specification"))
    };
    for path in [
        "/opt/cni/bin",
        "/opt/cni/bin/",
        "/opt/cni",
        "/opt/cni/0a-b_c.d+e/...",
        "/opt/cni/.hidden/b..c",
        "/etc/cni/multus/net.d",
        "/home/kubernetes/bin",
        "/var/lib/rancher/k3s/data/current/bin",
    ] {
        assert_eq!(errors(path), Vec::<String>::new(), "{path}");
    }
    for path in [
        "",
        "/",
        "//",
        "opt/cni/bin",
        "./bin",
        "/opt/../bin",
        "/..",
        "/opt/./bin",
        "/opt//bin",
        "/opt/bin//",
        "/opt/cni bin",
        "/opt/$(reboot)",
        "/opt/a:b",
        "/opt/ä",
        "/opt/a\n",
    ] {
        let text = "it has to be an absolute path of letters, digits, '.', '_', '+' and '-', without '..'";
        assert_eq!(
            errors(path),
            [
                format!("requested cniDirectories.bin '{path}' is not valid: {text}"),
                format!("requested cniDirectories.conf '{path}' is not valid: {text}"),
            ],
        );
    }
}

// operator.md 5.1: programs in the directory run as root on the nodes, so pods must not be able to write there.
#[test]
fn validate_refuses_directory_outside_of_allowed_places() {
    for path in [
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs",
        "/var/lib/kubelet/pods/0/volume-subpaths/a/b/0",
        "/var/lib/rancher/k3s/agent/containerd/cni",
        "/usr/sbin",
        "/opt/cnimisc",
        "/tmp/cni",
        "/run",
    ] {
        let spec = json!({ "cniDirectories": { "conf": path } });
        let places = "/etc/cni, /etc/kubernetes/cni, /home/kubernetes, /opt/cni, /srv/cni, /usr/lib/cni, \
                      /usr/libexec/cni, /usr/local/lib/cni, /usr/local/libexec/cni, /var/lib/cni, \
                      /var/lib/rancher/k3s/agent/etc/cni, /var/lib/rancher/k3s/data, \
                      /var/snap/microk8s/current/args, /var/snap/microk8s/current/opt/cni";
        assert_eq!(
            validate(&configuration::read(spec).expect("a specification")),
            [format!(
                "requested cniDirectories.conf '{path}' is not valid: it has to be one of {places}, or below"
            )],
        );
    }
}
