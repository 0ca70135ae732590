//! `weft network manifests`: prints the manifests that install the operator.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kube_kit::{address, connection::Answer};

use crate::manifests::{self, Images, Install};

/// Last text of `weft network manifests --help`.
const EXAMPLES: &str = "\
Examples:
  weft network manifests --image registry.example/weft:v1 \\
    --kube-proxy-image registry.k8s.io/kube-proxy:v1.34.4 | kubectl apply -f -

Then apply a cluster configuration, such as deploy/cluster-network/example.cr.yaml.";

/// Arguments of `weft network manifests`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Image of the operator and of its components
    #[arg(long, value_name = "REF")]
    image: String,
    #[command(flatten)]
    images: Images,
    /// Address of the API server, for a cluster whose services do not work yet
    #[arg(long, value_name = "HOST:PORT")]
    api_server: Option<String>,
    /// Pull policy of the images
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pull_policy: String,
    /// Also print a policy that makes the API server refuse unsafe changes of the network
    #[arg(long)]
    admission_policy: bool,
    /// Also print the rights to change the MTU of nodes by node network policies
    #[arg(long)]
    mtu_migration: bool,
    /// Write all files, with the example and the optional ones, into this directory, and print nothing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command. The caller prints the answer.
pub fn answer(args: &Args) -> Answer {
    let api_server = match args.api_server.as_deref().map(address::split) {
        Some(None | Some(("", _))) => {
            return failed("--api-server is not HOST:PORT, or an IPv6 address without brackets");
        }
        Some(parts) => parts,
        None => None,
    };
    let install = Install {
        image: &args.image,
        version: env!("CARGO_PKG_VERSION"),
        pull_policy: &args.pull_policy,
        images: args.images.clone(),
        api_server,
    };
    match manifests::files(&install) {
        Ok(files) => {
            if let Some(dir) = &args.dir {
                return match write(dir, &files) {
                    Ok(()) => Answer::default(),
                    Err(error) => failed(&format!("cannot write to {}: {error}", dir.display())),
                };
            }
            // The example is not part of the installation.
            let is_chosen = |name: &str| match name {
                manifests::ADMISSION_POLICY => args.admission_policy,
                manifests::MTU_MIGRATION => args.mtu_migration,
                name => name != manifests::FILES[2],
            };
            let texts = files.into_iter().filter(|(name, _)| is_chosen(name));
            let texts: Vec<String> = texts.map(|(_, text)| text).collect();
            Answer {
                text: texts.join("---\n"),
                ..Answer::default()
            }
        }
        Err(error) => failed(&error.to_string()),
    }
}

fn write(dir: &Path, files: &[(&str, String)]) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    for (name, text) in files {
        fs::write(dir.join(name), text)?;
    }
    Ok(())
}

fn failed(error: &str) -> Answer {
    Answer {
        remarks: format!("error: {error}\n"),
        code: 2,
        ..Answer::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::{Args, answer};

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn flags_become_settings_of_the_operator() {
        let Command { args } = Command::parse_from([
            "manifests",
            "--image=registry.example/weft:v7",
            "--kube-proxy-image=registry.example/kube-proxy:v7",
            "--ovn-image=registry.example/ovn:v7",
            "--multi-network-policy-image=registry.example/policy:v7",
            "--whereabouts-image=registry.example/whereabouts:v7",
            "--egress-router-image=registry.example/router:v7",
            "--frr-image=registry.example/frr:v7",
            "--console-plugin-image=registry.example/plugin:v7",
            "--network-metrics-image=registry.example/metrics:v7",
            "--cli-image=registry.example/cli:v7",
            "--cloud-network-image=registry.example/cloud:v7",
            "--api-server=192.0.2.1:6443",
            "--pull-policy=Always",
        ]);
        let objects: Vec<Value> = serde_saphyr::from_multiple(&answer(&args).text).expect("YAML");
        let is_there =
            |objects: &[Value], name: &str| objects.iter().any(|it| it["metadata"]["name"] == name);
        let policy = "safe-changes.networks.operator.openshift.io";
        let migration = "cluster-network-operator-mtu-migration";
        assert!(!is_there(&objects, policy) && !is_there(&objects, migration));
        let with = Args {
            admission_policy: true,
            mtu_migration: true,
            ..args.clone()
        };
        let more: Vec<Value> = serde_saphyr::from_multiple(&answer(&with).text).expect("YAML");
        assert!(is_there(&more, policy) && is_there(&more, migration));
        let deployment = objects
            .iter()
            .find(|object| object["kind"] == "Deployment")
            .expect("a Deployment");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "registry.example/weft:v7");
        let variables = container["env"].as_array().expect("variables");
        for (name, value) in [
            ("NETWORK_OPERATOR_IMAGE", "registry.example/weft:v7"),
            ("KUBE_PROXY_IMAGE", "registry.example/kube-proxy:v7"),
            ("IMAGE_PULL_POLICY", "Always"),
            ("OVN_IMAGE", "registry.example/ovn:v7"),
            ("KUBE_RBAC_PROXY_IMAGE", ""),
            ("MULTUS_NETWORKPOLICY_IMAGE", "registry.example/policy:v7"),
            ("WHEREABOUTS_CNI_IMAGE", "registry.example/whereabouts:v7"),
            ("EGRESS_ROUTER_CNI_IMAGE", "registry.example/router:v7"),
            ("FRR_K8S_IMAGE", "registry.example/frr:v7"),
            ("NETWORKING_CONSOLE_PLUGIN_IMAGE", "registry.example/plugin:v7"),
            ("NETWORK_METRICS_DAEMON_IMAGE", "registry.example/metrics:v7"),
            ("CLI_IMAGE", "registry.example/cli:v7"),
            (
                "CLOUD_NETWORK_CONFIG_CONTROLLER_IMAGE",
                "registry.example/cloud:v7",
            ),
            ("KUBERNETES_SERVICE_HOST", "192.0.2.1"),
            ("APISERVER_OVERRIDE_HOST", "192.0.2.1"),
            ("APISERVER_OVERRIDE_PORT", "6443"),
        ] {
            assert!(
                variables.contains(&json!({ "name": name, "value": value })),
                "{name}: {variables:?}"
            );
        }
        let dir = tempfile::tempdir().expect("a directory");
        let written = answer(&Args {
            dir: Some(dir.path().join("files")),
            ..args.clone()
        });
        assert_eq!((written.code, written.text.as_str()), (0, ""));
        for name in [
            "definitions.yaml",
            "operator.yaml",
            "example.cr.yaml",
            "admission-policy.yaml",
            "mtu-migration.yaml",
        ] {
            assert!(dir.path().join("files").join(name).is_file(), "{name}");
        }
        let at = |address: &str| {
            answer(&Args {
                api_server: Some(address.to_owned()),
                ..args.clone()
            })
        };
        let text = at("[fd00::1]:6443").text;
        assert!(
            text.contains("value: fd00::1\n") && !text.contains("[fd00::1]"),
            "{text}"
        );
        for wrong in ["192.0.2.1", "host:x", ":6443", "fd00::1:6443"] {
            assert_eq!(at(wrong).code, 2, "{wrong}");
        }
    }
}
