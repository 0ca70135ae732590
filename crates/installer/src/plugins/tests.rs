use super::layout::{Entry, entries};
use super::*;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

const CONTENT: &str = "#!/bin/sh\necho \"$(basename \"$0\")\"\n";
const HOST: &str = "/var/lib/cni/bin";

struct Node {
    root: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("weft-cni"), CONTENT).expect("a binary");
        fs::create_dir(root.path().join("bin")).expect("a directory");
        Self { root }
    }

    fn bin(&self) -> PathBuf {
        self.root.path().join("bin")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    fn args(&self, host_dir: Option<&str>, names: &[&str]) -> Args {
        Args {
            to: self.bin(),
            host_dir: host_dir.map(PathBuf::from),
            from: self.root.path().join("weft-cni"),
            check: false,
            preserve_default_vlan: false,
            unless_present: Vec::new(),
            sysctl_allow_list: None,
            tuning_dir: None,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn installation(&self) -> Installation {
        let args = self.args(Some(HOST), &["bridge", "tuning"]);
        Installation::new(&args.to, args.host_dir.as_deref(), &args.from, &args.names)
            .expect("an installation")
    }

    /// The content of the directory: `-> target` for a link, the text of a file. A file that vanishes meanwhile is
    /// omitted.
    fn listing(&self) -> BTreeMap<String, String> {
        let read = |path: &Path| match fs::read_link(path) {
            Ok(target) => Some(format!("-> {}", target.display())),
            Err(_) => fs::read_to_string(path).ok(),
        };
        let entries = fs::read_dir(self.bin()).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                Some((
                    entry.file_name().to_string_lossy().into_owned(),
                    read(&entry.path())?,
                ))
            })
            .collect()
    }
}

fn listing(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(name, content)| ((*name).to_owned(), (*content).to_owned()))
        .collect()
}

fn fresh() -> BTreeMap<String, String> {
    listing(&[
        ("bridge", "-> /var/lib/cni/bin/cnv-bridge"),
        ("cnv-bridge", CONTENT),
        ("cnv-tuning", CONTENT),
        ("tuning", "-> /var/lib/cni/bin/cnv-tuning"),
    ])
}

#[test]
fn run_in_empty_directory_creates_binaries_and_links() {
    // cni-plugins#71
    let node = Node::new();
    assert!(node.installation().ensure().expect("installed"));
    assert_eq!(node.listing(), fresh());
    let metadata = |name: &str| fs::symlink_metadata(node.path(name)).expect("metadata");
    assert_eq!(metadata("cnv-bridge").permissions().mode() & 0o7777, 0o755);
    assert!(metadata("cnv-bridge").is_file() && metadata("cnv-tuning").is_file());
    assert_eq!(
        metadata("cnv-bridge").ino(),
        metadata("cnv-tuning").ino(),
        "stored once"
    );
}

#[test]
fn run_keeps_plugin_of_platform() {
    // cni-plugins#71
    let node = Node::new();
    fs::write(node.path("bridge"), "theirs").expect("a plugin");
    fs::write(node.path("cnv-bridge"), "ours of long ago").expect("a plugin");
    let mut expected = fresh();
    expected.insert("bridge".to_owned(), "theirs".to_owned());
    expected.insert("cnv-bridge".to_owned(), "-> /var/lib/cni/bin/bridge".to_owned());
    for first in [true, false] {
        assert_eq!(node.installation().ensure().expect("installed"), first);
        assert_eq!(node.listing(), expected);
    }
}

#[test]
fn second_run_changes_nothing() {
    // cni-plugins#71
    let node = Node::new();
    node.installation().ensure().expect("installed");
    let inode = || fs::metadata(node.path("cnv-bridge")).expect("metadata").ino();
    let before = inode();
    let mut again = node.installation();
    assert!(!again.ensure().expect("installed"));
    assert_eq!(node.listing(), fresh());
    assert_eq!(inode(), before);
}

