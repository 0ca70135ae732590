//! Components besides the default ones of the tests.

use serde_json::{Value, json};

use crate::support::Stage;

/// Daemon sets of the default configuration.
const USUAL: [&str; 3] = ["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"];

/// Additional components, until the drop.
pub struct Components<'a> {
    stage: &'a Stage,
    workloads: Vec<&'static str>,
}

impl<'a> Components<'a> {
    /// Deploys the components in `spec` besides multus and `linuxBridge`, and waits for their daemon sets.
    pub fn deploy(stage: &'a Stage, spec: &Value, workloads: &[&'static str]) -> Self {
        let deployed = Self {
            stage,
            workloads: workloads.to_vec(),
        };
        let mut whole = usual();
        for (name, value) in spec.as_object().expect("a specification") {
            whole[name] = value.clone();
        }
        stage.configure(&whole);
        stage.available_on_all_nodes(workloads);
        deployed
    }
}

impl Drop for Components<'_> {
    fn drop(&mut self) {
        // Other tests start with the default configuration, even after a failure.
        self.stage.configure(&usual());
        if std::thread::panicking() {
            return;
        }
        for name in self.workloads.iter().filter(|name| !USUAL.contains(name)) {
            self.stage.wait(&format!("DaemonSet {name} is gone"), || {
                self.stage.daemonset_uid(name).is_none().then_some(())
            });
        }
        self.stage.available_on_all_nodes(&USUAL);
    }
}

fn usual() -> Value {
    json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" })
}
