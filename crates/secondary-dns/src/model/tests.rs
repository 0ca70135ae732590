use super::*;
use crate::vmi::{Policy, Vmi};
use serde_json::json;

fn header(domain: &str, name_servers: &[&str]) -> Header {
    Header {
        zone: domain.to_owned(),
        name_servers: name_servers.iter().map(|it| it.parse().unwrap()).collect(),
        ttl: 3600,
        reverse: Vec::new(),
    }
}

fn model() -> Model {
    Model::new(header("vm", &[]), 0)
}

fn records(namespace: &str, name: &str, nics: &[(&str, &str)]) -> Vec<Record> {
    let interfaces: Vec<_> = nics
        .iter()
        .map(|(nic, address)| json!({ "name": nic, "ipAddresses": [address] }))
        .collect();
    let object = json!({
        "metadata": { "name": name, "namespace": namespace }, "status": { "interfaces": interfaces },
    });
    let vmi: Vmi = serde_json::from_value(object).unwrap();
    let policy = Policy {
        ipv6: true,
        allowed: Vec::new(),
        zone_octets: 4,
    };
    vmi.publish(&policy).records
}

/// Sets the records of an instance, and returns whether they changed.
fn set(model: &mut Model, namespace: &str, name: &str, nics: &[(&str, &str)]) -> bool {
    let update = model.set(&key(namespace, name), records(namespace, name, nics));
    update.is_some()
}

#[track_caller]
fn assert_records(model: &Model, serial: u32, expected: &[&str]) {
    let mut file =
        format!("$ORIGIN vm. \n$TTL 3600 \n@ IN SOA ns.vm. email.vm. ({serial} 3600 3600 1209600 3600)\n");
    for line in expected {
        file.push_str(line);
        file.push('\n');
    }
    assert_eq!(model.render(), file);
    assert_eq!(model.serial(), serial);
}

#[test]
fn header_of_an_empty_zone() {
    // secondary-dns#1, secondary-dns#5
    let expected = "$ORIGIN vm. \n$TTL 3600 \n@ IN SOA ns.vm. email.vm. (0 3600 3600 1209600 3600)\n";
    assert_eq!(model().render(), expected);
}

#[test]
fn header_with_domain_and_name_server() {
    // secondary-dns#2
    let model = Model::new(header("vm.domain.com", &["185.251.75.10"]), 3);
    assert_eq!(
        model.render(),
        "$ORIGIN vm.domain.com. \n$TTL 3600 \n\
         @ IN SOA ns.vm.domain.com. email.vm.domain.com. (3 3600 3600 1209600 3600)\n\
         @ IN NS ns.vm.domain.com.\nns IN A 185.251.75.10\n"
    );
}

#[test]
fn name_servers_of_both_families_and_another_ttl() {
    let header = Header {
        ttl: 30,
        ..header("vm", &["192.0.2.1", "2001:db8::1"])
    };
    assert_eq!(
        Model::new(header, 1).render(),
        "$ORIGIN vm. \n$TTL 30 \n@ IN SOA ns.vm. email.vm. (1 3600 3600 1209600 30)\n@ IN NS ns.vm.\n\
         ns IN A 192.0.2.1\nns IN AAAA 2001:db8::1\n"
    );
}

#[test]
fn serial_continues_that_of_the_file() {
    // secondary-dns#3-4
    for (before, after) in [(12345, 12346), (5, 6), (u32::MAX, 0)] {
        let mut model = model();
        model.set_serial(before);
        assert_records(&model, before, &[]);
        assert!(set(&mut model, "ns1", "vmi1", &[("nic1", "1.2.3.4")]));
        assert_eq!(model.serial(), after);
    }
}

