//! Devices that kubelet gave to a pod reach its networks' plugins.

use crate::kubelet::{self, Answer, Pod};
use crate::node::{Node, api};
use serde_json::{Value, json};
use std::fs;
use tokio::net::UnixListener;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const RESOURCE: &str = "x.io/sriov";

impl Node {
    /// Kubelet's checkpoint of the pods' devices.
    fn checkpoint(&self, entries: &Value) {
        fs::create_dir_all(self.path("kubelet/device-plugins")).unwrap();
        let text = json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1});
        fs::write(
            self.path("kubelet/device-plugins/kubelet_internal_checkpoint"),
            text.to_string(),
        )
        .unwrap();
    }

    /// A kubelet that answers, until the test program ends.
    fn kubelet(&self, answer: Answer) {
        let socket = self.path("kubelet/pod-resources/kubelet.sock");
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            kube_kit::process::run(async {
                kubelet::serve(UnixListener::from_std(listener).unwrap(), answer).await;
            })
        });
    }

    /// A claim to one device of the node, as if a scheduler had allocated it.
    fn claim(&self, name: &str, device: &str) {
        let requests = json!([{"name": "nic", "exactly": {"deviceClassName": "nics"}}]);
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": self.name}, "spec": {"devices": {"requests": requests}}});
        api().kubectl().apply(&claim.to_string()).unwrap();
        let result = json!({"request": "nic", "driver": self.driver(), "pool": self.name, "device": device});
        self.set_status(
            "resourceclaim",
            name,
            &json!({"allocation": {"devices": {"results": [result]}}}),
        );
    }

    /// The driver of the node's devices.
    fn driver(&self) -> String {
        format!("{}.x.io", self.name)
    }

    fn set_status(&self, kind: &str, name: &str, status: &Value) {
        let patch = json!({"status": status}).to_string();
        let kind = ["patch", kind, name, "--namespace", &self.name];
        let how = ["--subresource=status", "--type=merge", "--patch", &patch];
        api().kubectl().run([&kind[..], &how].concat()).unwrap();
    }

    /// Three networks that need a device, one of them a chain, and the pod that requests them. Returns its UID.
    fn three_networks(&self) -> String {
        let capabilities = json!({"deviceID": true, "CNIDeviceInfoFile": true});
        self.device_nad(
            "one",
            RESOURCE,
            &json!({"cniVersion": "0.3.1", "type": "b", "capabilities": capabilities}),
        );
        self.device_nad(
            "two",
            RESOURCE,
            &json!({"cniVersion": "0.3.1", "plugins": [{"type": "c", "capabilities": capabilities}]}),
        );
        self.device_nad("three", RESOURCE, &json!({"cniVersion": "0.3.1", "type": "a"}));
        self.pod("web", &json!({NETWORKS: "one,two,three"}))
    }

    /// Asserts the device IDs passed to the plugins of [`Node::three_networks`] in the ADD of sandbox `c1`.
    fn assert_device_ids(&self, first: &str, second: &str) {
        for (plugin, device) in [("b", first), ("c", second)] {
            let config = self.config_of("c1", "ADD", plugin);
            assert_eq!(
                (&config["deviceID"], &config["pciBusID"]),
                (&json!(device), &json!(device))
            );
            assert_eq!(config["runtimeConfig"]["deviceID"], json!(device));
        }
        let last = self.config_of("c1", "ADD", "a");
        assert_eq!((last.get("deviceID"), last.get("runtimeConfig")), (None, None));
    }
}

