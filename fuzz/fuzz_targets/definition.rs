//! `spec.config` of a NetworkAttachmentDefinition, and an annotation that requests the network: the daemon's work on
//! them before any plugin runs.

#![no_main]

use cni::selection::parse_networks;
use libfuzzer_sys::fuzz_target;
use multus::networks::delegate::{Config, Delegate};

// The configuration, a zero byte, the annotation.
fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let (definition, annotation) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let annotation = str::from_utf8(annotation).unwrap_or_default();
    let Ok(config) = Config::parse_named(definition, "net") else {
        return;
    };
    // A type of multus' own never gets this far.
    for own in ["multus", "multus-shim"] {
        assert_ne!(config.plugin_type(), own);
        for plugin in config.chain().unwrap_or_default() {
            assert_ne!(plugin.text("type").as_deref(), Some(own));
        }
    }
    let text = config.object().to_json();
    let again = Config::parse_named(text.as_bytes(), "net");
    assert!(again.is_ok_and(|again| again.is_like(&config)), "{text}");
    let _ = config.network();
    let before = devices(&config);
    let mut delegate = Delegate::new("ns/net".to_owned(), config);
    for selection in parse_networks(annotation, "ns").unwrap_or_default() {
        let _ = delegate.ask(&selection);
        // A pod's request changes no device of the configuration.
        assert_eq!(devices(&delegate.config), before);
    }
});

/// The devices that a configuration and its plugins name.
fn devices(config: &Config) -> Vec<Option<String>> {
    let plugins = config.chain().unwrap_or_default();
    let objects = [config.object()].into_iter().chain(plugins);
    objects
        .flat_map(|object| ["deviceID", "pciBusID"].map(|key| object.text(key)))
        .collect()
}