#[test]
fn first_instance() {
    // secondary-dns#5, secondary-dns#8
    let mut model = model();
    assert!(set(&mut model, "ns1", "vmi1", &[("nic1", "1.2.3.4")]));
    assert_records(
        &model,
        1,
        &["nic1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
    );
}

#[test]
fn unknown_instance_that_goes_changes_nothing() {
    // secondary-dns#9
    let mut model = model();
    assert!(!set(&mut model, "ns1", "vmi1", &[]));
    assert_records(&model, 0, &[]);
}

#[test]
fn two_instances_of_a_namespace_and_their_end() {
    // secondary-dns#10-11, secondary-dns#28
    let mut model = model();
    set(&mut model, "ns1", "vmi2", &[("nic1", "1.2.3.6")]);
    set(
        &mut model,
        "ns1",
        "vmi1",
        &[("nic2", "1.2.3.5"), ("nic1", "1.2.3.4")],
    );
    let second = ["nic1.vmi2.ns1 IN A 1.2.3.6", "vmi2.ns1 IN A 1.2.3.6"];
    assert_records(
        &model,
        2,
        &[
            "nic1.vmi1.ns1 IN A 1.2.3.4",
            "nic2.vmi1.ns1 IN A 1.2.3.5",
            "vmi1.ns1 IN A 1.2.3.4",
            second[0],
            second[1],
        ],
    );
    assert!(set(&mut model, "ns1", "vmi1", &[]));
    assert_records(&model, 3, &second);
    assert!(set(&mut model, "ns1", "vmi2", &[]));
    assert_records(&model, 4, &[]);
}

#[test]
fn replaced_interface_keeps_the_default_record() {
    // secondary-dns#12
    let mut model = model();
    set(
        &mut model,
        "ns1",
        "vmi1",
        &[("nic1", "1.2.3.4"), ("nic2", "1.2.3.5")],
    );
    assert!(set(
        &mut model,
        "ns1",
        "vmi1",
        &[("nic1", "1.2.3.4"), ("nic4", "1.2.3.6")]
    ));
    assert_records(
        &model,
        2,
        &[
            "nic1.vmi1.ns1 IN A 1.2.3.4",
            "nic4.vmi1.ns1 IN A 1.2.3.6",
            "vmi1.ns1 IN A 1.2.3.4",
        ],
    );
}

#[test]
fn other_order_of_interfaces_changes_nothing() {
    // secondary-dns#13, the serial
    let mut model = model();
    set(
        &mut model,
        "ns1",
        "vmi1",
        &[("nic1", "1.2.3.4"), ("nic2", "1.2.3.5")],
    );
    let before = model.render();
    assert!(!set(
        &mut model,
        "ns1",
        "vmi1",
        &[("nic2", "1.2.3.5"), ("nic1", "1.2.3.4")]
    ));
    assert_eq!(model.render(), before);
}

#[test]
fn instances_of_one_name_in_two_namespaces() {
    // secondary-dns#14
    let mut model = model();
    set(&mut model, "ns2", "vmi", &[("nic1", "1.2.3.5")]);
    set(&mut model, "ns1", "vmi", &[("nic1", "1.2.3.4")]);
    assert!(set(&mut model, "ns1", "vmi", &[]));
    assert_records(&model, 3, &["nic1.vmi.ns2 IN A 1.2.3.5", "vmi.ns2 IN A 1.2.3.5"]);
}

#[test]
fn instance_that_comes_back_counts_twice() {
    // secondary-dns#29
    let mut model = model();
    let nics = [("nic1", "1.2.3.4")];
    for expected in [true, true, true, false] {
        let gone = model.instances() == 1 && expected;
        assert_eq!(
            set(&mut model, "ns1", "vmi1", if gone { &[] } else { &nics }),
            expected
        );
    }
    assert_records(
        &model,
        3,
        &["nic1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
    );
}

#[test]
fn instances_stand_in_the_order_of_namespace_and_name() {
    let mut model = model();
    for (namespace, name) in [("b", "a"), ("a-b", "c"), ("a", "c"), ("a", "b")] {
        set(&mut model, namespace, name, &[("n", "1.1.1.1")]);
    }
    let file = model.render();
    let owners: Vec<&str> = file
        .lines()
        .skip(3)
        .filter_map(|line| line.strip_prefix("n.")?.split(' ').next())
        .collect();
    assert_eq!(owners, ["b.a", "c.a", "c.a-b", "a.b"]);
}

#[test]
fn interfaces_are_found_by_their_address() {
    let header = Header {
        reverse: crate::zone::reverse::zones(&["10.1.0.0/16".parse().unwrap()]).unwrap(),
        ..header("vm.example", &["192.0.2.1"])
    };
    let mut model = Model::new(header, 0);
    let instance = key("ns1", "vmi1");
    model.set(
        &instance,
        records("ns1", "vmi1", &[("a", "10.1.2.3"), ("b", "10.2.0.1")]),
    );
    let reverse = &model.header().reverse[0];
    assert_eq!(
        model.render_reverse(reverse),
        "$ORIGIN 1.10.in-addr.arpa. \n$TTL 3600 \n\
         @ IN SOA ns.vm.example. email.vm.example. (1 3600 3600 1209600 3600)\n\
         @ IN NS ns.vm.example.\n3.2 IN PTR a.vmi1.ns1.vm.example.\n"
    );
}
