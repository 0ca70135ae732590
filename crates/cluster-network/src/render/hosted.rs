//! Steps that complete the objects for the management cluster: the cluster that hosts the control plane (§18.3).

use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{containers_of, use_image},
    ovn::OVN,
};
use crate::{
    hosted::{Management, RESTART_DATE},
    messages, names, settings,
};

/// Placeholders of images in the files.
const TOKEN_MINTER: &str = "token-minter";
const SOCKS_PROXY: &str = "socks-proxy";
const CLI: &str = "cli";

/// Label and taint of nodes that run the control planes of hosted clusters.
const FOR_CONTROL_PLANES: &str = "hypershift.openshift.io/control-plane";
/// Label and taint of nodes that run the control plane of one hosted cluster.
const FOR_CLUSTER: &str = "hypershift.openshift.io/cluster";
/// Label of pods with the namespace of their hosted control plane.
const OF_CONTROL_PLANE: &str = "hypershift.openshift.io/hosted-control-plane";
/// Label of pods with the name of their component.
const COMPONENT: &str = "hypershift.openshift.io/control-plane-component";
/// Label of metrics with the identifier of the hosted cluster.
const CLUSTER_ID: &str = "_id";
/// Directory of the hosted cluster's token in the containers.
pub(super) const TOKEN_DIR: &str = "/var/run/secrets/hosted_cluster";
/// Default priority class of pods that the API server needs.
const API_CRITICAL: &str = "hypershift-api-critical";
/// Permissions 0640 of mounted Secrets.
const GROUP_READS: u32 = 0o640;

/// The namespace of the hosted control plane in the management cluster.
pub(super) struct Place<'a> {
    pub(super) settings: &'a settings::Hosted,
    pub(super) management: &'a Management,
    pull_policy: &'a str,
    ovn_image: &'a str,
}

impl<'a> Place<'a> {
    /// `None` for a cluster with its own control plane.
    pub(super) fn of(context: &Context<'a>) -> Result<Option<Self>, Error> {
        let (Some(settings), Some(management)) = (&context.settings.hosted, &context.facts.management) else {
            return Ok(None);
        };
        let Some(ovn_image) = &settings.ovn_image else {
            return Err(no_image(names::env::OVN_CONTROL_PLANE_IMAGE));
        };
        Ok(Some(Self {
            settings,
            management,
            pull_policy: &context.settings.pull_policy,
            ovn_image,
        }))
    }

