//! The node loses its power: the state of every answered call is on disk.

use crate::node::{Node, text};
use crate::plug::call;
use serde_json::json;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

/// A mounted disk whose kernel writes nothing back by itself for an hour.
struct Disk {
    image: PathBuf,
    place: PathBuf,
}

impl Disk {
    /// A new disk, mounted at `place`.
    fn new(place: PathBuf) -> Self {
        let image = place.with_extension("image");
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        Self::mounted(image, place)
    }

    fn mounted(image: PathBuf, place: PathBuf) -> Self {
        fs::create_dir(&place).unwrap();
        let mut mount = Command::new("mount");
        run(mount.args(["-o", "loop,commit=3600"]).arg(&image).arg(&place));
        Self { image, place }
    }

    /// The disk after a power cut at this moment, as the node finds it at boot.
    fn after_power_cut(&self, place: PathBuf) -> Self {
        let stray = self.place.join("stray");
        fs::write(&stray, "not flushed to the disk").unwrap();
        let image = place.with_extension("image");
        fs::copy(&self.image, &image).unwrap();
        let after = Self::mounted(image, place);
        assert_eq!(
            after.read("stray"),
            None,
            "where all is written at once, nothing is shown"
        );
        fs::remove_file(stray).unwrap();
        after
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.place.join(name)).ok()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: after a failure a process may still use it.
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.place).output();
        // After another failure, a panic here would hide it.
        if !std::thread::panicking() {
            let output = unmounted.unwrap();
            assert!(output.status.success(), "{}", text(&output));
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
}

// multus#102
#[test]
fn answered_state_survives_power_cut() {
    let mut node = Node::new();
    let disk = Disk::new(node.path("cni"));
    node.start(&json!({}));
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    let after = disk.after_power_cut(node.path("after-add"));
    let record = disk.read("c1");
    assert!(record.is_some());
    assert_eq!(after.read("c1"), record);

    // Before the plugin is called.
    let gate = node.gate("c1", "ADD", "b");
    let config = json!({"cniVersion": "1.0.0", "name": "hot", "type": "b"}).to_string();
    let (after, record) = std::thread::scope(|scope| {
        let plugged = scope.spawn(|| call(&node, "ADD", &sandbox, "hot0", &config, &json!({})));
        node.called("c1", "ADD b");
        let after = disk.after_power_cut(node.path("while-plugged"));
        let record = disk.read("c1").unwrap();
        gate.open();
        let (code, answer) = plugged.join().unwrap();
        assert_eq!(code, 200, "{answer}");
        (after, record)
    });
    assert!(record.contains("hot0"), "{record}");
    assert_eq!(after.read("c1"), Some(record));

    node.kill();
    node.succeed("DEL", &sandbox);
    let after = disk.after_power_cut(node.path("after-missed-del"));
    let kept = disk.read(".missed/c1:eth0");
    assert!(kept.is_some());
    assert_eq!(after.read(".missed/c1:eth0"), kept);
}
