//! The annotation `k8s.v1.cni.cncf.io/networks`, in both of its forms.

#![no_main]

use cni::selection::{MAX_NETWORKS, parse_default_network, parse_networks};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|annotation: &str| {
    if let Ok(networks) = parse_networks(annotation, "ns") {
        assert!(networks.len() <= MAX_NETWORKS);
    }
    let _ = parse_default_network(annotation, "kube-system");
});
