//! Validation of the flags.

use std::path::Path;

use cni::env::is_identifier;
use thiserror::Error;

use crate::{
    Args,
    daemon::Settings,
    desired::Choices,
    names::{CONF_EXTENSIONS, LEAST_MTU, MOST_MTU},
};

/// A flag has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidSettings {
    /// The ranges of a node are found by its name.
    #[error("--node-name must be set")]
    NodeName,
    /// Runtimes read other names as another format, or not at all.
    #[error("--cni-conf-name must be a file name that ends with .conflist, got \"{0}\"")]
    ConfName(String),
    /// Runtimes refuse other names.
    #[error("--network-name must not be empty, and has letters, digits, '.', '-' and '_' only, got \"{0}\"")]
    NetworkName(String),
    /// IPv6 needs the lower bound, and no link exceeds the upper bound.
    #[error("--mtu must be between {LEAST_MTU} and {MOST_MTU}, got {0}")]
    Mtu(u32),
    /// A VXLAN identifier has 24 bits.
    #[error("--vxlan-id must be between 1 and 16777215, got {0}")]
    VxlanId(u32),
    /// UDP has no port 0.
    #[error("--vxlan-port must not be 0")]
    VxlanPort,
}

impl TryFrom<Args> for Settings {
    type Error = InvalidSettings;

    fn try_from(args: Args) -> Result<Self, InvalidSettings> {
        let Args {
            node_name,
            cni_conf_dir,
            cni_conf_name,
            network_name,
            cluster_cidr,
            mtu,
            vxlan_id,
            vxlan_port,
            listen: _,
            kubeconfig: _,
            remove: _,
            stay: _,
        } = args;
        let node = node_name
            .filter(|name| !name.is_empty())
            .ok_or(InvalidSettings::NodeName)?;
        if !is_conflist(&cni_conf_name) {
            return Err(InvalidSettings::ConfName(cni_conf_name));
        }
        if !is_identifier(&network_name) {
            return Err(InvalidSettings::NetworkName(network_name));
        }
        if let Some(mtu) = mtu.filter(|mtu| !(LEAST_MTU..=MOST_MTU).contains(mtu)) {
            return Err(InvalidSettings::Mtu(mtu));
        }
        if !(1..1 << 24).contains(&vxlan_id) {
            return Err(InvalidSettings::VxlanId(vxlan_id));
        }
        if vxlan_port == 0 {
            return Err(InvalidSettings::VxlanPort);
        }
        Ok(Self {
            node,
            conflist: cni_conf_dir.join(cni_conf_name),
            network: network_name,
            choices: Choices {
                vxlan_id,
                vxlan_port,
                cluster: cluster_cidr.iter().map(ipnet::IpNet::trunc).collect(),
                mtu,
            },
        })
    }
}

/// True for a single component of a path that runtimes read as a list of plugins.
fn is_conflist(name: &str) -> bool {
    let path = Path::new(name);
    let [_, list, _] = CONF_EXTENSIONS;
    path.extension().is_some_and(|extension| extension == list)
        && path.file_name().is_some_and(|file| file == name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, InvalidSettings> {
        let argv = ["pod-network", "--node-name", "n"].iter().chain(flags);
        Settings::try_from(Command::try_parse_from(argv).expect("flags").args)
    }

    #[test]
    fn settings_without_flags_have_the_defaults() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.conflist, Path::new("/etc/cni/net.d/10-weft.conflist"));
        assert_eq!(settings.network, "weft");
        assert_eq!(settings.choices.vxlan_port, 4789);
        assert!(settings.choices.cluster.is_empty() && settings.choices.mtu.is_none());
    }

    #[test]
    fn cluster_cidr_takes_a_list_or_repeated_flags() {
        let expected = ["10.244.0.0/16", "fd00::/48"].map(|range| range.parse().unwrap());
        for flags in [
            &["--cluster-cidr=10.244.0.0/16,fd00::/48"][..],
            &["--cluster-cidr", "10.244.7.0/16", "--cluster-cidr", "fd00::/48"],
        ] {
            assert_eq!(settings(flags).unwrap().choices.cluster, expected);
        }
    }

    #[test]
    fn invalid_flag_is_refused_by_name() {
        for (flag, text) in [
            ("--node-name=", "--node-name must be set"),
            (
                "--cni-conf-name=../10-weft.conflist",
                "--cni-conf-name must be a file name that ends with .conflist, got \"../10-weft.conflist\"",
            ),
            (
                "--cni-conf-name=10-weft.conf",
                "--cni-conf-name must be a file name that ends with .conflist, got \"10-weft.conf\"",
            ),
            (
                "--network-name=a/b",
                "--network-name must not be empty, and has letters, digits, '.', '-' and '_' only, got \"a/b\"",
            ),
            ("--mtu=1279", "--mtu must be between 1280 and 65535, got 1279"),
            ("--vxlan-id=0", "--vxlan-id must be between 1 and 16777215, got 0"),
            (
                "--vxlan-id=16777216",
                "--vxlan-id must be between 1 and 16777215, got 16777216",
            ),
            ("--vxlan-port=0", "--vxlan-port must not be 0"),
        ] {
            let argv = if flag.starts_with("--node-name") {
                Settings::try_from(Command::try_parse_from(["p", flag]).expect("flags").args)
            } else {
                settings(&[flag])
            };
            assert_eq!(argv.unwrap_err().to_string(), text);
        }
    }
}
