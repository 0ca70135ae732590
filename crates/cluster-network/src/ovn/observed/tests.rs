use serde_json::json;

use super::*;

fn daemon_set_of(version: &str, desired: i32, updated: i32, available: i32) -> Value {
    json!({
        "metadata": {
            "name": "ovnkube-node", "generation": 2,
            "annotations": {
                "release.openshift.io/version": version, "networkoperator.openshift.io/ip-family-mode": "single-stack",
            },
        },
        "status": {
            "observedGeneration": 2, "desiredNumberScheduled": desired, "updatedNumberScheduled": updated,
            "numberAvailable": available, "numberUnavailable": desired - available,
        },
    })
}

fn deployment_of(version: &str) -> Value {
    json!({
        "metadata": { "generation": 1, "annotations": { "release.openshift.io/version": version } },
        "spec": { "replicas": 2 },
        "status": { "observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 2 },
    })
}

// cluster-network#47
#[test]
fn progress_is_read_from_the_status() {
    let progressing = |object: &Value| {
        let observed = observe(&Objects {
            node: Some(object),
            ..Objects::default()
        });
        observed.existing.node.expect("it exists").is_progressing
    };
    assert!(!progressing(&daemon_set_of("1.2.3", 0, 0, 0)));
    assert!(progressing(&daemon_set_of("1.2.3", 3, 3, 0)));
    assert!(!progressing(&daemon_set_of("1.2.3", 3, 3, 3)));
    let mut unseen = daemon_set_of("1.2.3", 3, 3, 3);
    unseen["metadata"]["generation"] = json!(3);
    assert!(progressing(&unseen));
    let mut hung = daemon_set_of("1.2.3", 3, 2, 2);
    assert!(progressing(&hung));
    hung["metadata"]["annotations"]["networkoperator.openshift.io/rollout-hung"] = json!("");
    assert!(!progressing(&hung));
    let deployment = deployment_of("1.2.3");
    let observed = observe(&Objects {
        control_plane: Some(&deployment),
        ..Objects::default()
    });
    let control_plane = observed.existing.control_plane.expect("it exists");
    assert_eq!(
        (control_plane.version.as_str(), control_plane.is_progressing),
        ("1.2.3", false)
    );
    let mut fewer = deployment_of("1.2.3");
    fewer["status"]["availableReplicas"] = json!(1);
    let observed = observe(&Objects {
        control_plane: Some(&fewer),
        ..Objects::default()
    });
    assert!(observed.existing.control_plane.expect("it exists").is_progressing);
}

// cluster-network#74, cluster-network#104
#[test]
fn hung_rollout_is_not_complete() {
    let of = |desired: i32, updated: i32, available: i32| {
        let mut object = daemon_set_of("1.2.3", desired, updated, available);
        object["metadata"]["annotations"]["networkoperator.openshift.io/rollout-hung"] = json!("");
        (is_rolled_out(&object), is_complete(&object))
    };
    assert_eq!(of(1, 1, 0), (false, false));
    assert_eq!(of(3, 3, 2), (false, false));
    assert_eq!(of(3, 2, 3), (false, false));
    assert_eq!(of(3, 3, 3), (true, true));
    assert_eq!(of(0, 0, 0), (false, true));
}

#[test]
fn node_identity_is_on_unless_it_is_switched_off() {
    let enabled = |value: Option<&str>| {
        let mut maps = ConfigMaps::default();
        maps.node_identity
            .extend(value.map(|value| ("enabled".to_owned(), value.to_owned())));
        maps.has_node_identity()
    };
    assert!(enabled(None) && enabled(Some("true")));
    assert!(!enabled(Some("false")) && !enabled(Some("")) && !enabled(Some("yes")));
}

#[test]
fn masquerade_subnets_stay_as_they_were_installed() {
    let (mut node, control_plane) = (daemon_set_of("1.2.3", 3, 3, 3), deployment_of("1.2.3"));
    let subnets = |node: Option<&Value>, control_plane: Option<&Value>| {
        let objects = Objects {
            node,
            control_plane,
            ..Objects::default()
        };
        observe(&objects).masquerade
    };
    let new = ["169.254.0.0/17", "fd69::/112"];
    assert_eq!(subnets(None, None), new);
    assert_eq!(subnets(Some(&node), None), new);
    assert_eq!(subnets(Some(&node), Some(&control_plane)), Vec::<String>::new());
    node["metadata"]["annotations"][MASQUERADE] = json!("169.254.8.0/22,fd70::/112");
    assert_eq!(
        subnets(Some(&node), Some(&control_plane)),
        ["169.254.8.0/22", "fd70::/112"]
    );
}

// cluster-network#43
#[test]
fn nodes_of_two_kinds_are_an_error() {
    let node = |labels: Value| json!({ "metadata": { "name": "a", "labels": labels } });
    let kinds = |node: &Value| {
        let observed = observe(&Objects {
            nodes: vec![node],
            ..Objects::default()
        });
        offloads(&observed)
            .map(|(_, kinds)| kinds)
            .map_err(|error| error.to_string())
    };
    let (dpu, nic) = (
        "network.operator.openshift.io/dpu",
        "network.operator.openshift.io/smart-nic",
    );
    assert_eq!(kinds(&node(json!({ "kubernetes.io/os": "linux" }))), Ok(vec![]));
    assert_eq!(kinds(&node(json!({ nic: "" }))), Ok(vec![Offload::SmartNic]));
    assert_eq!(
        kinds(&node(json!({ dpu: "", nic: "" }))),
        Err("node a has multiple hardware offload labels".to_owned())
    );
}

fn machine_config(name: &str, role: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "labels": { "machineconfiguration.openshift.io/role": role },
            "ownerReferences": [{ "kind": "Network" }],
        },
    })
}

