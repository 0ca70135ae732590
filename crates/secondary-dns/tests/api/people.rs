//! `weft dns` against a cluster.

use clap::Parser as _;
use kube_kit::connection::Answer;
use secondary_dns::cli::{Args, answer};

use crate::fixture::{Stage, said};

#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    args: Args,
}

fn ask(stage: &Stage, arguments: &[&str]) -> Answer {
    let kubeconfig = stage.kubeconfig().display().to_string();
    let whole = ["dns"].iter().chain(arguments).copied();
    let program = Program::try_parse_from(whole.chain(["--kubeconfig", &kubeconfig]));
    answer(program.expect("arguments").args)
}

const NOTE: &str =
    "note: there is no secondary DNS in this cluster: the output shows the answers of one without a domain\n";

#[test]
fn records_command_explains_the_answers() {
    let stage = Stage::start();
    stage.run("vmi1", &[("default", "10.244.0.5"), ("nic1", "10.10.0.5")]);
    stage.run("vmi2", &[("nic1", "fe80::1")]);
    let records = "\
NAME               TYPE  ADDRESS
nic1.vmi1.vms.vm.  A     10.10.0.5
vmi1.vms.vm.       A     10.10.0.5
";
    assert_eq!(said(&ask(&stage, &["records"])), (0, records, NOTE));
    assert_eq!(said(&ask(&stage, &["records", "-n", "vms"])), (0, records, NOTE));
    assert_eq!(said(&ask(&stage, &["records", "-n", "default"])).0, 1);
    let found = "vmi1.vms.vm. has A 10.10.0.5\n";
    assert_eq!(said(&ask(&stage, &["lookup", "VMI1.vms.vm"])), (0, found, NOTE));
    let none = "default.vmi1.vms.vm. does not exist: NXDOMAIN\n\n\
                instance vms/vmi1: interface \"default\" is on the default network\n";
    assert_eq!(
        said(&ask(&stage, &["lookup", "default.vmi1.vms.vm"])),
        (1, none, NOTE)
    );
    let none = "vmi2.vms.vm. does not exist: NXDOMAIN\n\n\
                instance vms/vmi2: interface \"nic1\" has no address that can be published\n";
    assert_eq!(said(&ask(&stage, &["lookup", "vmi2.vms.vm."])), (1, none, NOTE));
    let none =
        "absent.vms.vm. does not exist: NXDOMAIN\n\nthere is no instance \"absent\" in namespace \"vms\"\n";
    assert_eq!(said(&ask(&stage, &["lookup", "absent.vms.vm"])), (1, none, NOTE));
    let elsewhere = "example.com. is not in the zone vm.: REFUSED\n";
    assert_eq!(
        said(&ask(&stage, &["lookup", "example.com"])),
        (1, elsewhere, NOTE)
    );
}
