//! Memory of a pool, and cost of a search.

use std::cell::Cell;
use std::process::Command;

use super::*;

/// Anonymous resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes << 10
}

/// Virtual machines with two interfaces each, in ten namespaces.
fn filled(machines: u64) -> Pool {
    let mut pool = Pool::new(range("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff"), 1);
    for number in 0..machines {
        let owner = Owner::machine(
            &format!("namespace-{}", number % 10),
            &format!("virtual-machine-{number:05}"),
        );
        let uid = format!("0f1e2d3c-4b5a-6978-8796-{number:012x}");
        let holdings = vec![
            holding(Mac::from_number(0x0200_0000_1000 + number), "default"),
            holding(Mac::from_number(0x0280_0000_1000 + number * 2), "net1"),
        ];
        pool.store(&owner, &uid, holdings, Some(moment(number)));
    }
    pool
}

const CHILD: &str = "POOL_SIZE_CHILD";

/// Runs in separate processes, since other tests allocate memory too.
#[test]
fn pool_of_many_machines_is_small() {
    if let Ok(machines) = std::env::var(CHILD) {
        let before = resident();
        let pool = filled(machines.parse().unwrap());
        println!("octets: {}", resident().saturating_sub(before));
        drop(pool);
        return;
    }
    let pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if pages.contains("[always]") {
        println!("skipped: huge pages make resident memory a matter of luck");
        return;
    }
    for (machines, most) in [("10000", 7 << 20), ("50000", 35 << 20)] {
        let name = "pool::tests::size::pool_of_many_machines_is_small";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(CHILD, machines)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let octets = text.lines().find_map(|line| line.split_once("octets: "));
        let octets: u64 = octets.unwrap().1.parse().unwrap();
        println!("{machines} machines take {octets} octets");
        assert!(octets <= most, "{machines} machines take {octets} octets");
    }
}

#[test]
fn search_skips_a_million_taken_addresses() {
    let mut taken = runs::Runs::default();
    let range = range("02:00:00:00:00:00", "06:ff:ff:ff:ff:ff");
    let (start, end) = range.ends();
    for address in start + 1..=start + 1_000_000 {
        taken.insert(address);
    }
    let asked = Cell::new(0);
    let until = |address| {
        asked.set(asked.get() + 1);
        taken.until(address)
    };
    assert_eq!(range.first_free((start, end), until), Some(start + 1_000_001));
    assert_eq!(asked.get(), 2);
    // The same for all multicast addresses between two first octets.
    let last = mac("02:ff:ff:ff:ff:ff").number().unwrap();
    taken.insert(last);
    asked.set(0);
    let next = range.first_free((last, end), |address| {
        asked.set(asked.get() + 1);
        taken.until(address)
    });
    assert_eq!(next.map(Mac::from_number), Some(mac("04:00:00:00:00:00")));
    assert_eq!(asked.get(), 2);
}