fn pool(role: &str, source: &str, updated: i32) -> Value {
    json!({
        "spec": { "machineConfigSelector": { "matchLabels": { "machineconfiguration.openshift.io/role": role } } },
        "status": { "configuration": { "source": [{ "name": source }] }, "machineCount": 3, "updatedMachineCount": updated },
    })
}

// cluster-network#46
#[test]
fn machines_are_ready_once_all_pools_have_the_configuration() {
    let ours = MACHINE_CONFIGS.map(|name| machine_config(name, name.split('-').nth(2).expect("a role")));
    let ready = |pools: &[Value]| {
        let objects = Objects {
            has_machine_configs: true,
            machine_configs: ours.iter().collect(),
            pools: pools.iter().collect(),
            ..Objects::default()
        };
        let facts = observe(&objects).encryption;
        assert!(
            facts.has_ours && !facts.has_users && !facts.is_hosted,
            "{facts:?}"
        );
        facts.are_machines_ready
    };
    let [master, worker] = MACHINE_CONFIGS;
    assert!(ready(&[pool("master", master, 3), pool("worker", worker, 3)]));
    assert!(!ready(&[pool("master", master, 3), pool("worker", worker, 2)]));
    assert!(!ready(&[pool("master", master, 3), pool("worker", "another", 3)]));
    assert!(!ready(&[pool("master", master, 3)]));
    let custom = json!({
        "spec": { "machineConfigSelector": { "matchExpressions": [
            { "key": "machineconfiguration.openshift.io/role", "operator": "In", "values": ["worker", "infra"] },
        ] } },
        "status": { "configuration": { "source": [] }, "machineCount": 1, "updatedMachineCount": 1 },
    });
    assert!(!ready(&[
        pool("master", master, 3),
        pool("worker", worker, 3),
        custom
    ]));
}

#[test]
fn pool_selects_by_all_its_requirements() {
    let expression = |key: &str, operator: &str| {
        let expression = json!({ "key": key, "operator": operator, "values": ["master"] });
        json!({ "matchExpressions": [expression] })
    };
    let role = |role: &str| json!({ "matchLabels": { ROLE: role } });
    let mut contradiction = expression(ROLE, "In");
    contradiction["matchLabels"] = json!({ "a": "b" });
    for (selector, expected) in [
        (json!(null), false),
        (json!({}), true),
        (role("master"), true),
        (role("worker"), false),
        (contradiction, false),
        (expression(ROLE, "In"), true),
        (expression("a", "In"), false),
        (expression(ROLE, "NotIn"), false),
        (expression("a", "NotIn"), true),
        (expression(ROLE, "Exists"), true),
        (expression("a", "Exists"), false),
        (expression(ROLE, "DoesNotExist"), false),
        (expression("a", "DoesNotExist"), true),
    ] {
        let pool = json!({ "spec": { "machineConfigSelector": selector } });
        assert_eq!(selects(&pool, "master"), expected, "{selector}");
    }
}

// cluster-network#46
#[test]
fn facts_of_encryption_are_read_from_objects() {
    let users: Vec<Value> = ["master", "worker"]
        .map(|role| {
            let mut config = machine_config(&format!("mine-{role}"), role);
            config["metadata"]["annotations"] = json!({ "user-ipsec-machine-config": "true" });
            config
        })
        .into();
    let able = |version: &str, progressing: &str| {
        json!({ "status": {
            "conditions": [
                { "type": "Available", "status": "True" }, { "type": "Degraded", "status": "False" },
                { "type": "Progressing", "status": progressing },
            ],
            "versions": [{ "name": "operator", "version": version }],
        } })
    };
    let facts = |operator: &Value| {
        let objects = Objects {
            has_machine_configs: true,
            machine_configs: users.iter().collect(),
            machine_operator: Some(operator),
            ..Objects::default()
        };
        observe(&objects).encryption
    };
    let found = facts(&able("4.15.2", "False"));
    assert!(
        found.has_users && !found.has_ours && found.can_configure_machines,
        "{found:?}"
    );
    assert!(!facts(&able("4.14.9", "False")).can_configure_machines);
    assert!(!facts(&able("4.15.2", "True")).can_configure_machines);
    // Without machine configurations, a `DaemonSet` contains the service.
    assert!(observe(&Objects::default()).encryption.is_hosted);

    let node = |version: &str, change: &dyn Fn(&mut Value)| {
        let mut node = daemon_set_of(version, 3, 3, 3);
        change(&mut node);
        let objects = Objects {
            node: Some(&node),
            ..Objects::default()
        };
        observe(&objects).encryption.node.expect("a node")
    };
    let quiet = ipsec::Node::default();
    assert_eq!(node("4.16.0", &|_| {}), quiet);
    let annotated = node("4.16.0", &|node| {
        node["metadata"]["annotations"][IPSEC_ENABLED] = json!("true");
    });
    assert!(annotated.says_so);
    let old = |node: &mut Value| {
        node["spec"]["template"]["spec"]["containers"] = json!([{
            "name": "nbdb", "lifecycle": { "postStart": { "exec": { "command": ["ovn-nbctl set nb_global . ipsec=true"] } } },
        }]);
    };
    assert!(node("4.14.9", &old).is_old_and_encrypts);
    assert!(!node("4.15.0", &old).is_old_and_encrypts);
    let unseen = node("4.16.0", &|node| node["metadata"]["generation"] = json!(5));
    assert!(unseen.is_progressing);
}
