//! Conversion of upstream's command lines into clap's form.

use std::ffi::OsString;
use std::path::Path;

use program::argv::go_flags;

/// Names of upstream's programs, and the command of each. `curl` accepts a single command line: that of the probes in
/// upstream's deployment.
const NAMES: [(&str, &str); 21] = [
    ("cluster-network-addons-operator", "operator"),
    ("manifest-templator", "manifest-templator"),
    ("csv-generator", "csv-generator"),
    ("multus-daemon", "multus-daemon"),
    ("multus", "multus"),
    ("thin_entrypoint", "thin-entrypoint"),
    ("kubeconfig_generator", "kubeconfig-generator"),
    ("cert-approver", "cert-approver"),
    ("install_multus", "install-multus"),
    ("bridge-marker", "bridge-marker"),
    ("marker", "ovs-marker"),
    ("ovs-marker", "ovs-marker"),
    (DHCP, "dhcp-daemon"),
    ("macvtap-deviceplugin", "macvtap-device-plugin"),
    ("dynamic-networks-controller", "dynamic-networks"),
    ("curl", "curl"),
    (MANAGER, MAC_POOL),
    ("coredns", SECONDARY_DNS),
    ("cluster-network-operator", "cluster-network-operator"),
    ("cluster-network-check-endpoints", "check-endpoints"),
    ("cluster-network-check-target", "check-target"),
];

/// Three upstream programs have this name. Flags that only the KubeVirt IPAM controller has, and that its Deployment
/// always sets, identify it. Variables that the Deployment of secondary DNS always sets, or an argument of its name
/// server, identify secondary DNS (secondary-dns §2).
const MANAGER: &str = "manager";
const MAC_POOL: &str = "kubemacpool";
const IPAM: &str = "kubevirt-ipam";
const FLAGS_OF_IPAM: [&str; 6] = [
    "--leader-elect",
    "--certificates-dir",
    "--default-network-nad-namespace",
    "--health-probe-bind-address",
    "--enable-http2",
    "--tls-curve-preferences",
];
const SECONDARY_DNS: &str = "secondary-dns";
const VARIABLES_OF_SECONDARY_DNS: [&str; 2] = ["NAME_SERVER_IP", "KSD_MODE"];
const COREFILE: &str = "--conf";

/// Returns the command of a program with the name `manager`, from its arguments in clap's form.
fn manager(arguments: &[OsString], is_set: impl Fn(&str) -> bool) -> &'static str {
    let has = |flags: &[&str]| {
        let mut arguments = arguments.iter().filter_map(|argument| argument.to_str());
        arguments.any(|argument| {
            argument
                .split('=')
                .next()
                .is_some_and(|name| flags.contains(&name))
        })
    };
    if has(&FLAGS_OF_IPAM) {
        IPAM
    } else if has(&[COREFILE]) || VARIABLES_OF_SECONDARY_DNS.into_iter().any(is_set) {
        SECONDARY_DNS
    } else {
        MAC_POOL
    }
}

/// The upstream plugin that is a daemon if its first argument is `daemon`.
const DHCP: &str = "dhcp";
const DHCP_ROLE: &str = "daemon";

/// Inserts the command of the program's name before the arguments, and converts Go-style flags into clap's form. Also
/// returns the name, if it stands for a command. `is_set` returns true for variables that are set.
pub(crate) fn rewrite(
    mut argv: impl Iterator<Item = OsString>,
    is_set: impl Fn(&str) -> bool,
) -> (Vec<OsString>, Option<OsString>) {
    let program = argv.next().unwrap_or_else(|| OsString::from("weft"));
    let name = Path::new(&program).file_name().unwrap_or_default().to_owned();
    let command = NAMES
        .iter()
        .find(|(known, _)| name == *known)
        .map(|(_, command)| *command);
    let mut argv = argv.peekable();
    if name == DHCP {
        argv.next_if(|argument| argument == DHCP_ROLE);
    }
    let arguments: Vec<OsString> = go_flags(argv).collect();
    let command = match command {
        Some(_) if name == MANAGER => Some(manager(&arguments, is_set)),
        other => other,
    };
    let mut rewritten = vec![program];
    rewritten.extend(command.map(OsString::from));
    rewritten.extend(arguments);
    (forgiving(rewritten), command.map(|_| name))
}

