//! The command line for administrators, compared with a running operator.

use std::{fs, path::PathBuf};

use clap::Parser;
use cli::{Command, answer};
use cluster::wait;
use kube_kit::connection::Answer;
use serde_json::{Value, json};

use crate::{
    fixture::{DEADLINE, Fixture, IMAGE, NAMESPACE, VERSION, file},
    installation::{IMAGES, everything, is_workload},
};

#[derive(Parser)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// A directory of files for a command line.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    fn configuration(&self, spec: &Value) -> String {
        let object = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1alpha1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" }, "spec": spec,
        });
        self.put("cr.json", &object.to_string())
    }

    /// A kubeconfig of another user.
    fn kubeconfig(&self, fixture: &Fixture, user: &str) -> String {
        let view = ["config", "view", "--raw", "-o", "json"];
        let mut config = fixture.kubectl().json(view).expect("a kubeconfig");
        config["users"][0]["user"]["as"] = json!(user);
        self.put(user, &config.to_string())
    }
}

/// A user who may read everything, and write nothing.
fn reader(fixture: &Fixture, files: &Files) -> String {
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "reader" },
            "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"] }],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "reader" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader" }],
        },
    ] });
    fixture.kubectl().apply(&objects.to_string()).expect("a reader");
    files.kubeconfig(fixture, "reader")
}

fn weft(arguments: &[&str]) -> Answer {
    let arguments = ["weft"].iter().chain(arguments);
    let parsed = CommandLine::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}"));
    answer(parsed.command)
}

/// An object without defaults of the server, and without the fields that need a cluster.
fn stripped(object: &Value) -> Value {
    let mut object = object.clone();
    let fields = object.as_object_mut().expect("an object");
    fields.shift_remove("status");
    let metadata = fields["metadata"].as_object_mut().expect("metadata");
    for key in [
        "uid",
        "resourceVersion",
        "generation",
        "managedFields",
        "creationTimestamp",
        "ownerReferences",
    ] {
        metadata.shift_remove(key);
    }
    object
}

/// Path of the collection of an object.
fn collection(object: &Value) -> String {
    let id = kube_kit::object::ObjectId::of(object);
    let kind = id.known_kind().expect("a kind");
    kind.path(id.namespace.as_deref())
}

const RANGE: [&str; 2] = ["02:00:00:00:00:00", "02:00:00:00:00:ff"];

