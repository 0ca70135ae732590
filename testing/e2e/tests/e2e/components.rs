//! More components than the tests begin with.

use serde_json::{Value, json};

use crate::support::Stage;

/// The daemon sets of the configuration that all tests begin with.
const USUAL: [&str; 3] = ["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"];

/// Components beside the usual ones, until this is dropped.
pub struct Components<'a> {
    stage: &'a Stage,
    workloads: Vec<&'static str>,
}

impl<'a> Components<'a> {
    /// Deploys what `spec` has beside multus and `linuxBridge`, and waits for its daemon sets.
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
        // The other tests begin with this configuration, also after a failure.
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
