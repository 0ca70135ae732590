//! What the operator is told by its environment (nmstate §10.4).

use std::path::PathBuf;

use thiserror::Error;

use super::names::{self, env, namespace};

/// A variable that has to be there is not.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("environment variable {0} is not set")]
pub struct Missing(&'static str);

/// What the operator is told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Namespace of everything that is deployed.
    pub handler_namespace: String,
    /// The operator's own namespace.
    pub operator_namespace: String,
    /// Namespace of the Prometheus that may ask for metrics.
    pub monitoring_namespace: String,
    /// Image that everything deployed runs.
    pub image: String,
    /// When that image is pulled.
    pub pull_policy: String,
    /// What names of deployed objects begin with; nothing where it is empty.
    pub prefix: String,
    /// Variables that are handed on to the handler, in order.
    pub handed_on: Vec<(&'static str, String)>,
    /// Whether and where everything deployed serves profiles, as the variables say it.
    pub profiler: (String, String),
    /// The console's plugin, on OpenShift.
    pub plugin: Plugin,
    /// Where manifests are read from instead of the ones in the program.
    pub manifests: Option<PathBuf>,
}

/// The console's plugin.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plugin {
    /// Name of its objects.
    pub name: String,
    /// Image that it runs.
    pub image: String,
    /// Port that it is served on.
    pub port: u16,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// When a variable without which nothing can be deployed is not there.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Missing> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let needed = |name: &'static str| given(name).ok_or(Missing(name));
        let handler_namespace = needed(crate::names::env::HANDLER_NAMESPACE)?;
        let handed_on = names::HANDED_ON
            .into_iter()
            .filter_map(|name| Some((name, given(name)?)));
        let or = |name: &str, usual: &str| given(name).unwrap_or_else(|| usual.to_owned());
        Ok(Self {
            operator_namespace: given(env::OPERATOR_NAMESPACE)
                .or_else(|| given(crate::names::env::POD_NAMESPACE))
                .unwrap_or_else(|| handler_namespace.clone()),
            handler_namespace,
            monitoring_namespace: or(env::MONITORING_NAMESPACE, namespace::MONITORING),
            image: needed(env::HANDLER_IMAGE)?,
            pull_policy: or(env::PULL_POLICY, "IfNotPresent"),
            prefix: given(crate::names::env::PREFIX).unwrap_or_default(),
            handed_on: handed_on.collect(),
            profiler: (or(env::ENABLE_PROFILER, "False"), or(env::PROFILER_PORT, "6060")),
            plugin: Plugin {
                name: or(env::PLUGIN_NAME, names::PLUGIN),
                image: or(
                    env::PLUGIN_IMAGE,
                    "quay.io/nmstate/nmstate-console-plugin:release-1.0.0",
                ),
                port: given(env::PLUGIN_PORT)
                    .and_then(|port| port.parse().ok())
                    .unwrap_or(9443),
            },
            manifests: given(env::MANIFESTS).map(PathBuf::from),
        })
    }

    /// What an object is called whose usual name is this.
    pub fn name(&self, usual: &str) -> String {
        match self.prefix.as_str() {
            "" => usual.to_owned(),
            prefix => format!("{prefix}-{usual}"),
        }
    }
}
