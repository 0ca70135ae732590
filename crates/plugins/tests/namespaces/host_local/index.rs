//! Files that a call reads, and calls with an index that is wrong or cannot be written.

use std::{fs, mem::MaybeUninit, os::fd::OwnedFd};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    mount::{MountFlags, mount, mount_remount},
};
use serde_json::json;

use super::{DATA, LEASES, add, del, leases, read, subnet, taken, write};
use crate::stage::on_a_host;

/// Counts the opened files in the directory of the leases.
struct Watch(OwnedFd);

impl Watch {
    fn new() -> Self {
        let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, LEASES, WatchFlags::OPEN).unwrap();
        Watch(watch)
    }

    /// The files opened since the last call; the directory itself is `.`.
    fn opened(&self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 16384];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut names = Vec::new();
        while let Ok(event) = reader.next() {
            assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
            let name = event
                .file_name()
                .map_or(".".into(), |name| name.to_string_lossy().into_owned());
            names.push(name);
        }
        names
    }
}

/// Leases of other containers: 10.0.0.2 to 10.0.39.17.
fn fill() {
    fs::create_dir_all(LEASES).unwrap();
    for number in 2..10_002 {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
        fs::write(format!("{LEASES}/{address}"), format!("other-{number}\r\nnet1")).unwrap();
    }
}

#[test]
fn add_reads_no_other_leases() {
    on_a_host("10,000 leases", |host| {
        let mut pod = host.pod();
        let config = subnet("10.0.0.0/8");
        fill();
        let watch = Watch::new();
        // The first call finds no index.
        assert_eq!(add(host, &pod, "net1", &config), ["10.0.39.18"]);
        assert!(watch.opened().len() >= 10_000);

        let own = ["10.0.39.19", "lock", "last_reserved_ip.0", "."];
        let only_own = |what: &str, lists: usize| {
            let opened = watch.opened();
            let others: Vec<_> = opened
                .iter()
                .filter(|name| !own.contains(&name.as_str()) && !name.starts_with('#'))
                .collect();
            assert!(others.is_empty(), "{what} opened {others:?}");
            // Once to stay, and once for the names if they are needed.
            let directory = opened.iter().filter(|name| *name == ".").count();
            assert!(directory <= 1 + lists, "{what}: {opened:?}");
            assert!(opened.len() < 12, "{what}: {opened:?}");
        };
        assert_eq!(add(host, &pod, "net2", &config), ["10.0.39.19"]);
        only_own("ADD", 0);
        let outcome = host.call_with("CHECK", &pod, "net2", "", &config);
        outcome.success();
        only_own("CHECK", 0);
        del(host, &pod, "net2", &config);
        only_own("DEL", 0);
        // 10,000 taken ones in a row are not tried one by one, either.
        write("last_reserved_ip.0", "10.255.255.254");
        pod.id = "late".into();
        let _ = watch.opened();
        assert_eq!(add(host, &pod, "net1", &config), ["10.0.39.19"]);
        only_own("ADD behind a row", 1);
        del(host, &pod, "net1", &config);
        only_own("DEL", 0);

        // To be sure that nothing is left of an unknown container, everything is read; it stays known.
        del(host, &pod, "net1", &config);
        assert!(watch.opened().len() >= 10_000);
        assert_eq!(leases().len(), 10_001);
        let _ = watch.opened();
        pod.id = "other-77".into();
        del(host, &pod, "net1", &config);
        let opened = watch.opened();
        assert!(
            opened.contains(&"10.0.0.77".to_owned()) && opened.len() < 12,
            "{opened:?}"
        );
        assert_eq!(leases().len(), 10_000);
    });
}

#[test]
fn leases_changed_by_other_programs_are_detected() {
    on_a_host("changes by others", |host| {
        let mut pod = host.pod();
        let config = subnet("10.1.2.0/24");
        assert_eq!(add(host, &pod, "net1", &config), ["10.1.2.2"]);
        // Removed, and leased to another owner.
        fs::remove_file(format!("{LEASES}/10.1.2.2")).unwrap();
        assert_eq!(add(host, &pod, "net1", &config), ["10.1.2.3"]);
        write("10.1.2.3", "somebody\r\nnet1");
        del(host, &pod, "net1", &config);
        assert_eq!(read("10.1.2.3"), "somebody\r\nnet1", "not ours any more");
        assert!(
            host.call("CHECK", &pod, &config)
                .message()
                .contains("Failed to find address")
        );
        // A new lease, and the former time of the directory, as backup programs restore it.
        let time = fs::metadata(LEASES).unwrap().modified().unwrap();
        write("10.1.2.9", "container-1\r\nnet1");
        fs::File::open(LEASES).unwrap().set_modified(time).unwrap();
        host.call("CHECK", &pod, &config).success();
        del(host, &pod, "net1", &config);
        assert_eq!(taken(), ["10.1.2.3"]);
        // The whole network is gone, and back.
        add(host, &pod, "net1", &config);
        fs::remove_dir_all(LEASES).unwrap();
        del(host, &pod, "net1", &config);
        assert_eq!(add(host, &pod, "net1", &config), ["10.1.2.2"]);
        pod.id = "second".into();
        assert_eq!(add(host, &pod, "net1", &config), ["10.1.2.3"]);
    });
}

#[test]
fn calls_work_without_index() {
    for (name, options, lock) in [
        ("index on a full disk", c"nr_inodes=4", false),
        ("index on a read-only disk", c"size=1m", true),
    ] {
        on_a_host(name, move |host| {
            fs::create_dir("/run/cni").unwrap();
            mount("tmpfs", "/run/cni", "tmpfs", MountFlags::empty(), Some(options)).unwrap();
            let mut pod = host.pod();
            let config = subnet("10.1.2.0/24");
            // The content of an index that cannot be changed any more.
            assert_eq!(add(host, &pod, "net0", &config), ["10.1.2.2"]);
            if lock {
                mount_remount("/run/cni", MountFlags::RDONLY, "").unwrap();
            }
            for round in 0..3 {
                pod.id = format!("c{round}");
                let address = format!("10.1.2.{}", 3 + round);
                assert_eq!(add(host, &pod, "net1", &config), [address]);
                let again = host.call("ADD", &pod, &config).message();
                assert!(again.contains("duplicate allocation is not allowed"), "{again}");
                host.call("CHECK", &pod, &config).success();
            }
            for round in 0..3 {
                pod.id = format!("c{round}");
                del(host, &pod, "net1", &config);
            }
            assert_eq!(taken(), ["10.1.2.2"]);
            pod.id = "container-1".into();
            del(host, &pod, "net0", &config);
            assert_eq!(taken(), [""; 0]);
        });
    }
}

#[test]
fn two_paths_to_one_directory_are_one_network() {
    on_a_host("linked dataDir", |host| {
        let pod = host.pod();
        fs::create_dir(DATA).unwrap();
        std::os::unix::fs::symlink(DATA, "/run/link").unwrap();
        let mut linked = subnet("10.1.2.0/24");
        linked["ipam"]["dataDir"] = json!("/run/link");
        add(host, &pod, "net1", &subnet("10.1.2.0/24"));
        add(host, &pod, "net2", &linked);
        del(host, &pod, "net1", &linked);
        del(host, &pod, "net2", &subnet("10.1.2.0/24"));
        assert_eq!(taken(), [""; 0]);
        assert_eq!(fs::read_dir("/run/cni/weft/host-local").unwrap().count(), 1);
    });
}