#[test]
fn device_named_by_pod_changes_no_configuration() {
    // multus#103
    let mut node = Node::new();
    node.start(&json!({"multusNamespace": node.name}));
    let fixed =
        json!({"cniVersion": "0.3.1", "type": "b", "pciBusID": "0000:04:00.0", "deviceID": "0000:04:00.0"});
    node.device_nad("fixed", RESOURCE, &fixed);
    let chain = json!({"cniVersion": "0.3.1", "plugins": [{"type": "c"}]});
    node.device_nad("chain", RESOURCE, &chain);
    node.checkpoint(&json!([]));
    node.device_nad("first", RESOURCE, &json!({"cniVersion": "0.3.1", "type": "a"}));
    let asked = |name: &str| json!({"name": name, "deviceID": "0000:3b:02.1"});
    let uid = node.pod(
        "web",
        &json!({
            "v1.multus-cni.io/default-network": json!([asked("first")]).to_string(),
            NETWORKS: json!([asked("fixed"), asked("chain")]).to_string(),
        }),
    );
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls(), ["ADD a eth0 c1", "ADD b net1 c1", "ADD c net2 c1"]);
    let device_ids = |plugin| {
        let config = node.config_of("c1", "ADD", plugin);
        // No plugin declares the capability.
        assert_eq!(config.get("runtimeConfig"), None);
        [config.get("deviceID").cloned(), config.get("pciBusID").cloned()]
    };
    assert_eq!(device_ids("a"), [None, None]);
    assert_eq!(
        device_ids("b"),
        [Some(json!("0000:04:00.0")), Some(json!("0000:04:00.0"))]
    );
    assert_eq!(device_ids("c"), [None, None]);
}

#[test]
fn replaced_default_network_shares_allocation() {
    // multus#18, multus#23 (each device once a call)
    let mut node = Node::new();
    node.start(&json!({"multusNamespace": node.name}));
    node.three_networks();
    let annotations = json!({"v1.multus-cni.io/default-network": "one", NETWORKS: "two"});
    let uid = node.pod("both", &annotations);
    node.checkpoint(&json!([entry(&uid, &json!({"0": ["a", "b"]}))]));
    node.succeed("ADD", &node.sandbox("c1", "both", Some(&uid)));
    assert_eq!(node.calls(), ["ADD b eth0 c1", "ADD c net1 c1"]);
    for (plugin, device) in [("b", "a"), ("c", "b")] {
        assert_eq!(node.config_of("c1", "ADD", plugin)["deviceID"], device);
    }
    // multus#16: the master gets by `runtimeConfig` what the runtime gave, and no more
    assert_eq!(node.config_of("c1", "ADD", "b").get("runtimeConfig"), None);
}

#[test]
fn claimed_devices_reach_plugins() {
    // multus#25 (claims and slices of a real API server, within the daemon's rights)
    let mut node = Node::new();
    let attributes = |id: &str| json!({"k8s.cni.cncf.io/deviceID": {"string": id}, "k8s.cni.cncf.io/resourceName": {"string": RESOURCE}});
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node.name},
        "spec": {"driver": node.driver(), "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "vf0", "attributes": attributes("b")}, {"name": "vf1", "attributes": attributes("a")}]}});
    api().kubectl().apply(&slice.to_string()).unwrap();
    // One claim that the pod names, and one that was made for the pod.
    node.claim("named", "vf0");
    node.claim("made", "vf1");
    node.three_networks();
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "claiming", "namespace": node.name, "annotations": {NETWORKS: "one,two,three"}},
        "spec": {"nodeName": node.name, "containers": [{"name": "c", "image": "none"}],
            "resourceClaims": [{"name": "n", "resourceClaimName": "named"},
                {"name": "t", "resourceClaimTemplateName": "template"}]}});
    api().kubectl().apply(&pod.to_string()).unwrap();
    let statuses = json!([{"name": "t", "resourceClaimName": "made"}]);
    node.set_status("pod", "claiming", &json!({"resourceClaimStatuses": statuses}));
    node.checkpoint(&json!([]));
    node.start(&json!({}));
    let uid = node.get_pod("claiming")["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    node.succeed("ADD", &node.sandbox("c1", "claiming", Some(&uid)));
    node.assert_device_ids("a", "b");
}

