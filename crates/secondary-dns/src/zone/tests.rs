use super::*;
use crate::model::{Header, Model, key as instance};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn record(owner: &str, address: [u8; 4]) -> Record {
    Record {
        owner: owner.into(),
        address: Ipv4Addr::from(address).into(),
        is_default: false,
    }
}

fn zone() -> Zone {
    let soa = SOA::new(name("ns.vm."), name("email.vm."), 1, 1, 1, 1, 60);
    Zone::new(name("vm."), soa, 3600)
}

fn found(zone: &Zone, at: &str) -> String {
    match zone.find(&name(at)) {
        None => "not in the zone".to_owned(),
        Some(Found::Missing) => "missing".to_owned(),
        Some(Found::Between) => "between".to_owned(),
        Some(Found::Records(entries)) => {
            let texts: Vec<String> = entries
                .iter()
                .map(|entry| entry.data.to_rdata().to_string())
                .collect();
            texts.join(" ")
        }
    }
}

#[test]
fn names_are_found_whatever_their_case() {
    let mut zone = zone();
    zone.replace(
        &instance("ns1", "vmi1"),
        &[],
        &[record("Nic1.vmi1.ns1", [1, 2, 3, 4])],
        60,
    );
    for (at, expected) in [
        ("nic1.vmi1.ns1.vm.", "1.2.3.4"),
        ("NIC1.VMI1.NS1.VM.", "1.2.3.4"),
        ("vmi1.ns1.vm.", "between"),
        ("ns1.vm.", "between"),
        ("vm.", ""),
        ("s1.vm.", "missing"),
        ("ns.vm.", "missing"),
        ("ns11.vm.", "missing"),
        ("x.nic1.vmi1.ns1.vm.", "missing"),
        ("example.com.", "not in the zone"),
        ("xvm.", "not in the zone"),
        (".", "not in the zone"),
    ] {
        assert_eq!(found(&zone, at), expected, "{at}");
    }
    // A zero byte does not end a label.
    let odd = Name::from_labels([&b"vmi1\0ns1"[..], b"vm"]).unwrap();
    assert!(matches!(zone.find(&odd), Some(Found::Missing)));
    assert_eq!(zone.negative_ttl(), 60);
}

#[test]
fn instances_that_share_a_name_keep_their_own_records() {
    // `a.b` of one instance is interface `a` of another one.
    let (one, other) = (instance("c", "a.b"), instance("c", "b"));
    let (first, second) = (record("a.b.c", [1, 1, 1, 1]), record("a.b.c", [2, 2, 2, 2]));
    let mut zone = zone();
    zone.replace(&other, &[], std::slice::from_ref(&second), 60);
    zone.replace(&one, &[], std::slice::from_ref(&first), 60);
    assert_eq!(found(&zone, "a.b.c.vm."), "1.1.1.1 2.2.2.2");
    zone.replace(&one, &[first], &[], 60);
    assert_eq!(found(&zone, "a.b.c.vm."), "2.2.2.2");
    zone.replace(&other, &[second], &[], 60);
    assert_eq!(
        (found(&zone, "a.b.c.vm.").as_str(), zone.records()),
        ("missing", 0)
    );
}

#[test]
fn closest_zone_owns_a_name() {
    let mut zones = Zones::default();
    assert!(matches!(zones.owner(&name("vm.")), Owner::Unloaded));
    zones.expect(name("vm."));
    assert!(matches!(zones.owner(&name("a.VM.")), Owner::Unloaded));
    assert!(matches!(zones.owner(&name("example.")), Owner::Elsewhere));
    let soa = |origin: &str| Zone::new(name(origin), zone().soa().clone(), 1);
    assert!(zones.put(soa("vm.")).is_none());
    assert!(zones.put(soa("deep.vm.")).is_none());
    let origin = |at: &str| match zones.owner(&name(at)) {
        Owner::Zone(zone) => zone.origin().to_ascii(),
        other => format!("{other:?}"),
    };
    assert_eq!(origin("a.vm."), "vm.");
    assert_eq!(origin("a.deep.vm."), "deep.vm.");
    assert!(zones.remove(&name("deep.vm.")).is_some());
    assert!(zones.remove(&name("deep.vm.")).is_none());
    assert_eq!(zones.loaded().count(), 1);
}

/// A change: the instance, and the new addresses of its interfaces.
type Change = (usize, Vec<(usize, u8)>);

const NAMES: [(&str, &str); 5] = [("a", "x"), ("a", "y.x"), ("b", "x"), ("a.b", "x"), ("b", "y")];
const NICS: [&str; 5] = ["n", "N", "y", "nic-a", "nic"];

