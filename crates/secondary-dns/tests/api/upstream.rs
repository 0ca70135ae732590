//! Pods of mixed images: Weft's monitor beside CoreDNS, and Weft's server beside the upstream monitor. The two
//! containers share only zone files. CoreDNS is the real one. The upstream monitor cannot be built here, and the test
//! writes its files by hand.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cluster::{Home, Quiet, coredns, free_port};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use kube_kit::shutdown::Shutdown;
use stage::{Task, until};

use crate::fixture::{Resolver, Stage};

/// The deployed Corefile with another port and directory, without probes, and with shorter intervals.
fn corefile(directory: &Path, port: u16) -> PathBuf {
    let zones = directory.join("zones");
    let path = directory.join("Corefile");
    let text = format!(
        ".:{port} {{\n    auto {{\n      directory {} db\\.(.*) {{1}}\n      reload 1s\n    }}\n    log\n}}\n",
        zones.display()
    );
    fs::create_dir_all(&zones).expect("a directory");
    fs::write(&path, text).expect("a Corefile");
    path
}

/// A running program. It ends when it is dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::create(log).expect("a log");
        let both = log.try_clone().expect("a log");
        let command = command.stdin(Stdio::null()).stdout(log).stderr(both);
        Self(command.spawn().expect("a program"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CoreDNS with the zone files of a directory.
struct CoreDns {
    resolver: Resolver,
    _program: Program,
}

impl CoreDns {
    /// `None` if CoreDNS is not built and cannot be built. The reason is printed.
    fn start(directory: &Path) -> Option<Self> {
        let program = match Home::from_env().and_then(|home| coredns::ensure(&home, "do without", &mut Quiet))
        {
            Ok(program) => program,
            Err(error) => {
                println!("skipped: no CoreDNS: {error}");
                return None;
            }
        };
        let port = free_port().expect("a port");
        let log = directory.join("coredns.log");
        let mut command = Command::new(program);
        command.arg("-conf").arg(corefile(directory, port));
        let program = Program::start(&mut command, &log);
        let resolver = Resolver::of(port);
        until("an answer of CoreDNS", || {
            let asked = resolver.try_ask("vm.", RecordType::SOA);
            asked.map_err(|error| format!("{error}: {}", fs::read_to_string(&log).unwrap_or_default()))
        });
        Some(Self {
            resolver,
            _program: program,
        })
    }
}

impl Deref for CoreDns {
    type Target = Resolver;

    fn deref(&self) -> &Resolver {
        &self.resolver
    }
}

/// Answers to clients of either pod while instances are created, changed and deleted; `zone` is the zone of both.
fn live(stage: &Stage, resolver: &Resolver, zone: &str) {
    let name = |below: &str| format!("{below}.{zone}");
    stage.run("vmi-sec", &[("default", "10.244.0.5"), ("nic1", "10.10.0.5")]);
    resolver.wait_for(&name("nic1.vmi-sec.vms"), "10.10.0.5");
    assert_eq!(resolver.address(&name("vmi-sec.vms")), "10.10.0.5");
    assert_eq!(resolver.address(&name("default.vmi-sec.vms")), "NXDomain");
    assert_eq!(resolver.address(&name("ns")), "192.0.2.1");
    let servers = resolver.ask(zone, RecordType::NS).answers;
    assert_eq!(servers.len(), 1, "{servers:?}");
    assert_eq!(servers[0].data.to_string(), name("ns"));
    stage.run("vmi2", &[("nic1", "10.10.0.6")]);
    resolver.wait_for(&name("vmi2.vms"), "10.10.0.6");
    stage.set("vmi-sec", &[("nic1", "10.10.0.7")]);
    resolver.wait_for(&name("nic1.vmi-sec.vms"), "10.10.0.7");
    stage.end("vmi2");
    resolver.wait_for(&name("vmi2.vms"), "NXDomain");
    assert_eq!(resolver.address(&name("vmi-sec.vms")), "10.10.0.7");
    stage.end("vmi-sec");
    resolver.wait_for(&name("vmi-sec.vms"), "NXDomain");
}

#[test]
fn coredns_serves_the_zone_files_of_our_monitor() {
    // secondary-dns#58, secondary-dns#68
    let directory = tempfile::tempdir().expect("a directory");
    let Some(coredns) = CoreDns::start(directory.path()) else {
        return;
    };
    let stage = Stage::start();
    let variables = &[
        ("DOMAIN", "secondary.io"),
        ("NAME_SERVER_IP", "192.0.2.1"),
        ("KSD_REVERSE_PREFIXES", "10.10.0.0/16"),
    ];
    let _monitor = stage.monitor(variables, &directory.path().join("zones"));
    stage.run("other", &[("nic1", "10.10.9.9")]);
    coredns.wait_for("nic1.other.vms.vm.secondary.io.", "10.10.9.9");
    live(&stage, &coredns, "vm.secondary.io.");
    // CoreDNS serves only the AAAA and PTR records in the files.
    stage.set("other", &[("nic1", "fd00::5")]);
    until("the AAAA record", || {
        let answers = coredns
            .ask("nic1.other.vms.vm.secondary.io.", RecordType::AAAA)
            .answers;
        let found: Vec<String> = answers.iter().map(|record| record.data.to_string()).collect();
        if found == ["fd00::5"] {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
    stage.set("other", &[("nic1", "10.10.9.9")]);
    until("the PTR record", || {
        let answers = coredns.ask("9.9.10.10.in-addr.arpa.", RecordType::PTR).answers;
        let found: Vec<String> = answers.iter().map(|record| record.data.to_string()).collect();
        let expected = ["nic1.other.vms.vm.secondary.io."];
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
}

/// Writes the zone file of the upstream monitor with these records (§5), with its method: it overwrites the former
/// file.
fn overwrite(zones: &Path, serial: u32, records: &[&str]) {
    let mut text = format!(
        "$ORIGIN vm.secondary.io. \n$TTL 3600 \n\
         @ IN SOA ns.vm.secondary.io. email.vm.secondary.io. ({serial} 3600 3600 1209600 3600)\n\
         @ IN NS ns.vm.secondary.io.\nns IN A 192.0.2.1\n"
    );
    for record in records {
        text.push_str(record);
        text.push('\n');
    }
    fs::write(zones.join("db.vm.secondary.io"), text).expect("a zone file");
}

#[test]
fn our_server_serves_the_zone_files_of_the_upstream_monitor() {
    // secondary-dns#68
    let directory = tempfile::tempdir().expect("a directory");
    let port = free_port().expect("a port");
    let corefile = corefile(directory.path(), port);
    let zones = directory.path().join("zones");
    let _server = Task::start(async move |shutdown: Shutdown| {
        secondary_dns::serve::run(&corefile, &shutdown)
            .await
            .expect("a server");
    });
    let resolver = Resolver::of(port);
    // The upstream monitor writes no file before the first address.
    until("SERVFAIL", || {
        let asked = resolver.try_ask("vmi-sec.vms.vm.secondary.io.", RecordType::A);
        match asked.map(|message| message.response_code) {
            Ok(ResponseCode::ServFail) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let first = ["nic1.vmi-sec.vms IN A 10.10.0.5", "vmi-sec.vms IN A 10.10.0.5"];
    overwrite(&zones, 1, &first);
    resolver.wait_for("nic1.vmi-sec.vms.vm.secondary.io.", "10.10.0.5");
    assert_eq!(resolver.address("vmi-sec.vms.vm.secondary.io."), "10.10.0.5");
    assert_eq!(resolver.address("ns.vm.secondary.io."), "192.0.2.1");
    assert_eq!(
        resolver.address("default.vmi-sec.vms.vm.secondary.io."),
        "NXDomain"
    );
    assert_eq!(resolver.ask("vm.secondary.io.", RecordType::NS).answers.len(), 1);
    // The order of instances changes from file to file.
    let second = ["nic1.vmi2.vms IN A 10.10.0.6", "vmi2.vms IN A 10.10.0.6"];
    overwrite(&zones, 2, &[second, first].concat());
    resolver.wait_for("vmi2.vms.vm.secondary.io.", "10.10.0.6");
    let other = ["nic1.vmi-sec.vms IN A 10.10.0.7", "vmi-sec.vms IN A 10.10.0.7"];
    overwrite(&zones, 3, &[other, second].concat());
    resolver.wait_for("nic1.vmi-sec.vms.vm.secondary.io.", "10.10.0.7");
    overwrite(&zones, 4, &other);
    resolver.wait_for("vmi2.vms.vm.secondary.io.", "NXDomain");
    assert_eq!(resolver.address("vmi-sec.vms.vm.secondary.io."), "10.10.0.7");
    overwrite(&zones, 5, &[]);
    resolver.wait_for("vmi-sec.vms.vm.secondary.io.", "NXDomain");
    assert_eq!(resolver.address("vm.secondary.io."), "NoError");
}
