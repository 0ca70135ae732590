use super::*;
use crate::corefile;
use crate::zone::Owner;
use kube_kit::shutdown::Shutdown;
use std::thread;
use std::time::Instant;

/// Deadline of any wait, generous for slow machines.
const DEADLINE: Duration = Duration::from_secs(30);

/// A followed directory, in a thread that ends with the test.
struct Stage {
    root: tempfile::TempDir,
    zones: SharedZones,
    loaded: Readiness,
    end: Shutdown,
}

impl Stage {
    /// Starts with the directory `zones`, which may be missing.
    fn start(is_there: bool, scan: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("zones");
        if is_there {
            fs::create_dir(&path).unwrap();
        }
        let text = format!(
            ".:53 {{\n auto {{\n  directory {} db\\.(.*) {{1}}\n  reload {scan}\n }}\n}}\n",
            path.display()
        );
        let corefile = corefile::read(&text).unwrap();
        let directory = corefile.ports[&53][0].directories[0].clone();
        let (zones, loaded) = (SharedZones::default(), Readiness::new());
        let end = Shutdown::new();
        let ended = end.clone();
        let (shared, ready) = (Arc::clone(&zones), loaded.clone());
        thread::spawn(move || {
            let following = kube_kit::process::run(async {
                tokio::select! {
                    () = follow(directory, shared, ready) => {}
                    () = ended.wait() => {}
                }
            });
            following.unwrap();
        });
        Self {
            root,
            zones,
            loaded,
            end,
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join("zones").join(file)
    }

    /// Writes a file in the manner of the monitor.
    fn publish(&self, file: &str, text: &str) {
        let next = self.path(".next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.path(file)).unwrap();
    }

    /// Waits until a zone has this serial, or is gone.
    #[track_caller]
    fn wait_for(&self, zone: &str, expected: Option<u32>) {
        let began = Instant::now();
        loop {
            let found = self.serial(zone);
            if found == expected {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "{zone}: {found:?}, not {expected:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn serial(&self, zone: &str) -> Option<u32> {
        let name = Name::from_ascii(zone).unwrap();
        match lock(&self.zones).owner(&name) {
            Owner::Zone(zone) => Some(zone.soa().serial),
            Owner::Unloaded | Owner::Elsewhere => None,
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end.trigger();
    }
}

fn file(serial: u32) -> String {
    format!("$TTL 60\n@ IN SOA ns.vm. email.vm. ({serial} 3600 3600 1209600 3600)\na IN A 10.0.0.1\n")
}

#[test]
fn files_that_change_are_served_at_once() {
    // secondary-dns §7: by inotify, because the next scan is an hour away
    let stage = Stage::start(true, "1h");
    assert!(!stage.loaded.is_ready());
    stage.publish("db.vm", &file(1));
    stage.wait_for("vm.", Some(1));
    assert!(stage.loaded.is_ready());
    stage.publish("db.vm", &file(2));
    stage.wait_for("vm.", Some(2));
    // The file is written in the manner of the upstream monitor.
    fs::write(stage.path("db.vm"), file(3)).unwrap();
    stage.wait_for("vm.", Some(3));
    stage.publish("db.other.example", &file(7));
    stage.wait_for("other.example.", Some(7));
    fs::remove_file(stage.path("db.vm")).unwrap();
    stage.wait_for("vm.", None);
    assert_eq!(stage.serial("other.example."), Some(7));
}

#[test]
fn subdirectories_are_read() {
    let stage = Stage::start(true, "1h");
    fs::create_dir(stage.path("deep")).unwrap();
    stage.publish("deep/db.vm", &file(1));
    stage.wait_for("vm.", Some(1));
    stage.publish("deep/db.vm", &file(2));
    stage.wait_for("vm.", Some(2));
}

#[test]
fn directory_that_comes_later_is_found() {
    let stage = Stage::start(false, "100ms");
    assert!(!stage.loaded.is_ready());
    fs::create_dir(stage.path("")).unwrap();
    stage.publish("db.vm", &file(1));
    stage.wait_for("vm.", Some(1));
}

#[test]
fn file_with_an_error_leaves_the_former_zone() {
    let stage = Stage::start(true, "1h");
    stage.publish("db.vm", &file(1));
    stage.wait_for("vm.", Some(1));
    for broken in [
        "",
        "garbage",
        &format!("{}b IN A 10.0.0\n", file(2)),
        &file(2)[..40],
    ] {
        stage.publish("db.vm", broken);
        // Another zone shows the end of the scan.
        stage.publish("db.mark", &file(9));
        stage.wait_for("mark.", Some(9));
        assert_eq!(stage.serial("vm."), Some(1), "{broken}");
        fs::remove_file(stage.path("db.mark")).unwrap();
        stage.wait_for("mark.", None);
    }
    stage.publish("db.vm", &file(3));
    stage.wait_for("vm.", Some(3));
}

#[test]
fn zone_is_swapped_only_with_another_serial() {
    let stage = Stage::start(true, "1h");
    stage.publish("db.vm", &file(1));
    stage.wait_for("vm.", Some(1));
    stage.publish("db.vm", &file(1).replace("10.0.0.1", "10.0.0.2"));
    stage.publish("db.mark", &file(9));
    stage.wait_for("mark.", Some(9));
    let name = Name::from_ascii("a.vm.").unwrap();
    let zones = lock(&stage.zones);
    let Owner::Zone(zone) = zones.owner(&name) else {
        panic!("no zone")
    };
    let Some(crate::zone::Found::Records([entry])) = zone.find(&name) else {
        panic!("no record")
    };
    assert_eq!(entry.data.to_rdata().to_string(), "10.0.0.1");
}

#[test]
fn rest_of_a_file_that_was_read_too_early_is_served() {
    let stage = Stage::start(true, "1h");
    let whole = file(1);
    let (head, _) = whole.split_once("a IN").unwrap();
    stage.publish("db.vm", head);
    stage.wait_for("vm.", Some(1));
    stage.publish("db.vm", &whole);
    let began = Instant::now();
    let count = || lock(&stage.zones).loaded().map(Zone::records).sum::<usize>();
    while count() != 1 {
        assert!(began.elapsed() < DEADLINE);
        thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn file_that_could_not_be_read_is_read_again_without_a_change() {
    let root = tempfile::tempdir().unwrap();
    let text = format!(
        ".:53 {{\n auto {{\n  directory {} db\\.(.*) {{1}}\n }}\n}}\n",
        root.path().display()
    );
    let corefile = corefile::read(&text).unwrap();
    let directory = Arc::new(corefile.ports[&53][0].directories[0].clone());
    for (file, text) in [("db.vm", file(1).as_str()), ("db.broken", "garbage")] {
        fs::write(root.path().join(file), text).unwrap();
    }
    let (zones, mut known, loaded) = (SharedZones::default(), Known::new(), Readiness::new());
    let broken = Name::from_ascii("broken.").unwrap();
    // Too many files are open at the first scan, and at the second one.
    for _ in 0..2 {
        let mut found = scan(&directory, &known).await.unwrap();
        for (_, _, zone, outcome) in found.read.iter_mut().filter(|(_, _, zone, _)| *zone != broken) {
            assert!(outcome.is_ok(), "{zone}");
            *outcome = Err(Error::Read(io::ErrorKind::Other.into()));
        }
        assert_eq!(found.same.contains(&broken), known.contains_key(&broken));
        take(found, &zones, &mut known, &loaded).await;
        assert!(!loaded.is_ready());
    }
    let found = scan(&directory, &known).await.unwrap();
    assert_eq!(found.same, [broken], "an error in the text stays");
    take(found, &zones, &mut known, &loaded).await;
    assert!(loaded.is_ready());
    let found = scan(&directory, &known).await.unwrap();
    assert!(found.read.is_empty(), "{found:?}");
}