#[test]
fn plugins_run_under_all_names() {
    // cni-plugins#71
    let node = Node::new();
    let args = node.args(Some(&node.bin().display().to_string()), &["bridge", "tuning"]);
    Installation::new(&args.to, args.host_dir.as_deref(), &args.from, &args.names)
        .and_then(|mut installation| installation.ensure())
        .expect("installed");
    for name in ["bridge", "cnv-bridge", "tuning", "cnv-tuning"] {
        let output = crate::testing::when_free(|| Command::new(node.path(name)).output());
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), name);
    }
}

#[test]
fn foreign_links_stale_binaries_and_wrong_modes_are_replaced() {
    let node = Node::new();
    symlink("/nowhere", node.path("bridge")).expect("a link");
    fs::write(node.path("cnv-bridge"), "old").expect("a file");
    symlink("/nowhere", node.path("cnv-tuning")).expect("a link");
    node.installation().ensure().expect("installed");
    assert_eq!(node.listing(), fresh());
    fs::set_permissions(node.path("cnv-tuning"), Permissions::from_mode(0o644)).expect("a mode");
    let mut installation = node.installation();
    assert!(installation.ensure().expect("installed"));
    assert!(!installation.ensure().expect("installed"));
}

#[test]
fn deleted_binary_is_linked_to_remaining_one() {
    let node = Node::new();
    let mut installation = node.installation();
    installation.ensure().expect("installed");
    assert!(
        !installation.ensure().expect("installed"),
        "reads what was written"
    );
    fs::remove_file(node.path("cnv-bridge")).expect("removed");
    assert!(installation.ensure().expect("installed"));
    assert_eq!(node.listing(), fresh());
    let inode = |name: &str| fs::metadata(node.path(name)).expect("metadata").ino();
    assert_eq!(inode("cnv-bridge"), inode("cnv-tuning"));
}

#[test]
fn binary_is_not_linked_to_the_plugin_that_the_platform_brought_later() {
    let node = Node::new();
    let mut installation = node.installation();
    installation.ensure().expect("installed");
    assert!(!installation.ensure().expect("installed"));
    fs::remove_file(node.path("bridge")).expect("removed");
    fs::write(node.path("bridge"), "theirs").expect("a plugin");
    assert!(installation.ensure().expect("installed"));
    fs::remove_file(node.path("cnv-tuning")).expect("removed");
    assert!(installation.ensure().expect("installed"));
    let mut expected = fresh();
    expected.insert("bridge".to_owned(), "theirs".to_owned());
    expected.insert("cnv-bridge".to_owned(), "-> /var/lib/cni/bin/bridge".to_owned());
    assert_eq!(node.listing(), expected);
    assert!(!installation.ensure().expect("installed"));
}

#[test]
fn check_names_missing_files() {
    let node = Node::new();
    let check = Args {
        check: true,
        ..node.args(Some(HOST), &["bridge"])
    };
    let error = run(check.clone()).expect_err("nothing is installed");
    let expected = format!(
        "not installed: {}, {}",
        node.path("cnv-bridge").display(),
        node.path("bridge").display()
    );
    assert_eq!(error.to_string(), expected);
    assert!(node.listing().is_empty(), "a check writes nothing");
    node.installation().ensure().expect("installed");
    run(check.clone()).expect("everything is installed");
    fs::write(node.path("cnv-bridge"), "other").expect("a file");
    run(check).expect_err("the content is wrong");
}

#[test]
fn run_without_host_directory_makes_copies() {
    let node = Node::new();
    fs::write(node.path("ovs"), "old").expect("a file");
    run(node.args(None, &["ovs", "ovs-mirror-producer"])).expect("installed");
    assert_eq!(
        node.listing(),
        listing(&[("ovs", CONTENT), ("ovs-mirror-producer", CONTENT)])
    );
    run(Args {
        check: true,
        ..node.args(None, &["ovs", "ovs-mirror-producer"])
    })
    .expect("checked");
}