#[test]
fn render_prints_objects_that_operator_applies() {
    let mut fixture = Fixture::installed();
    let files = Files::new();
    let spec = json!({
        "multus": {}, "linuxBridge": {}, "kubeMacPool": { "rangeStart": RANGE[0], "rangeEnd": RANGE[1] },
        "placementConfiguration": { "infra": { "nodeSelector": { "role": "infra" } } },
        "selfSignConfiguration": {
            "caRotateInterval": "10h", "caOverlapInterval": "2h", "certRotateInterval": "4h", "certOverlapInterval": "1h",
        },
    });
    let images = file("operator.yaml");
    let images = files.put("operator.yaml", &images);
    let command = [
        "render",
        "-o",
        "json",
        "-f",
        &files.configuration(&spec),
        "--images-from",
        &images,
    ];
    let rendered = weft(&command);
    assert_eq!((rendered.code, rendered.remarks.as_str()), (0, ""));
    assert_eq!(rendered, weft(&command), "twice the same");
    let list: Value = serde_json::from_str(&rendered.text).expect("JSON");
    let objects = list["items"].as_array().expect("a list");

    let mark = fixture.mark();
    fixture.configure(&spec);
    fixture.start();
    fixture.roll_out(&["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.roll_out_deployments(&["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"]);
    fixture.wait_until_available();

    // The server would store exactly this in place of the existing objects.
    let kubectl = fixture.kubectl();
    let file = files.put("rendered.json", &rendered.text);
    let replaced = kubectl
        .run(["replace", "--dry-run=server", "-o", "json", "-f", &file])
        .expect("replaced objects");
    let replaced: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&replaced)
        .into_iter()
        .collect();
    let replaced = replaced.expect("JSON");
    assert_eq!(replaced.len(), objects.len());
    // The namespace is part of the installation: the operator does not change it.
    for object in replaced.iter().filter(|object| object["kind"] != "Namespace") {
        let kind = object["kind"].as_str().expect("a kind");
        let name = object["metadata"]["name"].as_str().expect("a name");
        let live = if object["metadata"]["namespace"].is_null() {
            fixture.object(kind, name)
        } else {
            fixture.operand(kind, name)
        };
        assert_eq!(stripped(object), stripped(&live.expect(name)), "{kind} {name}");
    }

    // No object is missing, apart from the operator's own record.
    let kinds = "daemonset,deployment,service,role,rolebinding,configmap,serviceaccount,networkpolicy";
    let label = "app.kubernetes.io/managed-by=cnao-operator";
    let live = kubectl
        .json(["get", kinds, "-n", NAMESPACE, "-l", label])
        .expect("objects");
    let named = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
    for object in live["items"].as_array().expect("a list") {
        let is_record = object["metadata"]["name"] == "cluster-networks-addons-operator-applied-cluster";
        let is_rendered = objects.iter().any(|rendered| named(rendered) == named(object));
        assert!(is_record != is_rendered, "{:?}", named(object));
    }

    // The operator wrote them in the same order.
    let written: Vec<String> = fixture
        .requests_since(mark)
        .into_iter()
        .filter_map(|request| {
            let uri = request.uri.split('?').next().unwrap_or_default().to_owned();
            match request.verb.as_str() {
                "create" => Some(uri),
                "update" => Some(uri.rsplit_once('/')?.0.to_owned()),
                _ => None,
            }
        })
        .filter(|uri| !uri.ends_with("/events"))
        .collect();
    // The comparison skips the record, which comes first. The definition and the namespace may already exist.
    let mut written = written[1..].iter().peekable();
    for object in objects {
        let path = collection(object);
        if written.peek() == Some(&&path) {
            written.next();
        } else {
            let kind = object["kind"].as_str().expect("a kind");
            assert!(
                ["Namespace", "CustomResourceDefinition"].contains(&kind),
                "{:?} {written:?}",
                named(object)
            );
        }
    }
    assert_eq!(written.next(), None);
}

/// An operator's Deployment with these variables.
fn deployment<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let own = [("OPERATOR_IMAGE", IMAGE), ("OPERATOR_VERSION", VERSION)];
    let variables: Vec<Value> = own
        .into_iter()
        .chain(variables)
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "cluster-network-addons-operator", "namespace": NAMESPACE },
        "spec": { "template": { "spec": { "containers": [{
            "name": "cluster-network-addons-operator", "image": IMAGE, "env": variables,
        }] } } },
    })
}

#[test]
fn rendered_objects_have_no_unknown_fields() {
    let fixture = Fixture::installed();
    let files = Files::new();
    let native = deployment(IMAGES.iter().map(|(name, _)| (*name, IMAGE)));
    let upstream = deployment(IMAGES.into_iter());
    let mut spec = everything();
    spec["nmstate"] = json!({});
    let mut workloads = 0;
    for (images, platform) in [
        (&native, "--kubernetes"),
        (&upstream, "--kubernetes"),
        (&native, "--openshift"),
    ] {
        if platform == "--openshift" {
            // The operator refuses them there.
            for component in ["multusDynamicNetworks", "macvtap"] {
                spec[component] = Value::Null;
            }
        }
        let configuration = files.configuration(&spec);
        let images = files.put("operator.json", &images.to_string());
        let command = [
            "render",
            "-o",
            "json",
            platform,
            "-f",
            &configuration,
            "--images-from",
            &images,
        ];
        let rendered = weft(&command);
        assert_eq!((rendered.code, rendered.remarks.as_str()), (0, ""));
        let mut list: Value = serde_json::from_str(&rendered.text).expect("JSON");
        let objects = list["items"].as_array_mut().expect("a list");
        // No definition of these kinds is on this server.
        objects.retain(|object| {
            let group = object["apiVersion"].as_str().unwrap_or_default();
            ![
                "cert-manager.io/",
                "monitoring.coreos.com/",
                "security.openshift.io/",
                "nmstate.io/",
            ]
            .iter()
            .any(|absent| group.starts_with(absent))
        });
        workloads += objects.iter().filter(|object| is_workload(object)).count();
        let file = files.put("rendered.json", &list.to_string());
        let strict = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "--filename",
            &file,
        ];
        let applied = fixture.kubectl().run(strict);
        applied.unwrap_or_else(|error| panic!("{platform}: {error}"));
    }
    assert!(workloads >= 30, "{workloads}");
}

