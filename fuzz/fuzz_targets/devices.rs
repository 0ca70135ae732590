//! The devices of pods, as other programs describe them: device-info files, kubelet's checkpoint, and the answer of its
//! pod-resources API.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multus::devices::Devices;
use multus::devices::pod_resources::Response;
use multus::networks::delegate::{Config, Delegate};
use multus::networks::device_info::{self, DeviceInfo};
use prost::Message as _;
use serde_json::Value;

// The same bytes as each of the three.
fuzz_target!(|input: &[u8]| {
    if let Ok(text) = str::from_utf8(input) {
        describe(text);
    }
    if let Ok(devices) = Devices::of_checkpoint(input, Some("u")) {
        assign(&devices);
    }
    // A pod whose UID is unknown has no entry.
    if let Ok(devices) = Devices::of_checkpoint(input, None) {
        assert_eq!(devices, Devices::default());
    }
    if let Ok(answer) = Response::decode(input) {
        assign(&answer.devices_of("n", "p"));
    }
});

/// Reads a device-info file, and names files after the text.
fn describe(text: &str) {
    if let Ok(object) = device_info::parse(text.to_owned()) {
        // It becomes a part of an annotation, as it is.
        assert_eq!(object.get(), text.trim_ascii());
        let read: Value = serde_json::from_str(object.get()).expect("JSON");
        assert!(read.is_object());
    }
    // No name leads to another directory.
    let files = DeviceInfo::default();
    assert!(files.is_of_attachment(&files.of_attachment(text, text, text)));
    assert_eq!(
        files.of_device(text, text).parent(),
        files.of_device("r", "d").parent()
    );
}

/// Assigns devices to two networks: none gets the other's, and all stay readable.
fn assign(devices: &Devices) {
    let mut networks = ["one", "two"].map(|name| {
        let config = Config::parse(br#"{"type":"p","name":"n"}"#).expect("a configuration");
        let mut network = Delegate::new(name.to_owned(), config);
        network.resource_name = Some("r".to_owned());
        network
    });
    devices
        .give_to(&mut networks)
        .expect("a text is valid in a configuration");
    for network in &networks {
        let config = Config::parse(network.config.object().to_json().as_bytes()).expect("a configuration");
        assert_eq!(config.object().text("deviceID"), network.device_id);
    }
    let [one, two] = networks.map(|network| network.device_id);
    assert!(two.is_none() || (one.is_some() && one < two));
}