#[test]
fn unless_present_keeps_existing_plugin() {
    let node = Node::new();
    let args = Args {
        unless_present: vec!["loopback".to_owned()],
        ..node.args(None, &["cnv-ptp"])
    };
    run(args.clone()).expect("an installation");
    let all = node.listing();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["cnv-ptp", "loopback"]);
    fs::write(node.path("loopback"), "the platform's").expect("a file");
    run(args.clone()).expect("an installation");
    assert_eq!(
        fs::read(node.path("loopback")).expect("a file"),
        b"the platform's"
    );
    let check = |args: Args| run(Args { check: true, ..args });
    check(args.clone()).expect("it is installed");
    fs::remove_file(node.path("loopback")).expect("a removed file");
    check(args).expect_err("it is missing");
}

#[test]
fn invalid_plugin_name_is_refused() {
    for name in ["", "..", "a/b", ".hidden"] {
        let node = Node::new();
        let error = run(node.args(None, &[name])).expect_err("an error");
        assert_eq!(error.to_string(), format!("'{name}' is not a plugin name"));
    }
}

#[test]
fn entries_depend_on_plugin_of_platform() {
    let host = Path::new("/opt/cni/bin");
    let link = |name: &str, target: &str| Entry::Link {
        name: name.to_owned(),
        target: PathBuf::from(target),
    };
    assert_eq!(
        entries("x", Some(host), false),
        [Entry::Binary("cnv-x".to_owned()), link("x", "/opt/cni/bin/cnv-x")]
    );
    assert_eq!(entries("x", Some(host), true), [link("cnv-x", "/opt/cni/bin/x")]);
    assert_eq!(entries("x", None, true), [Entry::Binary("x".to_owned())]);
}

#[test]
fn deleted_files_are_restored() {
    let node = Node::new();
    let mut installation = node.installation();
    let mut watcher = Watcher::open(&node.bin(), Vec::new()).expect("a watch");
    installation.ensure().expect("installed");
    let (repaired, repairs) = mpsc::channel();
    std::thread::spawn(move || {
        while watcher.changed().is_ok() {
            if installation.ensure().is_ok_and(|changed| changed) && repaired.send(()).is_err() {
                break;
            }
        }
    });
    let damages: [&dyn Fn(); 3] = [
        &|| fs::remove_file(node.path("cnv-bridge")).expect("removed"),
        &|| fs::write(node.path("cnv-tuning"), "other").expect("written"),
        &|| {
            // A repair may restore a file during the removal.
            while let Err(error) = fs::remove_dir_all(node.bin()) {
                assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty, "{error}");
            }
        },
    ];
    for damage in damages {
        damage();
        let deadline = Instant::now() + Duration::from_mins(1);
        // A removal of many entries may be repaired in several steps.
        while node.listing() != fresh() {
            let left = deadline.saturating_duration_since(Instant::now());
            repairs
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("not repaired: {:?}", node.listing()));
        }
    }
}

// cluster-network#87
#[test]
fn change_of_mounted_allow_list_reaches_the_node() {
    let node = Node::new();
    let mounted = node.root.path().join("mounted");
    let tuning = node.root.path().join("tuning");
    // A kubelet replaces the link `..data` when the ConfigMap changes.
    let publish = |version: &str| {
        let dir = mounted.join(version);
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join("allowlist.conf"), version).expect("a list");
        symlink(version, mounted.join("..new")).expect("a link");
        fs::rename(mounted.join("..new"), mounted.join("..data")).expect("renamed");
    };
    publish("..1");
    symlink("..data/allowlist.conf", mounted.join("allowlist.conf")).expect("a link");
    let mut wanted = Wanted {
        allow_list: Some(AllowList::new(&mounted.join("allowlist.conf"), &tuning)),
        defaults: None,
        installation: node.installation(),
    };
    let to = node.bin();
    std::thread::spawn(move || keep_installed(&to, &mut wanted));
    for version in ["..1", "..2"] {
        if version != "..1" {
            publish(version);
        }
        let deadline = Instant::now() + Duration::from_mins(1);
        let list = || fs::read_to_string(tuning.join("allowlist.conf")).unwrap_or_default();
        while list() != version {
            assert!(
                Instant::now() < deadline,
                "{version} did not arrive: {:?}",
                list()
            );
            std::thread::yield_now();
        }
    }
}

