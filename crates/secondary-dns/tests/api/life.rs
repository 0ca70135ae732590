//! From an instance to an answer, with interruptions.

use std::fs;
use std::time::Duration;

use hickory_proto::rr::{RData, RecordType};
use serde_json::json;
use stage::until;

use crate::fixture::{ACCOUNT, Line, Stage, pods};

#[test]
fn instances_have_names_as_long_as_they_exist() {
    // secondary-dns#22, secondary-dns#42, secondary-dns#57-58
    let stage = Stage::start();
    let mark = stage.mark();
    stage.run("vmi1", &[("default", "10.244.0.5"), ("nic1", "10.10.0.5")]);
    let dns = stage.dns(
        &[("DOMAIN", "example.com"), ("NAME_SERVER_IP", "192.0.2.1")],
        None,
    );
    dns.wait_ready();
    // A ready server answers all names.
    assert_eq!(dns.address("nic1.vmi1.vms.vm.example.com."), "10.10.0.5");
    assert_eq!(dns.address("vmi1.vms.vm.example.com."), "10.10.0.5");
    assert_eq!(dns.address("default.vmi1.vms.vm.example.com."), "NXDomain");
    assert_eq!(dns.address("vms.vm.example.com."), "NoError");
    assert_eq!(dns.address("ns.vm.example.com."), "192.0.2.1");

    stage.set("vmi1", &[("nic1", "10.10.0.6")]);
    let change = dns.wait_for("nic1.vmi1.vms.vm.example.com.", "10.10.0.6");
    stage.run("vmi2", &[("nic1", "10.10.0.7")]);
    let new = dns.wait_for("vmi2.vms.vm.example.com.", "10.10.0.7");
    stage.end("vmi2");
    stage.end("vmi1");
    dns.wait_for("vmi2.vms.vm.example.com.", "NXDomain");
    dns.wait_for("vms.vm.example.com.", "NXDomain");
    eprintln!(
        "from the API server's answer to the DNS answer: {change:?} for a change, {new:?} for a new instance"
    );
    let requests = stage.requests_of(ACCOUNT, mark);
    assert!(
        requests.iter().all(|request| request.verb == "list"),
        "{requests:#?}"
    );
    assert_eq!(requests.len(), 1, "{requests:#?}");
}

#[test]
fn claimed_address_is_answered_until_the_guest_reports_its_own() {
    // secondary-dns#69
    const EARLY: [(&str, &str); 1] = [("KSD_EARLY_ADDRESSES", "claims")];
    let stage = Stage::unshared();
    // An unserved kind of claims delays nothing.
    let dns = stage.dns(&EARLY, None);
    dns.wait_ready();
    drop(dns);

    stage.define_claims();
    stage.run("vmi1", &[]);
    stage.claim("vmi1", "10.84.0.1/24");
    let dns = stage.dns(&EARLY, None);
    dns.wait_ready();
    assert_eq!(dns.address("nic1.vmi1.vms.vm."), "10.84.0.1");
    stage.run("vmi2", &[]);
    stage.claim("vmi2", "10.84.0.2/24");
    dns.wait_for("vmi2.vms.vm.", "10.84.0.2");
    stage.set("vmi2", &[("nic1", "10.84.0.9")]);
    dns.wait_for("nic1.vmi2.vms.vm.", "10.84.0.9");
    stage.end("vmi1");
    dns.wait_for("nic1.vmi1.vms.vm.", "NXDomain");

    let unaware = stage.dns(&[], None);
    unaware.wait_ready();
    stage.run("vmi1", &[]);
    dns.wait_for("vmi1.vms.vm.", "10.84.0.1");
    assert_eq!(unaware.address("vmi1.vms.vm."), "NXDomain");
}

#[test]
fn address_of_the_pod_is_answered_until_the_guest_reports_its_own() {
    // secondary-dns#70
    const EARLY: [(&str, &str); 1] = [("KSD_EARLY_ADDRESSES", "claims,network-status")];
    let stage = Stage::unshared();
    stage.run("vmi1", &[]);
    stage.launch("launcher-1", "vmi1", "10.85.0.1");
    // Forbidden pods delay nothing.
    let dns = stage.dns(&EARLY, None);
    dns.wait_ready();
    assert_eq!(dns.address("vmi1.vms.vm."), "NXDomain");
    drop(dns);

    stage.define_claims();
    stage.grant_pods();
    let dns = stage.dns(&EARLY, None);
    dns.wait_ready();
    assert_eq!(dns.address("nic1.vmi1.vms.vm."), "10.85.0.1");
    stage.run("vmi2", &[]);
    stage.launch("launcher-2", "vmi2", "10.85.0.2");
    dns.wait_for("vmi2.vms.vm.", "10.85.0.2");
    // The claim also has the addresses of the instance's next pod.
    stage.claim("vmi2", "10.84.0.2/24");
    dns.wait_for("vmi2.vms.vm.", "10.84.0.2");
    stage.set("vmi2", &[("nic1", "10.84.0.9")]);
    dns.wait_for("nic1.vmi2.vms.vm.", "10.84.0.9");
    stage.delete(&pods("launcher-1"));
    dns.wait_for("nic1.vmi1.vms.vm.", "NXDomain");
    // A pod that has ended does not count any more.
    stage.launch("launcher-3", "vmi1", "10.85.0.3");
    dns.wait_for("nic1.vmi1.vms.vm.", "10.85.0.3");
    stage.report(&pods("launcher-3"), &json!({ "phase": "Succeeded" }));
    dns.wait_for("nic1.vmi1.vms.vm.", "NXDomain");
}