fn entry(uid: &str, devices: &Value) -> Value {
    json!({"PodUID": uid, "ContainerName": "c", "ResourceName": RESOURCE, "DeviceIDs": devices, "AllocResp": ""})
}

#[test]
fn checkpointed_devices_reach_plugins_and_status() {
    // multus#23, multus#24 (the checkpoint), multus#62
    let node = Node::started();
    let uid = node.three_networks();
    node.checkpoint(&json!([
        entry(&uid, &json!({"0": ["b"], "1": ["a"]})),
        entry("other", &json!({"0": ["0"]}))
    ]));
    let info = json!({"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:00:01.0"}});
    fs::create_dir_all(node.path("devinfo/dp")).unwrap();
    fs::write(node.path("devinfo/dp/x.io-sriov-a-device.json"), info.to_string()).unwrap();
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    node.assert_device_ids("a", "b");
    let file = node.path(&format!("devinfo/cni/{}-one-c1_net1", node.name));
    let config = node.config_of("c1", "ADD", "b");
    assert_eq!(config["runtimeConfig"]["CNIDeviceInfoFile"], json!(file));
    assert_eq!(fs::read_to_string(&file).unwrap(), info.to_string());
    let status = node.status("web").unwrap();
    let said: Vec<_> = (0..4).map(|index| status[index].get("device-info")).collect();
    assert_eq!(said, [None, Some(&info), None, None]);
    node.succeed("DEL", &sandbox);
    assert_eq!(node.config_of("c1", "DEL", "b")["deviceID"], "a");
    assert!(!file.exists());
}

#[test]
fn broken_checkpoint_fails_only_pods_with_devices() {
    // multus#24 (what is no JSON)
    let node = Node::started();
    let uid = node.three_networks();
    let without = node.pod("plain", &json!({}));
    fs::create_dir_all(node.path("kubelet/device-plugins")).unwrap();
    fs::write(
        node.path("kubelet/device-plugins/kubelet_internal_checkpoint"),
        "{",
    )
    .unwrap();
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let message = error["msg"].as_str().unwrap();
    let expected = format!(
        "error loading k8s delegates k8s args: network {}/one: getKubernetesDelegate: failed to get resourceMap from \
         ResourceClient: getPodEntries: error unmarshalling ",
        node.name
    );
    assert!(message.contains(&expected), "{message}");
    assert!(
        node.event("web", "FailedAddingInterface")
            .contains("getPodEntries")
    );
    assert!(node.calls().is_empty());
    node.succeed("ADD", &node.sandbox("c2", "plain", Some(&without)));
    // DEL queries no device that it can do without.
    node.succeed("DEL", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["DEL a", "DEL c", "DEL b", "DEL a"]);
}

#[test]
fn pod_resources_win_over_checkpoint() {
    // multus#23, multus#24 (the notes are what is left without kubelet)
    let node = Node::started();
    let uid = node.three_networks();
    node.checkpoint(&json!([entry(&uid, &json!({"0": ["old"]}))]));
    let pod = |name: &str, devices: &[&str]| Pod {
        namespace: node.name.clone(),
        name: name.into(),
        containers: devices
            .iter()
            .map(|device| vec![(RESOURCE.to_owned(), vec![(*device).to_owned()])])
            .collect(),
    };
    node.kubelet(Answer::Pods(vec![pod("web", &["b", "a"]), pod("other", &["0"])]));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    node.assert_device_ids("a", "b");
}

#[test]
fn refused_pod_resources_do_not_fall_back() {
    // multus#24 (an answer that fails)
    let node = Node::started();
    let uid = node.three_networks();
    node.checkpoint(&json!([entry(&uid, &json!({"0": ["old"]}))]));
    node.kubelet(Answer::Refusal {
        code: "13",
        message: "no luck".into(),
    });
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let message = error["msg"].as_str().unwrap();
    let expected = "getPodResources: failed to list pod resources, code 13: no luck";
    assert!(message.contains(expected), "{message}");
    assert!(node.calls().is_empty());
}