#[test]
fn reverted_repairs_back_off() {
    let begin = Instant::now();
    let mut repairs = Repairs::new(begin);
    let mut now = begin;
    let mut pauses = Vec::new();
    for _ in 0..11 {
        let pause = repairs.pause_after(now);
        pauses.push(pause.as_millis());
        now += pause + Duration::from_millis(100);
    }
    assert_eq!(
        pauses,
        [
            100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000
        ]
    );
    assert_eq!(
        repairs.pause_after(now + LONGEST_PAUSE).as_millis(),
        100,
        "no repair was reverted for a while"
    );
}

#[test]
fn bridge_defaults_follow_flag() {
    let node = Node::new();
    let args = |preserve_default_vlan, check| Args {
        check,
        preserve_default_vlan,
        ..node.args(None, &["bridge"])
    };
    let file = node.path("weft-bridge.json");
    run(args(true, false)).expect("installed");
    assert!(file.exists());
    run(args(true, true)).expect("as it should be");
    let error = run(args(false, true)).expect_err("a file too many");
    assert_eq!(error.to_string(), format!("not installed: {}", file.display()));
    run(args(false, false)).expect("installed");
    assert!(!file.exists());
}

/// Runs `test` on a thread with a mount namespace of its own. Without root it prints that and does nothing.
fn with_mounts(name: &str, test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name} needs root to mount");
        return;
    }
    let thread = std::thread::spawn(|| {
        linux::process::unshare_mounts().expect("a mount namespace");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn causes(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

#[test]
fn full_or_read_only_directory_is_named_and_unchanged() {
    with_mounts("a full disk", || {
        let node = Node::new();
        let from = vec![b'x'; 300_000];
        fs::write(node.root.path().join("weft-cni"), &from).expect("a binary");
        mount("tmpfs", node.bin(), "tmpfs", MountFlags::empty(), c"size=128k").expect("mounted");
        let remount = |flags, size| mount_remount(node.bin(), flags, size).expect("mounted anew");
        fs::write(node.path("bridge"), "theirs").expect("a plugin");
        let theirs = listing(&[("bridge", "theirs")]);
        let mut installation = node.installation();

        let full = causes(installation.ensure().expect_err("no room"));
        assert!(
            full.starts_with("cannot write ") && full.contains("No space left on device"),
            "{full}"
        );
        assert_eq!(node.listing(), theirs, "nothing half is left");

        remount(MountFlags::RDONLY, c"size=128k");
        let refused = causes(installation.ensure().expect_err("read-only"));
        assert!(refused.contains("Read-only file system"), "{refused}");

        remount(MountFlags::empty(), c"size=4m");
        assert!(installation.ensure().expect("installed"));
        assert_eq!(fs::read(node.path("cnv-tuning")).expect("a binary"), from);
        assert_eq!(fs::read(node.path("bridge")).expect("theirs"), b"theirs");
    });
}

#[test]
fn failed_installation_is_retried() {
    let node = Node::new();
    fs::remove_dir(node.bin()).expect("removed");
    fs::write(node.bin(), "in the way").expect("a file");
    let to = node.bin();
    let mut wanted = Wanted {
        allow_list: None,
        defaults: None,
        installation: node.installation(),
    };
    let (tried, tries) = mpsc::channel();
    std::thread::spawn(move || {
        retry(
            Duration::from_millis(1),
            || None,
            || {
                // The receiver is gone once the test is over.
                let _ = tried.send(());
                keep_installed(&to, &mut wanted)
            },
        )
    });
    for _ in 0..3 {
        tries.recv_timeout(Duration::from_mins(1)).expect("a try");
    }
    fs::remove_file(node.bin()).expect("removed");
    let deadline = Instant::now() + Duration::from_mins(1);
    while node.listing() != fresh() {
        assert!(Instant::now() < deadline, "not installed: {:?}", node.listing());
        std::thread::yield_now();
    }
}

#[test]
fn deleted_directory_ends_the_installer() {
    with_mounts("a deleted directory", || {
        let node = Node::new();
        let source = node.root.path().join("on the node");
        fs::create_dir(&source).expect("a directory");
        mount_bind(&source, node.bin()).expect("mounted");
        let args = node.args(Some(HOST), &["bridge", "tuning"]);
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || ended.send(run(args)));
        let deadline = Instant::now() + Duration::from_mins(1);
        while node.listing() != fresh() {
            assert!(Instant::now() < deadline, "not installed: {:?}", node.listing());
            std::thread::yield_now();
        }
        // A repair may restore a file during the removal.
        while let Err(error) = fs::remove_dir_all(&source) {
            assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty, "{error}");
        }
        fs::create_dir(&source).expect("a directory");
        let error = end.recv_timeout(Duration::from_mins(1)).expect("an end");
        let error = format!("{:#}", error.expect_err("an error"));
        let expected = format!("{} was deleted on the node, and ", node.bin().display());
        assert!(error.starts_with(&expected), "{error}");
    });
}

#[test]
fn temporary_file_of_an_installer_killed_just_before_is_swept_later() {
    let node = Node::new();
    let path = node.path(".weft-0123456789abcdef.tmp");
    fs::write(&path, "half").expect("a file");
    let file = fs::File::options().append(true).open(&path).expect("the file");
    let modified = SystemTime::now() - copy::STALE + Duration::from_secs(2);
    file.set_modified(modified).expect("a time");
    node.installation().ensure().expect("installed");
    copy::sweep(&node.bin());
    assert!(path.exists(), "it may be another installer's");
    let sweeping = sweep_after(Duration::from_secs(3), &node.bin()).expect("a thread");
    sweeping.join().expect("swept");
    assert_eq!(node.listing(), fresh());
}

#[test]
fn file_that_appears_during_installation_is_kept() {
    let node = Node::new();
    let path = node.path("bridge");
    let link = || copy::link_unless_file(Path::new("/x/cnv-bridge"), &path).expect("done");
    link();
    assert_eq!(node.listing(), listing(&[("bridge", "-> /x/cnv-bridge")]));
    fs::remove_file(&path).expect("removed");
    symlink("/elsewhere", &path).expect("a link");
    link();
    assert_eq!(node.listing(), listing(&[("bridge", "-> /x/cnv-bridge")]));
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "theirs").expect("a plugin");
    link();
    assert_eq!(node.listing(), listing(&[("bridge", "theirs")]));
}

#[test]
fn installed_file_has_label_of_directory() {
    let set = |path: &Path, label: &[u8]| {
        rustix::fs::lsetxattr(path, "security.selinux", label, rustix::fs::XattrFlags::empty())
    };
    let get = |path: &Path| {
        let mut buffer = [0; 256];
        let length = rustix::fs::lgetxattr(path, "security.selinux", &mut buffer[..]).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let node = Node::new();
    let label = "system_u:object_r:bin_t:s0";
    if let Err(errno) = set(&node.bin(), label.as_bytes()) {
        println!("skipped: labels can't be set here: {errno}");
        return;
    }
    node.installation().ensure().expect("installed");
    for name in ["bridge", "cnv-bridge", "tuning", "cnv-tuning"] {
        assert_eq!(get(&node.path(name)).as_deref(), Some(label), "{name}");
    }
    // A valid file is not changed: the node's policy may have set its label.
    set(&node.path("cnv-bridge"), b"system_u:object_r:other_t:s0").expect("a label");
    assert!(!node.installation().ensure().expect("installed"));
}
