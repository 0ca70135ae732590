//! Pages of section Networking in OpenShift's web console (§18.1).

use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{find, parse, set, use_image},
    parts::{hash, left_out},
};
use crate::{messages, names};

/// All objects. Nothing is rendered without the image.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let Context { facts, settings, .. } = *context;
    let Some(image) = &settings.console_plugin_image else {
        left_out(messages::NO_CONSOLE_PLUGIN_IMAGE);
        return Ok(Vec::new());
    };
    let mut objects = parse("console_plugin.yaml", include_str!("console_plugin.yaml"))?;
    use_image(&mut objects, names::CONSOLE_PLUGIN, image, &settings.pull_policy);
    let configuration = find(&mut objects, "ConfigMap", names::CONSOLE_PLUGIN)?;
    if let Some(profile) = &facts.tls_profile {
        set(configuration, "/data/tls-profile.conf", json!(profile.nginx()))?;
    }
    let configuration = hash(&configuration["data"].to_string());
    let deployment = find(&mut objects, "Deployment", names::CONSOLE_PLUGIN)?;
    // The mount of a single key stays as it was at the start of the pod.
    deployment["spec"]["template"]["metadata"]["annotations"][names::CONFIG_HASH] = json!(configuration);
    if facts.single_worker {
        set(deployment, "/spec/replicas", json!(1))?;
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use api::cluster_network::operator::NetworkSpec;
    use serde_json::{Value, json};

    use super::super::{
        Part,
        sample::{self, titles},
    };
    use crate::{facts::Facts, tls_profile::Profile};

    const IMAGE: &str = "registry.example/plugin:v1";

    fn rendered(facts: &Facts, image: Option<&str>) -> Vec<Value> {
        let image = image.map(|image| ("NETWORKING_CONSOLE_PLUGIN_IMAGE", image));
        let settings = sample::settings(image.as_slice());
        sample::objects(Part::ConsolePlugin, &NetworkSpec::default(), facts, &settings)
    }

    fn with_console() -> Facts {
        Facts {
            console_plugins: true,
            ..Facts::default()
        }
    }

    // cluster-network#147
    #[test]
    fn plugin_is_rendered_with_the_kind_and_the_image() {
        let objects = rendered(&with_console(), Some(IMAGE));
        let name = "networking-console-plugin";
        let expected = [
            "Namespace openshift-network-console".to_owned(),
            "NetworkPolicy default-deny".to_owned(),
            format!("ServiceAccount {name}"),
            format!("ConfigMap {name}"),
            format!("Deployment {name}"),
            format!("Service {name}"),
            format!("NetworkPolicy {name}"),
            format!("ConsolePlugin {name}"),
        ];
        assert_eq!(titles(&objects), expected);
        let deployment = &objects[4];
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], IMAGE);
        // Its rollout decides neither condition `Available` nor crash loops.
        assert_eq!(
            deployment["metadata"]["annotations"]["networkoperator.openshift.io/non-critical"],
            ""
        );
        let secret = "networking-console-plugin-cert";
        assert_eq!(pod["volumes"][1]["secret"]["secretName"], secret);
        assert_eq!(
            objects[5]["metadata"]["annotations"]["service.beta.openshift.io/serving-cert-secret-name"],
            secret
        );
        let backend = json!({
            "type": "Service",
            "service": { "name": name, "namespace": "openshift-network-console", "port": 9443, "basePath": "/" },
        });
        assert_eq!(objects[7]["spec"]["backend"], backend);
        for (facts, image) in [
            (Facts::default(), Some(IMAGE)),
            (with_console(), None),
            (with_console(), Some("")),
        ] {
            assert_eq!(rendered(&facts, image), Vec::<Value>::new(), "{image:?}");
        }
    }

    // cluster-network#158
    #[test]
    fn tls_profile_is_included_and_replaces_the_pods() {
        let state = |tls_profile| {
            let facts = Facts {
                tls_profile,
                ..with_console()
            };
            let objects = rendered(&facts, Some(IMAGE));
            let pod = &objects[4]["spec"]["template"]["metadata"]["annotations"];
            let hash = pod["network.operator.openshift.io/config-hash"].clone();
            (objects[3]["data"].clone(), hash)
        };
        let (before, first) = state(None);
        assert_eq!(before["tls-profile.conf"], "");
        let file = before["nginx.conf"].as_str().expect("a file");
        assert!(file.contains("include /etc/nginx/tls-profile.conf;"), "{file}");
        let modern = json!({ "spec": {
            "tlsAdherence": "StrictAllComponents", "tlsSecurityProfile": { "type": "Modern" },
        } });
        let (after, second) = state(Profile::of(&modern));
        assert_eq!(
            after["tls-profile.conf"],
            "ssl_protocols TLSv1.3;\nssl_prefer_server_ciphers on;\n"
        );
        assert!(first.is_string() && first != second);
    }

    // cluster-network#147
    #[test]
    fn single_worker_gets_one_replica() {
        let replicas = |single_worker: bool| {
            let facts = Facts {
                single_worker,
                ..with_console()
            };
            rendered(&facts, Some(IMAGE))[4]["spec"]["replicas"].clone()
        };
        assert_eq!((replicas(false), replicas(true)), (json!(2), json!(1)));
    }
}