    /// Adds a container that writes a token of this account of the hosted cluster, and renews it.
    pub(super) fn minted(&self, workload: &mut Value, namespace: &str, account: &str) -> Result<(), Error> {
        containers_of(workload)?.push(json!({
            "name": TOKEN_MINTER,
            "image": TOKEN_MINTER,
            "command": ["/usr/bin/control-plane-operator", "token-minter"],
            "args": [
                format!("--service-account-namespace={namespace}"),
                format!("--service-account-name={account}"),
                format!("--token-audience={}", self.settings.token_audience),
                format!("--token-file={TOKEN_DIR}/token"),
                "--kubeconfig=/etc/kubernetes/kubeconfig",
            ],
            "resources": { "requests": { "cpu": "10m", "memory": "30Mi" } },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "admin-kubeconfig", "mountPath": "/etc/kubernetes" },
                { "name": "hosted-cluster-api-access", "mountPath": TOKEN_DIR },
            ],
        }));
        Ok(())
    }

    /// Sets the endpoint of a `ServiceMonitor`: the certificates are those of the management cluster, and metrics have
    /// the identifier of the hosted cluster.
    pub(super) fn monitor(&self, monitor: &mut Value, service: &str, secret: &str) -> Result<(), Error> {
        let namespace = &self.settings.namespace;
        let (map, key) = &self.settings.authorities;
        let identified = json!([{
            "action": "replace",
            "replacement": self.management.control_plane.cluster_id,
            "targetLabel": CLUSTER_ID,
        }]);
        super::objects::set(
            monitor,
            "/spec/endpoints",
            json!([{
                "interval": "30s",
                "port": "metrics",
                "scheme": "https",
                "bearerTokenSecret": { "key": "" },
                "tlsConfig": {
                    "ca": { "configMap": { "name": map, "key": key } },
                    "cert": { "secret": { "name": secret, "key": "tls.crt" } },
                    "keySecret": { "name": secret, "key": "tls.key" },
                    "serverName": format!("{service}.{namespace}.svc"),
                },
                "metricRelabelings": identified,
                "relabelings": identified,
            }]),
        )?;
        monitor["spec"]["namespaceSelector"] = json!({ "matchNames": [namespace] });
        if self.settings.has_rhobs {
            monitor["apiVersion"] = json!(kube_kit::object::RHOBS_SERVICE_MONITOR.api_version());
        }
        Ok(())
    }

    /// Completes all objects: namespace, images, and placement of the pods.
    pub(super) fn complete(&self, objects: &mut Vec<Value>) -> Result<(), Error> {
        if !self.management.monitoring {
            let is_monitoring = |object: &Value| {
                let version = object["apiVersion"].as_str().unwrap_or_default();
                version.starts_with("monitoring.")
            };
            objects.retain(|object| !is_monitoring(object));
        }
        use_image(objects, OVN, self.ovn_image, self.pull_policy);
        for (placeholder, image, variable) in [
            (
                TOKEN_MINTER,
                &self.settings.token_minter_image,
                names::env::TOKEN_MINTER_IMAGE,
            ),
            (
                SOCKS_PROXY,
                &self.settings.socks_proxy_image,
                names::env::SOCKS_PROXY_IMAGE,
            ),
            (CLI, &self.settings.cli_image, names::env::CLI_CONTROL_PLANE_IMAGE),
        ] {
            let is_used = use_image(
                objects,
                placeholder,
                image.as_deref().unwrap_or_default(),
                self.pull_policy,
            );
            if is_used && image.is_none() {
                return Err(no_image(variable));
            }
        }
        for object in objects {
            object["metadata"]["namespace"] = json!(self.settings.namespace);
            object["metadata"]["annotations"][names::CLUSTER_NAME] = json!(names::MANAGEMENT);
            if object["kind"] == "Deployment" {
                self.complete_workload(object)?;
            }
        }
        Ok(())
    }

    fn complete_workload(&self, workload: &mut Value) -> Result<(), Error> {
        let control_plane = &self.management.control_plane;
        let namespace = &self.settings.namespace;
        let name = workload["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        workload["metadata"]["labels"][OF_CONTROL_PLANE] = json!(namespace);
        workload["metadata"]["labels"][FOR_CONTROL_PLANES] = json!("true");
        let (most, priority) = match name.as_str() {
            // The cluster manager of OVN-Kubernetes needs one standby alone.
            names::OVN_CONTROL_PLANE => (2, API_CRITICAL),
            // Two pods would assign addresses at the same time. The network works without them.
            names::CLOUD_NETWORK => (1, "hypershift-control-plane"),
            _ => (3, API_CRITICAL),
        };
        let replicas = control_plane.replicas.min(most);
        workload["spec"]["replicas"] = json!(replicas);
        if replicas > 1 {
            workload["spec"]["strategy"] = json!({
                "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 },
            });
        }
        let metadata = &mut workload["spec"]["template"]["metadata"];
        metadata["annotations"]["hypershift.openshift.io/release-image"] = json!(self.settings.release_image);
        if let Some(date) = &control_plane.restart_date {
            metadata["annotations"][RESTART_DATE] = json!(date);
        }
        // The labels of the user come first, so that they replace none of the selector.
        let mut labels = control_plane.labels.clone();
        labels.extend(metadata["labels"].as_object().cloned().unwrap_or_default());
        labels.insert(OF_CONTROL_PLANE.to_owned(), json!(namespace));
        labels.insert(FOR_CONTROL_PLANES.to_owned(), json!("true"));
        labels.insert(COMPONENT.to_owned(), json!(name));
        metadata["labels"] = json!(labels);
        self.keep_requests(workload, &name)?;
        let pod = &mut workload["spec"]["template"]["spec"];
        pod["automountServiceAccountToken"] = json!(false);
        pod["affinity"] = self.affinity(&name, replicas);
        let class = control_plane.priority_class.as_deref();
        pod["priorityClassName"] = json!(class.unwrap_or(priority));
        if !control_plane.node_selector.is_empty() {
            pod["nodeSelector"] = json!(control_plane.node_selector);
        }
        if let Some(user) = self.settings.run_as_user {
            pod["securityContext"] = json!({
                "runAsUser": user, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" },
            });
        }
        let mut tolerations = control_plane.tolerations.clone();
        for (key, value) in [(FOR_CONTROL_PLANES, "true"), (FOR_CLUSTER, namespace)] {
            tolerations
                .push(json!({ "key": key, "operator": "Equal", "value": value, "effect": "NoSchedule" }));
        }
        pod["tolerations"] = json!(tolerations);
        if let Some(volumes) = pod["volumes"].as_array_mut() {
            volumes.extend([
                json!({ "name": "hosted-cluster-api-access", "emptyDir": {} }),
                json!({ "name": "hosted-ca-cert", "secret": {
                    "secretName": "root-ca", "defaultMode": GROUP_READS,
                    "items": [{ "key": "ca.crt", "path": "ca.crt" }],
                } }),
                json!({ "name": "admin-kubeconfig", "secret": {
                    "secretName": "service-network-admin-kubeconfig", "defaultMode": GROUP_READS,
                } }),
            ]);
        }
        Ok(())
    }

    /// Keeps the resource requests that other clients changed.
    fn keep_requests(&self, workload: &mut Value, name: &str) -> Result<(), Error> {
        for container in containers_of(workload)? {
            let key = container["name"].as_str().unwrap_or_default().to_owned();
            if let Some(live) = self.management.requests.get(&(name.to_owned(), key)) {
                for (resource, quantity) in live {
                    container["resources"]["requests"][resource] = quantity.clone();
                }
            }
        }
        Ok(())
    }

    /// Prefers nodes for control planes, and nodes with pods of the same hosted cluster. Pods of one Deployment are in
    /// different zones.
    fn affinity(&self, app: &str, replicas: u32) -> Value {
        let namespace = &self.settings.namespace;
        let node = |weight: u32, key: &str, value: &str| {
            json!({ "weight": weight, "preference": { "matchExpressions": [
                { "key": key, "operator": "In", "values": [value] },
            ] } })
        };
        let mut affinity = json!({
            "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
                node(50, FOR_CONTROL_PLANES, "true"), node(100, FOR_CLUSTER, namespace),
            ] },
            "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": { "matchLabels": { OF_CONTROL_PLANE: namespace } },
                    "topologyKey": "kubernetes.io/hostname",
                },
            }] },
        });
        if replicas > 1 {
            affinity["podAntiAffinity"] = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": { "app": app } },
                "topologyKey": "topology.kubernetes.io/zone",
            }] });
        }
        affinity
    }
}

fn no_image(variable: &'static str) -> Error {
    Error::Refused(messages::no_hosted_image(variable))
}
