//! Networks with a device.

use super::*;

const INFO: &str = r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:00:01.0"}}"#;

/// A network whose plugin reads its device.
fn with_device(name: &str) -> Delegate {
    let config = json!({"cniVersion": "0.4.0", "name": name, "type": name,
        "capabilities": {"deviceID": true, "CNIDeviceInfoFile": true}});
    let config = Config::parse(config.to_string().as_bytes()).unwrap();
    let mut delegate = Delegate::new(format!("ns/{name}"), config);
    delegate.resource_name = Some("x.io/r".into());
    delegate.set_device("d1".into()).unwrap();
    delegate
}

impl Bench {
    /// The device plugin's information about the device of [`with_device`].
    fn known_device(self) -> Self {
        let file = self.config.own.device_info.of_device("x.io/r", "d1");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, INFO).unwrap();
        self
    }

    fn info_files(&self) -> usize {
        fs::read_dir(self.dir.path().join("devinfo/cni")).map_or(0, Iterator::count)
    }
}

#[test]
fn device_info_reaches_plugin_and_status() {
    // multus#62, multus#15 (the device)
    let mut bench = Bench::new().known_device();
    let attached = bench.add(&[single("a"), with_device("b")]).unwrap();
    assert!(attached[0].device_info.is_none());
    assert_eq!(attached[1].device_info.as_ref().unwrap().get(), INFO);
    let file = bench.dir.path().join("devinfo/cni/ns-b-c1_net1");
    assert_eq!(
        bench.fake.call("ADD b").config["runtimeConfig"],
        json!({"deviceID": "d1", "CNIDeviceInfoFile": file})
    );
    // DEL gets the same, and nothing is left.
    let stored = bench.stored();
    assert_eq!(stored[1].resource_name.as_deref(), Some("x.io/r"));
    bench.attacher().del(&stored).unwrap();
    assert_eq!(
        bench.fake.call("DEL b").config["runtimeConfig"],
        json!({"deviceID": "d1", "CNIDeviceInfoFile": file})
    );
    assert_eq!(bench.info_files(), 0);
}

#[test]
fn del_by_result_cache_removes_device_info() {
    let mut bench = Bench::new().known_device();
    bench.add(&[single("a"), with_device("b")]).unwrap();
    fs::remove_file(bench.scratch()).unwrap();
    assert_eq!(bench.info_files(), 1);
    let cached = bench.attacher().cached_delegates();
    bench.attacher().del(&cached).unwrap();
    assert_eq!(bench.info_files(), 0);
}

#[test]
fn failed_attachment_removes_device_info() {
    let mut bench = Bench::new().known_device().failing("ADD c");
    bench
        .add(&[single("a"), with_device("b"), with_device("c")])
        .unwrap_err();
    assert_eq!(bench.info_files(), 0);
    // Rejected before the plugin ran: the interface, and the file of its name, have another owner.
    let mut bench = Bench::new().known_device();
    bench.netns.taken.insert("net1");
    let file = bench.config.own.device_info.of_attachment("ns/b", "c1", "net1");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "{}").unwrap();
    bench.add(&[single("a"), with_device("b")]).unwrap_err();
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
}

#[test]
fn unusable_device_info_fails_nothing() {
    let mut bench = Bench::new();
    let file = bench.config.own.device_info.of_device("x.io/r", "d1");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "no JSON").unwrap();
    let attached = bench.add(&[single("a"), with_device("b")]).unwrap();
    assert!(attached[1].device_info.is_none());
    // Nor does the plugin get it.
    assert_eq!(bench.info_files(), 0);
}

#[test]
fn file_outside_directory_is_ignored() {
    let mut bench = Bench::new();
    let elsewhere = bench.dir.path().join("precious");
    fs::write(&elsewhere, "{}").unwrap();
    bench.config.runtime_config =
        Object::parse(json!({"CNIDeviceInfoFile": elsewhere}).to_string().as_bytes()).unwrap();
    let attached = bench.add(&[single("a")]).unwrap();
    assert!(attached[0].device_info.is_none());
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert!(elsewhere.exists());
}