fn published((which, nics): &Change) -> (Arc<str>, Vec<Record>) {
    let (namespace, vm) = NAMES[*which];
    let interfaces: Vec<_> = nics
        .iter()
        .map(|(nic, last)| {
            serde_json::json!({ "name": NICS[*nic], "ipAddresses": [format!("10.0.0.{last}"), format!("fd00::{last}")] })
        })
        .collect();
    let object = serde_json::json!({
        "metadata": { "name": vm, "namespace": namespace }, "status": { "interfaces": interfaces },
    });
    let vmi: crate::vmi::Vmi = serde_json::from_value(object).unwrap();
    let policy = crate::vmi::Policy {
        ipv6: true,
        allowed: Vec::new(),
        zone_octets: 4,
    };
    (instance(namespace, vm), vmi.publish(&policy).records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // A zone after incremental changes, a zone built from the final records, and a zone read from the file are equal to
    // a linear search in a list of all records.
    #[test]
    fn zone_equals_its_list_of_records(
        changes in prop::collection::vec((0..NAMES.len(), prop::collection::vec((0..NICS.len(), 1..4_u8), 0..3)), 1..12)
    ) {
        let header = Header {
            zone: "vm".to_owned(),
            name_servers: vec![Ipv4Addr::new(192, 0, 2, 1).into()],
            ttl: 60,
            reverse: super::reverse::zones(&["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]).unwrap(),
        };
        let mut model = Model::new(header, 0);
        let mut zones = Zones::default();
        for zone in model.zones() {
            zones.put(zone);
        }
        let mut naive: BTreeMap<Arc<str>, Vec<Record>> = BTreeMap::new();
        let mut serial = 0;
        for change in &changes {
            let (instance, records) = published(change);
            if naive.get(&instance).map_or(&[][..], Vec::as_slice) != records.as_slice() {
                serial += 1;
            }
            naive.insert(Arc::clone(&instance), records.clone());
            if let Some(update) = model.set(&instance, records) {
                model.carry(&update, &mut zones);
            }
        }
        prop_assert_eq!(model.serial(), serial);
        let anew = model.zones();
        let file = super::file::read(&model.render(), &name("vm.")).unwrap();
        let forward = zones.get_mut(&name("vm.")).unwrap();
        let all: Vec<(String, IpAddr)> = naive
            .values()
            .flatten()
            .map(|record| (format!("{}.vm.", record.owner.to_lowercase()), record.address))
            .collect();
        let mut asked: BTreeSet<String> = all.iter().map(|(owner, _)| owner.clone()).collect();
        for owner in asked.clone() {
            let mut rest = owner.as_str();
            while let Some((_, parent)) = rest.split_once('.') {
                asked.insert(format!("absent.{parent}"));
                asked.insert(parent.to_owned());
                rest = parent;
            }
        }
        asked.remove("");
        for owner in asked {
            let expected = |of: &dyn Fn(&IpAddr) -> bool| -> Vec<IpAddr> {
                let matching = all.iter().filter(|(other, address)| *other == owner && of(address));
                matching.map(|(_, address)| *address).collect()
            };
            let below = all.iter().any(|(other, _)| other.ends_with(&format!(".{owner}"))) || owner == "vm.";
            for zone in [&*forward, &anew[0], &file] {
                let found = zone.find(&name(&owner));
                let addresses = |v4: bool| -> Vec<IpAddr> {
                    let Some(Found::Records(entries)) = &found else { return Vec::new() };
                    let addresses = entries.iter().filter_map(|entry| match &entry.data {
                        Data::V4(address) => Some(IpAddr::V4(*address)),
                        Data::V6(address) => Some(IpAddr::V6(**address)),
                        Data::Other(_) => None,
                    });
                    addresses.filter(|address| address.is_ipv4() == v4).collect()
                };
                prop_assert_eq!(addresses(true), expected(&IpAddr::is_ipv4), "{}", owner);
                prop_assert_eq!(addresses(false), expected(&IpAddr::is_ipv6), "{}", owner);
                let exists = !expected(&|_| true).is_empty();
                let kind = match found {
                    Some(Found::Records(_)) => exists || owner == "vm.",
                    Some(Found::Between) => below && !exists,
                    Some(Found::Missing) => !below && !exists,
                    None => !owner.ends_with("vm."),
                };
                prop_assert!(kind, "{} {:?}", owner, found);
            }
        }
        // Each interface is found by its address, and no other address is found.
        let interfaces = naive.values().flatten().filter(|record| !record.is_default);
        let (count, reverse) = (interfaces.clone().count(), &anew[1..]);
        prop_assert_eq!(reverse.iter().map(|zone| zone.records() - 1).sum::<usize>(), count);
        for (made, origin) in reverse.iter().zip(model.origins().skip(1)) {
            prop_assert_eq!(zones.get_mut(&origin).unwrap().records(), made.records());
            let of = model.header().reverse.iter().find(|it| it.origin() == Some(origin.clone())).unwrap();
            let file = super::file::read(&model.render_reverse(of), &origin).unwrap();
            prop_assert_eq!(file.records(), made.records());
        }
        for record in interfaces {
            let address = ipnet::IpNet::from(record.address);
            let reversed = super::reverse::zones(&[address]).unwrap().remove(0).origin().unwrap();
            let target = name(&format!("{}.vm.", record.owner));
            let hit = zones.loaded().any(|zone| matches!(zone.find(&reversed), Some(Found::Records(entries))
                if entries.iter().any(|entry| entry.data.to_rdata().to_string() == target.to_ascii())));
            prop_assert!(hit, "{} {}", reversed, target);
        }
    }
}
