//! Pods of virtual machines, their instances and networks, as the KubeVirt IPAM webhook and controller read them: four texts,
//! each on a line.

#![no_main]

use std::sync::Arc;

use kube_kit::watch::Name;
use kubevirt_ipam::mutate::{Lookup, Review, mutate};
use kubevirt_ipam::network::Network;
use kubevirt_ipam::objects::{Claim, Instance, WireInstance};
use kubevirt_ipam::plan::{Networks, plan};
use kubevirt_ipam::selection;
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use webhook::admission::{Operation, Request};

/// Every network is this one.
struct One(Arc<Network>);

impl Networks for One {
    fn network(&self, _: &Name) -> Option<Arc<Network>> {
        Some(Arc::clone(&self.0))
    }

    fn primary(&self, _: &str) -> Option<Arc<Network>> {
        self.0.is_primary().then(|| Arc::clone(&self.0))
    }
}

impl Lookup for One {
    fn claim(&self, _: &Name) -> Option<Claim> {
        None
    }
}

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(4, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (networks, config, addresses, instance) = (next(), next(), next(), next());
    let known = One(Arc::new(Network::read(Name::new("ns", "net"), config)));
    let wire: Result<WireInstance, _> = serde_json::from_str(instance);
    let mut instance: Instance = wire.map(Instance::from).unwrap_or_default();
    instance.addresses = Some(addresses.into());
    let _ = plan(&Name::new("ns", "vm"), None, Some(&instance), &known);
    if let Ok(elements) = selection::parse(Some(networks), "ns") {
        // The written text is read as the same elements.
        let written = selection::to_text(&elements);
        assert_eq!(
            selection::parse(Some(&written), "ns").as_deref(),
            Ok(&elements[..])
        );
    }
    let pod = json!({ "metadata": { "annotations": {
        "kubevirt.io/domain": "vm", "k8s.v1.cni.cncf.io/networks": networks,
    } } });
    let request = Request {
        client: [127, 0, 0, 1].into(),
        uid: String::new(),
        operation: Operation::Create,
        namespace: "ns".to_owned(),
        name: String::new(),
        dry_run: false,
        object: serde_json::value::to_raw_value(&pod).ok(),
        old_object: None,
    };
    if let Ok(review) = Review::read(&request) {
        let _ = mutate(&review, &instance, &known, "default");
    }
});
