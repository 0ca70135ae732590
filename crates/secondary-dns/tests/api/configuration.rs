//! Changes of the `ConfigMap` while the secondary DNS runs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hickory_proto::rr::{RData, RecordType};
use stage::until;

use crate::fixture::{Dns, Stage};

/// Writes a version of the keys in the manner of the kubelet.
fn publish(directory: &Path, version: &str, domain: &str, name_server: &str) {
    let data = directory.join(version);
    fs::create_dir(&data).expect("a directory");
    fs::write(data.join("DOMAIN"), domain).expect("a key");
    fs::write(data.join("NAME_SERVER_IP"), name_server).expect("a key");
    symlink(version, directory.join("..new")).expect("a link");
    fs::rename(directory.join("..new"), directory.join("..data")).expect("a link");
}

fn serial(dns: &Dns, zone: &str) -> u32 {
    match &dns.ask(zone, RecordType::SOA).answers[0].data {
        RData::SOA(soa) => soa.serial,
        other => panic!("{other}"),
    }
}

/// All answers to repeated queries for names during some work, and directly before and after it.
fn answers(dns: &Dns, names: &[&str], work: impl FnOnce()) -> Vec<BTreeSet<String>> {
    let ask = |all: &mut [BTreeSet<String>]| {
        for (name, found) in names.iter().zip(all) {
            found.insert(dns.address(name));
        }
    };
    let mut all = vec![BTreeSet::new(); names.len()];
    ask(&mut all);
    let end = AtomicBool::new(false);
    let mut all = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                ask(&mut all);
                thread::sleep(Duration::from_millis(1));
            }
            all
        });
        work();
        end.store(true, Ordering::SeqCst);
        asking.join().expect("answers")
    });
    ask(&mut all);
    all
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn configuration_that_changes_is_followed_without_a_restart() {
    // secondary-dns#71
    let stage = Stage::start();
    stage.run("vmi1", &[("nic1", "10.10.0.5")]);
    let (zones, mounted) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    publish(mounted.path(), "..1", "a.example", "192.0.2.1");
    let file = |zone: &str| zones.path().join(format!("db.{zone}"));
    // The domain changed while no monitor ran. The other zone has another author.
    for (zone, mailbox) in [("vm.former.example", "email"), ("vm.people.example", "people")] {
        let text = format!(
            "$ORIGIN {zone}. \n$TTL 3600 \n@ IN SOA ns.{zone}. {mailbox}.{zone}. (7 3600 3600 1209600 3600)\n"
        );
        fs::write(file(zone), text).expect("a file");
    }
    let dns = stage.dns_with(
        &[("DOMAIN", "environment.example"), ("KSD_SERIAL", "counter")],
        Some(zones.path()),
        None,
        Some(mounted.path()),
    );
    dns.wait_ready();
    let (old, new) = ("vmi1.vms.vm.a.example.", "vmi1.vms.vm.b.example.");
    assert_eq!(dns.address(old), "10.10.0.5");
    assert_eq!(dns.address("ns.vm.a.example."), "192.0.2.1");
    until("the first file", || fs::read_to_string(file("vm.a.example")));
    until("the end of the former file", || {
        if file("vm.former.example").exists() {
            Err("it is there")
        } else {
            Ok(())
        }
    });
    assert!(file("vm.people.example").exists());

    // The name server changes, in the same zone.
    let before = serial(&dns, "vm.a.example.");
    let seen = answers(&dns, &[old], || {
        publish(mounted.path(), "..2", "a.example", "192.0.2.2");
        dns.wait_for("ns.vm.a.example.", "192.0.2.2");
        until("the file", || {
            let text = fs::read_to_string(file("vm.a.example")).map_err(|error| error.to_string())?;
            if text.contains("ns IN A 192.0.2.2\n") {
                Ok(())
            } else {
                Err(text)
            }
        });
    });
    assert_eq!(seen, [set(&["10.10.0.5"])]);
    let after = serial(&dns, "vm.a.example.");
    assert!(crate::fixture::is_newer(after, before), "{before} {after}");

    // The zone changes: each name has its address, or its zone is not served.
    let seen = answers(&dns, &[old, new], || {
        publish(mounted.path(), "..3", "b.example", "192.0.2.2");
        dns.wait_for(new, "10.10.0.5");
        dns.wait_for(old, "Refused");
    });
    assert_eq!(seen[0], set(&["10.10.0.5", "Refused"]));
    assert!(
        seen[1].is_subset(&set(&["Refused", "ServFail", "10.10.0.5"])),
        "{seen:?}"
    );
    until("the files", || {
        let is_there = (file("vm.a.example").exists(), file("vm.b.example").exists());
        if is_there == (false, true) {
            Ok(())
        } else {
            Err(format!("{is_there:?}"))
        }
    });

    // Invalid values change nothing.
    publish(mounted.path(), "..4", "a..b", "192.0.2.3");
    stage.run("vmi2", &[("nic1", "10.10.0.6")]);
    dns.wait_for("vmi2.vms.vm.b.example.", "10.10.0.6");
    assert_eq!(dns.address("ns.vm.b.example."), "192.0.2.2");
    publish(mounted.path(), "..5", "b.example", "192.0.2.3");
    dns.wait_for("ns.vm.b.example.", "192.0.2.3");
    assert_eq!(dns.address("vmi2.vms.vm.b.example."), "10.10.0.6");
    stage.end("vmi2");
    dns.wait_for("vmi2.vms.vm.b.example.", "NXDomain");
    until("the file without it", || {
        let text = fs::read_to_string(file("vm.b.example")).map_err(|error| error.to_string())?;
        let is_done = text.contains("ns IN A 192.0.2.3\n") && !text.contains("vmi2") && text.contains("vmi1");
        if is_done { Ok(()) } else { Err(text) }
    });
}
