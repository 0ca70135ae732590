//! Components besides the default ones of the tests.

use serde_json::{Value, json};

use crate::support::Stage;

/// Daemon sets of the default configuration.
const USUAL: [&str; 3] = ["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"];

/// Additional components, until the drop.
pub struct Components<'a> {
    stage: &'a Stage,
    daemon_sets: Vec<&'static str>,
    deployments: Vec<&'static str>,
}

impl<'a> Components<'a> {
    /// Deploys the components in `spec` besides multus and `linuxBridge`, and waits for their daemon sets.
    pub fn deploy(stage: &'a Stage, spec: &Value, daemon_sets: &[&'static str]) -> Self {
        let deployed = Self {
            stage,
            daemon_sets: daemon_sets.to_vec(),
            deployments: Vec::new(),
        };
        let mut whole = usual();
        for (name, value) in spec.as_object().expect("a specification") {
            whole[name] = value.clone();
        }
        stage.configure(&whole);
        stage.available_on_all_nodes(daemon_sets);
        deployed
    }

    /// Makes the drop wait for the end of these deployments too.
    pub fn with_deployments(mut self, deployments: &[&'static str]) -> Self {
        self.deployments.extend(deployments);
        self
    }
}

impl Drop for Components<'_> {
    fn drop(&mut self) {
        // Other tests start with the default configuration, even after a failure.
        self.stage.configure(&usual());
        if std::thread::panicking() {
            return;
        }
        for name in self.daemon_sets.iter().filter(|name| !USUAL.contains(name)) {
            self.stage.wait_gone("daemonset", name);
        }
        for name in &self.deployments {
            self.stage.wait_gone("deployment", name);
        }
        self.stage.available_on_all_nodes(&USUAL);
    }
}

fn usual() -> Value {
    json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" })
}