/// Commands that ignore unknown flags: builds pass the flags of other generators to them too (operator.md §13.3).
const FORGIVING: [&str; 2] = ["manifest-templator", "csv-generator"];

fn forgiving(mut argv: Vec<OsString>) -> Vec<OsString> {
    if argv
        .get(1)
        .is_some_and(|command| FORGIVING.iter().any(|it| command == it))
    {
        let arguments = argv.split_off(2);
        argv.extend(manifests::templator::known(arguments));
    }
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(argv: &[&str]) -> Vec<String> {
        let (argv, _) = rewrite(argv.iter().map(OsString::from), |_| false);
        argv.into_iter()
            .map(|argument| argument.into_string().expect("text"))
            .collect()
    }

    #[test]
    fn go_style_flags_become_long_flags() {
        for (given, expected) in [
            (vec!["-node-name", "n"], vec!["--node-name", "n"]),
            (vec!["-node-name=n"], vec!["--node-name=n"]),
            (vec!["--node-name", "n"], vec!["--node-name", "n"]),
            (vec!["-v", "3", "-logtostderr"], vec!["-v", "3", "--logtostderr"]),
            (vec!["-v=3"], vec!["-v=3"]),
            (
                vec!["-d", "/dir", "-t", "thick"],
                vec!["-d", "/dir", "-t", "thick"],
            ),
            (
                vec!["-health-probe-port", "-1"],
                vec!["--health-probe-port", "-1"],
            ),
            (vec!["-", "x"], vec!["-", "x"]),
            (vec!["--", "-name"], vec!["--", "-name"]),
        ] {
            let argv: Vec<&str> = ["weft", "c"].into_iter().chain(given).collect();
            assert_eq!(rewritten(&argv)[2..], expected);
        }
    }

    #[test]
    fn manager_of_secondary_dns_differs_from_that_of_the_mac_pool() {
        // secondary-dns §2
        let command = |variable: &str, arguments: &[&str]| {
            let argv = ["/manager"].iter().chain(arguments).map(OsString::from);
            let (argv, _) = rewrite(argv, |name| name == variable);
            argv[1].clone()
        };
        for (variable, arguments, expected) in [
            ("", &[][..], "kubemacpool"),
            ("RANGE_START", &["--v=production"], "kubemacpool"),
            ("DOMAIN", &[], "kubemacpool"),
            ("NAME_SERVER_IP", &[], "secondary-dns"),
            ("NAME_SERVER_IP", &["-zap-devel"], "secondary-dns"),
            ("KSD_MODE", &[], "secondary-dns"),
            ("", &["-conf", "/c"], "secondary-dns"),
            ("", &["--conf=/c"], "secondary-dns"),
        ] {
            assert_eq!(command(variable, arguments), expected, "{variable} {arguments:?}");
        }
    }

    #[test]
    fn cluster_network_operator_keeps_its_subcommands() {
        assert_eq!(
            rewritten(&[
                "/usr/bin/cluster-network-operator",
                "start",
                "--listen=0.0.0.0:9104"
            ])[1..],
            ["cluster-network-operator", "start", "--listen=0.0.0.0:9104"]
        );
        assert_eq!(
            rewritten(&[
                "/usr/bin/cluster-network-operator",
                "probe-mtu",
                "--namespace=ns",
                "--name=mtu"
            ])[1..],
            [
                "cluster-network-operator",
                "probe-mtu",
                "--namespace=ns",
                "--name=mtu"
            ]
        );
    }

    #[allow(clippy::too_many_lines, reason = "some lines for each name")]
    #[test]
    fn names_of_upstream_run_their_command() {
        assert_eq!(
            rewritten(&["/usr/bin/bridge-marker", "-node-name", "n"])[1..],
            ["bridge-marker", "--node-name", "n"]
        );
        assert_eq!(
            rewritten(&[
                "/marker",
                "-v",
                "3",
                "-ovs-socket",
                "unix:/s",
                "-healthcheck-interval=60"
            ])[1..],
            [
                "ovs-marker",
                "-v",
                "3",
                "--ovs-socket",
                "unix:/s",
                "--healthcheck-interval=60"
            ]
        );
        assert_eq!(
            rewritten(&["/macvtap-deviceplugin", "-v", "3", "-logtostderr"])[1..],
            ["macvtap-device-plugin", "-v", "3", "--logtostderr"]
        );
        assert_eq!(
            rewritten(&["/manager", "-v=production", "-wait-time", "300"])[1..],
            ["kubemacpool", "-v=production", "--wait-time", "300"]
        );
        assert_eq!(
            rewritten(&[
                "/manager",
                "--leader-elect",
                "-certificates-dir=",
                "--tls-min-version=VersionTLS13"
            ])[1..],
            [
                "kubevirt-ipam",
                "--leader-elect",
                "--certificates-dir=",
                "--tls-min-version=VersionTLS13"
            ]
        );
        assert_eq!(
            rewritten(&["/manager", "-health-probe-bind-address", ":9081"])[1..],
            ["kubevirt-ipam", "--health-probe-bind-address", ":9081"]
        );
        assert_eq!(
            rewritten(&["/coredns", "-conf", "/etc/coredns/Corefile"])[1..],
            ["secondary-dns", "--conf", "/etc/coredns/Corefile"]
        );
        assert_eq!(
            rewritten(&[
                "/usr/bin/cluster-network-check-endpoints",
                "-listen",
                "0.0.0.0:17698"
            ])[1..],
            ["check-endpoints", "--listen", "0.0.0.0:17698"]
        );
        assert_eq!(
            rewritten(&["/usr/bin/cluster-network-check-target"])[1..],
            ["check-target"]
        );
        assert_eq!(
            rewritten(&["/dynamic-networks-controller", "-config=/c", "-v=5"])[1..],
            ["dynamic-networks", "--config=/c", "-v=5"]
        );
        assert_eq!(
            rewritten(&["curl", "--fail", "--unix-socket", "/s", "localhost/healthz"])[1..],
            ["curl", "--fail", "--unix-socket", "/s", "localhost/healthz"]
        );
        assert_eq!(
            rewritten(&["install_multus", "-t", "thick"])[1..],
            ["install-multus", "-t", "thick"]
        );
        assert_eq!(
            rewritten(&[
                "/thin_entrypoint",
                "--multus-conf-file=auto",
                "--cni-bin-dir",
                "/b"
            ])[1..],
            [
                "thin-entrypoint",
                "--multus-conf-file=auto",
                "--cni-bin-dir",
                "/b"
            ]
        );
        assert_eq!(rewritten(&["/opt/cni/bin/multus"])[1..], ["multus"]);
        assert_eq!(
            rewritten(&["dhcp", "daemon", "-hostprefix", "/host", "-broadcast"])[1..],
            ["dhcp-daemon", "--hostprefix", "/host", "--broadcast"]
        );
        assert_eq!(rewritten(&["/weft", "operator"])[1..], ["operator"]);
        assert_eq!(
            rewritten(&["/usr/bin/csv-generator", "-version=1", "--unheard-of", "x"])[1..],
            ["csv-generator", "--version=1"]
        );
        assert_eq!(
            rewritten(&[
                "weft",
                "manifest-templator",
                "--csv-version=1",
                "--input-file",
                "f"
            ])[1..],
            ["manifest-templator", "--input-file", "f"]
        );
        let (_, name) = rewrite([OsString::from("/a/install_multus")].into_iter(), |_| false);
        assert_eq!(name, Some(OsString::from("install_multus")));
    }
}
