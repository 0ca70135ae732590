//! Linux bridges: CNI plugins on each node, and a marker that advertises bridges as resources (operands §3).

mod dhcp;

use api::network_addons::LinuxBridge as Settings;

use super::{Context, permit_confined, replace_roles};
use crate::{
    manifest::{Error, Manifest},
    names,
};

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let scc = context.cluster.platform.scc;
    let mut objects = context.namespace_object()?;
    if scc {
        objects.extend(context.objects("linux_bridge/scc.yaml", include_str!("linux_bridge/scc.yaml"))?);
    }
    let mut plugins = context.objects(
        "linux_bridge/plugins.yaml",
        include_str!("linux_bridge/plugins.yaml"),
    )?;
    for workload in plugins.iter_mut().filter(|object| object.has_pods()) {
        complete_plugins(workload, context)?;
    }
    objects.extend(plugins);
    let mut marker = context.objects(
        "linux_bridge/marker.yaml",
        include_str!("linux_bridge/marker.yaml"),
    )?;
    for workload in marker.iter_mut().filter(|object| object.has_pods()) {
        complete_marker(workload, context)?;
    }
    let ours = context
        .images
        .of(names::env::LINUX_BRIDGE_MARKER_IMAGE)?
        .is_native();
    if ours {
        let narrow = include_str!("linux_bridge/native-marker-role.yaml");
        replace_roles(
            &mut marker,
            context.objects("linux_bridge/native-marker-role.yaml", narrow)?,
        );
    }
    objects.extend(marker);
    if scc {
        let mut constraints = context.objects(
            "linux_bridge/marker-scc.yaml",
            include_str!("linux_bridge/marker-scc.yaml"),
        )?;
        if ours {
            permit_confined(&mut constraints, &[]);
        }
        objects.extend(constraints);
    }
    Ok(objects)
}

fn complete_plugins(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::LINUX_BRIDGE_IMAGE)?;
    let host_dir = context.directories().bin;
    let mut pods = workload.pods()?;
    pods.place(&context.workloads())?;
    pods.host_path("cnibin", host_dir)?;
    if context.cluster.platform.scc {
        pods.service_account("linux-bridge")?;
        pods.annotate(names::REQUIRED_SCC, "linux-bridge")?;
    }
    let settings = context.spec.linux_bridge.unwrap_or_default();
    let mut container = pods.container("cni-plugins")?;
    container.run(image, context.pull_policy());
    if !image.is_native() {
        container.command(&["/bin/bash", "-ce", &install_script(host_dir)]);
        return Ok(());
    }
    let what = installer_arguments(settings, host_dir);
    let install = [&["/weft", "install-plugins"], &what[..]].concat();
    let check = [&["/weft", "install-plugins", "--check"], &what[..]].concat();
    container.command(&install).startup_command(&check);
    pods.without_token()?;
    if settings.dhcp.unwrap_or_default() {
        dhcp::add(&mut pods, image, context.pull_policy())?;
    }
    Ok(())
}

/// Arguments of Weft's installer.
fn installer_arguments(settings: Settings, host_dir: &str) -> Vec<&str> {
    let mut what = vec!["--to", "/opt/cni/bin", "--host-dir", host_dir];
    if settings.preserve_default_vlan.unwrap_or_default() {
        what.push("--preserve-default-vlan");
    }
    what.extend(["bridge", "tuning"]);
    if settings.dhcp.unwrap_or_default() {
        what.push(dhcp::PLUGIN);
    }
    what
}

/// The script of upstream's image. `host_dir` is validated and has no character with a meaning for a shell.
fn install_script(host_dir: &str) -> String {
    format!("host_dir={host_dir}\n{}", include_str!("linux_bridge/install.sh"))
}

fn complete_marker(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::LINUX_BRIDGE_MARKER_IMAGE)?;
    let mut pods = workload.pods()?;
    pods.place(&context.workloads())?;
    let mut container = pods.container("bridge-marker")?;
    container.run(image, context.pull_policy());
    if image.is_native() {
        container
            .command(&["/weft", "bridge-marker"])
            .eager_probes()
            .without_privileges()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

    /// Runs the script in a directory that stands for the host and the image, with `sleep` as its end.
    fn install(root: &Path) -> std::process::Output {
        let inside = |path: &str| root.join(path).display().to_string();
        let script = super::install_script("/var/lib/cni/bin")
            .replace("bin_dir=/opt/cni/bin", &format!("bin_dir={}", inside("bin")))
            .replace(
                "source_dir=/usr/src/github.com/containernetworking/plugins/bin",
                &format!("source_dir={}", inside("source")),
            )
            .replace("sleep infinity &", "true &");
        Command::new("bash")
            .args(["-ce", &script])
            .output()
            .expect("bash")
    }

    fn image(root: &Path) {
        fs::create_dir_all(root.join("bin")).expect("a directory");
        fs::create_dir_all(root.join("source")).expect("a directory");
        for plugin in ["bridge", "tuning"] {
            let file = root.join("source").join(plugin);
            fs::write(&file, format!("the {plugin} plugin")).expect("a file");
            let sum = Command::new("sha256sum")
                .arg(&file)
                .output()
                .expect("sha256sum")
                .stdout;
            fs::write(root.join("source").join(format!("{plugin}.checksum")), sum).expect("a file");
        }
    }

    fn link(root: &Path, name: &str) -> String {
        let path = root.join("bin").join(name);
        fs::read_link(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .display()
            .to_string()
    }

    fn content(root: &Path, name: &str) -> String {
        fs::read_to_string(root.join("bin").join(name)).expect("a file")
    }

    // cni-plugins#71, operands#5
    #[test]
    fn install_script_installs_both_plugins_under_both_names() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        image(root);
        for run in ["on an empty directory", "on a second run"] {
            let output = install(root);
            let log = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{run}: {log}");
            assert!(log.contains("Entering sleep... (success)"), "{run}: {log}");
            for plugin in ["bridge", "tuning"] {
                assert_eq!(
                    content(root, &format!("cnv-{plugin}")),
                    format!("the {plugin} plugin")
                );
                assert_eq!(link(root, plugin), format!("/var/lib/cni/bin/cnv-{plugin}"));
            }
        }
    }

    // cni-plugins#71, operands#5
    #[test]
    fn install_script_keeps_plugin_of_platform() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        image(root);
        fs::write(root.join("bin/bridge"), "the platform's bridge").expect("a file");
        // A link of an earlier run from the time before the platform installed its own plugin.
        symlink("/nowhere", root.join("bin/cnv-bridge")).expect("a link");
        assert!(install(root).status.success());
        assert_eq!(content(root, "bridge"), "the platform's bridge");
        assert_eq!(link(root, "cnv-bridge"), "/var/lib/cni/bin/bridge");
        assert_eq!(link(root, "tuning"), "/var/lib/cni/bin/cnv-tuning");
    }

    // operands#5
    #[test]
    fn install_script_fails_on_damaged_plugin() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        image(root);
        fs::write(root.join("source/tuning"), "damaged").expect("a file");
        let output = install(root);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains("cnv-tuning is damaged"));
        assert!(!root.join("bin/tuning").exists());
    }
}
