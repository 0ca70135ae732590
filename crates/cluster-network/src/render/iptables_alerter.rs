//! iptables-alerter, which reports pods that use iptables (§17.3).

use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{find, parse, set, use_image},
    parts::{hash, left_out},
};
use crate::{messages, names};

/// The `DaemonSet`, and the placeholder of its image in the file.
const ALERTER: &str = "iptables-alerter";
const SCRIPT: &str = include_str!("iptables-alerter.sh");

/// All objects. Nothing is rendered without the image.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let settings = context.settings;
    let Some(image) = &settings.cli_image else {
        left_out(messages::NO_ALERTER_IMAGE);
        return Ok(Vec::new());
    };
    let mut objects = parse("iptables_alerter.yaml", include_str!("iptables_alerter.yaml"))?;
    use_image(&mut objects, ALERTER, image, &settings.pull_policy);
    let map = find(&mut objects, "ConfigMap", "iptables-alerter-script")?;
    set(map, "/data/iptables-alerter.sh", json!(SCRIPT))?;
    let daemon = find(&mut objects, "DaemonSet", ALERTER)?;
    // A running shell keeps its script.
    daemon["spec"]["template"]["metadata"]["annotations"][names::CONFIG_HASH] = json!(hash(SCRIPT));
    let binding = find(&mut objects, "ClusterRoleBinding", "openshift-iptables-alerter")?;
    set(binding, "/subjects/0/namespace", json!(settings.namespace))?;
    for object in &mut objects {
        if !object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = json!(settings.namespace);
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use api::cluster_network::operator::NetworkSpec;
    use serde_json::{Value, json};

    use super::super::{
        Part,
        sample::{self, titles},
    };
    use crate::facts::Facts;

    fn rendered(facts: &Facts, image: Option<&str>) -> Vec<Value> {
        let image = image.map(|image| ("CLI_IMAGE", image));
        let settings = sample::settings(image.as_slice());
        sample::objects(Part::IptablesAlerter, &NetworkSpec::default(), facts, &settings)
    }

    fn facts(openshift: bool, without_iptables_alerter: bool) -> Facts {
        Facts {
            openshift,
            without_iptables_alerter,
            ..Facts::default()
        }
    }

    // cluster-network#170
    #[test]
    fn alerter_is_rendered_on_openshift_unless_it_is_switched_off() {
        let image = Some("registry.example/cli:v1");
        let objects = rendered(&facts(true, false), image);
        let expected = [
            "ServiceAccount iptables-alerter",
            "ClusterRole openshift-iptables-alerter",
            "ClusterRoleBinding openshift-iptables-alerter",
            "NetworkPolicy iptables-alerter",
            "ConfigMap iptables-alerter-script",
            "DaemonSet iptables-alerter",
        ];
        assert_eq!(titles(&objects), expected);
        let daemon = &objects[5];
        let annotation = "networkoperator.openshift.io/non-critical";
        assert_eq!(daemon["metadata"]["annotations"][annotation], "");
        let container = &daemon["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "registry.example/cli:v1");
        assert_eq!(
            container["command"],
            json!(["/iptables-alerter/iptables-alerter.sh"])
        );
        assert_eq!(objects[4]["data"]["iptables-alerter.sh"], super::SCRIPT);
        for (facts, image) in [
            (facts(true, true), image),
            (facts(false, false), image),
            (facts(true, false), None),
        ] {
            assert_eq!(
                rendered(&facts, image),
                Vec::<Value>::new(),
                "{facts:?} {image:?}"
            );
        }
    }

    /// Two pods with rules, of IPv6 and of IPv4, and an Event of the second one; a pod without rules, one of the node's
    /// network, and a namespace that belongs to no pod.
    const NODE: &str = r#"
        chroot() { shift; "$@"; }
        nsenter() {
            case "$1 $2" in
            "--net=/run/netns/web ip6tables-save")
                printf '*nat\n:INPUT ACCEPT\n-A INPUT -m comment --comment "a\tb"\n-A C\n' ;;
            "--net=/run/netns/reported iptables-save") echo "-A OUTPUT -j LOG" ;;
            "--net=/run/netns/other iptables-save") echo "-A FORWARD -j DROP" ;;
            "--net=/run/netns/quiet iptables-save") printf '*filter\n:INPUT ACCEPT\n' ;;
            *) return 1 ;;
            esac
        }
        crictl() {
            case "$1" in
            pods) echo "1 2 3 4" ;;
            inspectp)
                case "$6" in
                1) echo "shop web u1 /var/run/netns/web" ;;
                2) echo "shop quiet u2 /var/run/netns/quiet" ;;
                3) echo "kube-system proxy u3 " ;;
                4) echo "shop reported u4 /var/run/netns/reported" ;;
                esac
                echo ;;
            esac
        }
        kubectl() {
            case "$1" in
            get)
                echo "$6" >&2
                if [[ "$*" == *pod-uid=u4* ]]; then echo event.events.k8s.io/known; fi ;;
            create) echo "create $2 $3"; cat ;;
            esac
        }
        sleep() { exit; }
        ALERTER_POD_NAME=iptables-alerter-abcde
    "#;

    // cluster-network#171
    #[test]
    fn script_creates_one_event_on_each_pod_with_rules() {
        let node = tempfile::tempdir().expect("a directory");
        let namespaces = node.path().join("run/netns");
        fs::create_dir_all(&namespaces).expect("a directory");
        for name in ["other", "quiet", "reported", "web"] {
            fs::write(namespaces.join(name), "").expect("a file");
        }
        let script = super::SCRIPT.replace("\nroot=/host\n", &format!("\nroot={}\n", node.path().display()));
        assert_ne!(script, super::SCRIPT);
        let output = Command::new("bash")
            .args(["-c", &format!("{NODE}\n{script}")])
            .output();
        let output = output.expect("a shell");
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        // The events of both pods with rules were listed.
        assert_eq!(errors, "pod-uid=u4\npod-uid=u1\n");
        let (log, event) = text.split_once("create --filename -\n").expect("an event");
        assert!(log.ends_with(" shop/web has iptables rules\n"), "{log}");
        let mut event: Value = serde_saphyr::from_str(event).expect("YAML");
        let time = event["eventTime"].take();
        let time = time.as_str().expect("a time");
        assert!(time.ends_with(".000000Z"), "{time}");
        let note = event["note"].take();
        let note = note.as_str().expect("a note");
        assert!(
            note.contains("deprecated and will no longer be available in RHEL 10"),
            "{note}"
        );
        // Characters that cannot be printed are left out.
        assert!(
            note.ends_with("in this pod:\n-A INPUT -m comment --comment \"ab\"\n"),
            "{note}"
        );
        let expected = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "generateName": "iptables-alert-", "namespace": "shop", "labels": { "pod-uid": "u1" } },
            "regarding": { "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u1" },
            "reportingController": "openshift.io/iptables-deprecation-alerter",
            "reportingInstance": "iptables-alerter-abcde",
            "action": "IPTablesUsageObserved",
            "reason": "IPTablesUsageObserved",
            "type": "Normal",
            "eventTime": null,
            "note": null,
        });
        assert_eq!(event, expected);
    }
}
