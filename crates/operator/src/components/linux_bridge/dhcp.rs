//! The daemon that holds the leases of pods with the IPAM plugin `dhcp` (operands §13): a container beside the
//! installer of plugins, if the specification requests it.
//!
//! ```text
//! dhcp (the plugin, on the host) ── /run/cni/dhcp.sock ──> dhcp-daemon ──> network namespace of the pod ──> DHCP server
//! ```

use serde_json::{Value, json};

use crate::{
    images::Image,
    manifest::{Error, Pods},
};

/// Name of the plugin.
pub(super) const PLUGIN: &str = "dhcp";

const CONTAINER: &str = "dhcp-daemon";

/// Mount path of the host's root in the daemon's container.
const HOST: &str = "/host";
/// Volume of the host with the socket and the leases, which outlive the container.
const RUN: (&str, &str) = ("cni-run", "/run/cni");
const SOCKET: &str = "/run/cni/dhcp.sock";
/// Volumes of the host with the namespaces of pods. A container runtime names a namespace by one of these paths.
const NAMESPACES: (&str, &str) = ("netns", "/run/netns");
const NAMESPACES_BY_OLD_PATH: &str = "/var/run/netns";
const PROCESSES: (&str, &str) = ("proc", "/proc");

/// Adds the daemon to pods with Weft's image.
pub(super) fn add(pods: &mut Pods<'_>, image: Image<'_>, pull_policy: &str) -> Result<(), Error> {
    pods.add_container(container())?;
    for (volume, path) in [RUN, NAMESPACES, PROCESSES] {
        pods.add_host_path(volume, path)?;
    }
    pods.container(CONTAINER)?
        .run(image, pull_policy)
        .command(&command(&[]))
        .startup_command(&command(&["--check"]));
    Ok(())
}

fn command(more: &[&'static str]) -> Vec<&'static str> {
    let daemon = ["/weft", "dhcp-daemon"];
    let places = ["--hostprefix", HOST, "--socketpath", SOCKET];
    [&daemon[..], more, &places].concat()
}

fn container() -> Value {
    let mount = |volume: &str, path: &str| json!({ "name": volume, "mountPath": format!("{HOST}{path}") });
    // Namespaces of pods that start later are mounts of the host.
    let followed = |path: &str| {
        let mut mount = mount(NAMESPACES.0, path);
        mount["mountPropagation"] = json!("HostToContainer");
        mount
    };
    json!({
        "name": CONTAINER,
        "resources": { "requests": { "cpu": "10m", "memory": "15Mi" } },
        "securityContext": { "privileged": true, "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            mount(RUN.0, RUN.1),
            followed(NAMESPACES.1),
            followed(NAMESPACES_BY_OLD_PATH),
            mount(PROCESSES.0, PROCESSES.1),
        ],
    })
}