#[test]
fn kubevirt_that_comes_later_is_found() {
    // secondary-dns §3.2: not ready until then, and SERVFAIL
    let stage = Stage::without_kubevirt();
    let dns = stage.dns(&[], None);
    until("SERVFAIL", || match dns.address("a.b.vm.") {
        code if code == "ServFail" => Ok(()),
        code => Err(code),
    });
    let mark = stage.mark();
    until("a look for KubeVirt", || {
        let asked = stage.requests_of(ACCOUNT, mark);
        if asked.iter().any(|request| request.code == 404) {
            Ok(())
        } else {
            Err(format!("{asked:?}"))
        }
    });
    assert!(!dns.is_ready());
    stage.define_kubevirt();
    stage.run("vmi1", &[("nic1", "10.10.0.5")]);
    dns.wait_ready();
    dns.wait_for("vmi1.vms.vm.", "10.10.0.5");
}

#[test]
fn outage_of_the_api_server_goes_unnoticed() {
    // secondary-dns#59
    let stage = Stage::start();
    let line = Line::to(&stage);
    stage.run("stays", &[("nic1", "10.10.0.5")]);
    stage.run("goes", &[("nic1", "10.10.0.6")]);
    let zones = tempfile::tempdir().expect("a directory");
    let dns = stage.dns_over(&[("KSD_SERIAL", "counter")], Some(zones.path()), Some(&line));
    dns.wait_ready();
    dns.wait_for("goes.vms.vm.", "10.10.0.6");
    line.cut(true);
    stage.end("goes");
    stage.run("comes", &[("nic1", "10.10.0.7")]);
    // The loop gives the watch enough time to notice, and to fail again.
    for _ in 0..20 {
        assert_eq!(dns.address("goes.vms.vm."), "10.10.0.6");
        assert_eq!(dns.address("stays.vms.vm."), "10.10.0.5");
        assert!(dns.is_ready());
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = fs::metadata(zones.path().join("db.vm"))
        .expect("a file")
        .modified()
        .expect("a time");
    line.cut(false);
    dns.wait_for("goes.vms.vm.", "NXDomain");
    dns.wait_for("comes.vms.vm.", "10.10.0.7");
    assert_eq!(dns.address("stays.vms.vm."), "10.10.0.5");
    until("the file", || {
        let text = fs::read_to_string(zones.path().join("db.vm")).map_err(|error| error.to_string())?;
        let is_new = text.contains("comes.vms") && !text.contains("goes.vms");
        if is_new { Ok(()) } else { Err(text) }
    });
    let after = fs::metadata(zones.path().join("db.vm"))
        .expect("a file")
        .modified()
        .expect("a time");
    assert!(after > before);
}

#[test]
fn killed_at_any_time_it_comes_back_with_everything() {
    // secondary-dns#32
    let stage = Stage::start();
    let zones = tempfile::tempdir().expect("a directory");
    let serial = || {
        let text = fs::read_to_string(zones.path().join("db.vm")).ok()?;
        assert!(
            text.ends_with('\n') && text.starts_with("$ORIGIN vm. \n"),
            "{text}"
        );
        secondary_dns::zone::serial::of_file(&text)
    };
    let mut last = None;
    for round in 0..8_u64 {
        let dns = stage.dns(&[], Some(zones.path()));
        dns.wait_ready();
        if round > 0 {
            let name = format!("vm{}.vms.vm.", round - 1);
            assert_eq!(dns.address(&name), format!("10.10.0.{}", round - 1));
        }
        stage.run(&format!("vm{round}"), &[("nic1", &format!("10.10.0.{round}"))]);
        // The program ends before, during or after the write of the file.
        std::thread::sleep(Duration::from_millis(round * 20));
        dns.kill();
        let now = serial();
        if let (Some(last), Some(now)) = (last, now) {
            assert!(now == last || crate::fixture::is_newer(now, last), "{last} {now}");
        }
        last = now.or(last);
    }
    let dns = stage.dns(&[], Some(zones.path()));
    dns.wait_ready();
    for round in 0..8 {
        assert_eq!(
            dns.address(&format!("vm{round}.vms.vm.")),
            format!("10.10.0.{round}")
        );
    }
}

#[test]
fn name_server_that_changed_is_answered_after_the_roll() {
    // secondary-dns#63, the answer of the new pod
    let stage = Stage::start();
    for address in ["192.0.2.1", "192.0.2.2"] {
        let dns = stage.dns(&[("NAME_SERVER_IP", address)], None);
        dns.wait_ready();
        assert_eq!(dns.address("ns.vm."), address);
        let answer = dns.ask("vm.", RecordType::NS);
        assert!(matches!(answer.answers[0].data, RData::NS(_)));
    }
}