fn diff(kubeconfig: &str, more: &[&str]) -> Answer {
    let base = ["diff", "--kubeconfig", kubeconfig, "-n", NAMESPACE];
    weft(&[&base[..], more].concat())
}

#[test]
fn diff_prints_changes_that_operator_would_make() {
    let mut fixture = Fixture::running();
    let files = Files::new();
    let reader = reader(&fixture, &files);
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    fixture.roll_out(&["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
    let same = diff(&reader, &[]);
    assert_eq!((same.code, same.remarks.as_str()), (0, ""), "{same:?}");
    assert_eq!(
        same.text,
        "No difference: 14 objects are in their desired state.\n"
    );

    // This configuration removes a component.
    let file = files.configuration(&json!({ "multus": {}, "imagePullPolicy": "IfNotPresent" }));
    let change = diff(&reader, &["-f", &file]);
    assert_eq!((change.code, change.remarks.as_str()), (1, ""));
    assert_eq!(
        change.text,
        "\
- ClusterRole bridge-marker-cr
- ClusterRoleBinding bridge-marker-crb
- ServiceAccount networking/bridge-marker
- DaemonSet networking/kube-cni-linux-bridge-plugin
- DaemonSet networking/bridge-marker

5 to delete, 9 unchanged
"
    );
    let refused = diff(
        &reader,
        &[
            "-f",
            &files.configuration(&json!({ "imagePullPolicy": "Always" })),
        ],
    );
    assert_eq!(refused.code, 2);
    assert!(
        refused
            .remarks
            .starts_with("error: the operator would change nothing: not applying unsafe change: "),
        "{refused:?}"
    );

    // Another client made a change while no operator ran.
    fixture.stop();
    let kubectl = fixture.kubectl();
    let namespace = ["-n", NAMESPACE];
    let patch = r#"{"metadata":{"labels":{"prometheus.cnao.io":"no","mine":"x"}},"spec":{"template":{"spec":{"containers":[{"name":"kube-multus","image":"evil:1"}]}}}}"#;
    kubectl
        .run([&["patch", "daemonset", "multus", "-p", patch], &namespace[..]].concat())
        .expect("a patched DaemonSet");
    kubectl
        .run(
            [
                &["delete", "--wait=false", "serviceaccount", "bridge-marker"],
                &namespace[..],
            ]
            .concat(),
        )
        .expect("deleted");
    let drift = diff(&reader, &[]);
    assert_eq!(drift.code, 1, "{drift:?}");
    assert_eq!(
        drift.text,
        format!(
            "\
~ DaemonSet networking/multus
    metadata.labels[\"prometheus.cnao.io\"]: \"no\" → \"true\"
    spec.template.spec.containers[kube-multus].image: \"evil:1\" → \"{IMAGE}\"
+ ServiceAccount networking/bridge-marker

1 to create, 1 to change, 12 unchanged
"
        )
    );
    fixture.start();
    wait::until("no difference", DEADLINE, || {
        let drift = diff(&reader, &[]);
        if drift.code == 0 {
            Ok(())
        } else {
            Err(format!("{drift:?}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn status_names_problem_and_its_place() {
    let fixture = Fixture::running();
    let files = Files::new();
    let reader = reader(&fixture, &files);
    let status = |more: &[&str]| {
        let base = ["status", "--kubeconfig", reader.as_str(), "-n", NAMESPACE];
        weft(&[&base[..], more].concat())
    };
    let nothing = status(&[]);
    assert_eq!(nothing.code, 1);
    assert!(
        nothing
            .text
            .contains("There is no NetworkAddonsConfig: nothing is deployed.\n"),
        "{}",
        nothing.text
    );

    let operator = [
        "patch",
        "deployment",
        "cluster-network-addons-operator",
        "--subresource=status",
        "--type=merge",
    ];
    let ready =
        json!({ "status": { "replicas": 1, "readyReplicas": 1, "availableReplicas": 1 } }).to_string();
    fixture
        .kubectl()
        .run([&operator[..], &["-n", NAMESPACE, "-p", &ready]].concat())
        .expect("a status");
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_until_progressing();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "multus-x2k4d", "namespace": NAMESPACE,
            "labels": { "app.kubernetes.io/managed-by": "cnao-operator" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "multus", "uid": "1" }],
        },
        "spec": { "nodeName": "node02", "containers": [{ "name": "kube-multus", "image": IMAGE }] },
    });
    fixture.kubectl().apply(&pod.to_string()).expect("a pod");
    let waiting = json!({ "status": { "phase": "Pending", "containerStatuses": [{
        "name": "kube-multus", "image": IMAGE, "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image" } },
    }] } });
    let patch = [
        "patch",
        "pod",
        "multus-x2k4d",
        "--subresource=status",
        "--type=merge",
    ];
    fixture
        .kubectl()
        .run([&patch[..], &["-n", NAMESPACE, "-p", &waiting.to_string()]].concat())
        .expect("a status");

    let found = status(&[]);
    assert_eq!((found.code, found.remarks.as_str()), (1, ""), "{found:?}");
    for part in [
        "Operator: 1/1 ready in namespace networking\n",
        "Versions: operator 1.2.3, target 1.2.3, observed none\n",
        "  multus: pod multus-x2k4d on node node02, container kube-multus:\n    ImagePullBackOff: Back-off pulling image\n",
        "\nNext: check the image's name, and whether node node02 may pull it\n  kubectl -n networking describe pod \
         multus-x2k4d\n",
    ] {
        assert!(found.text.contains(part), "{part}\n{}", found.text);
    }
    let json: Value = serde_json::from_str(&status(&["-o", "json"]).text).expect("JSON");
    assert_eq!(json["available"], false);
    assert_eq!(json["components"][0]["name"], "multus");

    fixture
        .kubectl()
        .run(["delete", "pod", "multus-x2k4d", "-n", NAMESPACE, "--force"])
        .expect("deleted");
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    let well = status(&[]);
    assert_eq!((well.code, well.remarks.as_str()), (0, ""), "{well:?}");
    assert!(
        !well.text.contains("Problems:") && !well.text.contains("Next:"),
        "{}",
        well.text
    );
}

#[test]
fn failed_command_prints_next_step() {
    let fixture = Fixture::installed();
    let files = Files::new();
    let unprivileged = files.kubeconfig(&fixture, "nobody");
    let away = "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: \
                'https://127.0.0.1:1'}}], contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: \
                {}}]}";
    let away = files.put("away", away);
    for command in ["diff", "status"] {
        for (kubeconfig, error, advice) in [
            ("/nowhere", "error: no usable kubeconfig: ", "--kubeconfig FILE"),
            (
                &away,
                "error: the API server does not answer: ",
                "`kubectl version`",
            ),
            (
                &unprivileged,
                "error: not allowed to read NetworkAddonsConfig cluster: ",
                "Ask an administrator",
            ),
        ] {
            let refused = weft(&[command, "--kubeconfig", kubeconfig]);
            assert_eq!((refused.code, refused.text.as_str()), (2, ""), "{refused:?}");
            assert!(refused.remarks.starts_with(error), "{}", refused.remarks);
            assert!(refused.remarks.contains(advice), "{}", refused.remarks);
        }
        let unknown = weft(&[command, "--kubeconfig", &away, "--context", "other"]);
        assert!(
            unknown.remarks.starts_with("error: no usable kubeconfig: "),
            "{}",
            unknown.remarks
        );
    }
}
