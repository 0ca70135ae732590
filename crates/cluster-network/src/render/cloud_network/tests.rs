use api::cluster_network::operator::NetworkSpec;
use serde_json::{Value, json};

use super::super::{
    Part, Rendered,
    sample::{self, titles},
};
use crate::{
    facts::{ApiServer, Cloud, Facts, Platform},
    hosted::{ControlPlane, Management},
    settings::Settings,
};

const IMAGE: &str = "registry.example/cloud:v1";
const NAME: &str = "cloud-network-config-controller";
const VARIABLES: [(&str, &str); 3] = [
    ("OVN_IMAGE", "registry.example/ovn:v1"),
    ("CLOUD_NETWORK_CONFIG_CONTROLLER_IMAGE", IMAGE),
    ("RELEASE_VERSION", "4.20.0"),
];

fn settings(more: &[(&str, &str)]) -> Settings {
    let all: Vec<_> = more.iter().chain(&VARIABLES).copied().collect();
    sample::settings(&all)
}

fn rendered(network: &str, facts: &Facts, settings: &Settings) -> Rendered {
    let spec: NetworkSpec =
        serde_json::from_value(json!({ "defaultNetwork": { "type": network } })).expect("a specification");
    sample::rendered(Part::CloudNetwork, &spec, facts, settings)
}

/// The objects of the controller.
fn objects(network: &str, facts: &Facts, settings: &Settings) -> Vec<Value> {
    let rendered = rendered(network, facts, settings);
    assert_eq!(rendered.failed, []);
    rendered.objects
}

fn on(platform: Platform) -> Facts {
    Facts {
        platform,
        openshift: true,
        control_plane_nodes: 3,
        labelled_master: true,
        api_server: ApiServer {
            host: "api-int.example.com".to_owned(),
            port: "6443".to_owned(),
        },
        ..Facts::default()
    }
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects
        .iter()
        .find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("{kind} {name}: {:?}", titles(objects)))
}

fn controller(objects: &[Value]) -> &Value {
    let containers = &find(objects, "Deployment", NAME)["spec"]["template"]["spec"]["containers"];
    let mut containers = containers.as_array().expect("containers").iter();
    containers
        .find(|it| it["name"] == "controller")
        .expect("a container")
}

fn variable(objects: &[Value], name: &str) -> Option<String> {
    let variables = controller(objects)["env"].as_array().expect("variables");
    let found = variables.iter().find(|it| it["name"] == name)?;
    Some(found["value"].as_str()?.to_owned())
}

// cluster-network#189
#[test]
fn controller_is_rendered_in_clouds_with_ovn_kubernetes() {
    let all = objects("OVNKubernetes", &on(Platform::Aws), &settings(&[]));
    let expected = [
        "Namespace openshift-cloud-network-config-controller",
        "CustomResourceDefinition cloudprivateipconfigs.cloud.network.openshift.io",
        "ServiceAccount cloud-network-config-controller",
        "ClusterRole cloud-network-config-controller",
        "ClusterRoleBinding cloud-network-config-controller",
        "Role cloud-network-config-controller",
        "RoleBinding cloud-network-config-controller-rb",
        "NetworkPolicy default-deny",
        "NetworkPolicy cloud-network-config-controller",
        "ConfigMap kube-cloud-config",
        "ConfigMap trusted-ca",
        "Deployment cloud-network-config-controller",
    ];
    assert_eq!(titles(&all), expected);
    for object in &all[..2] {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(
            annotations["networkoperator.openshift.io/create-only"], "",
            "{object}"
        );
    }
    let deployment = &all[11];
    let annotations = &deployment["metadata"]["annotations"];
    assert_eq!(annotations["networkoperator.openshift.io/non-critical"], "");
    assert_eq!(annotations["release.openshift.io/version"], "4.20.0");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(
        pod["nodeSelector"],
        json!({ "kubernetes.io/os": "linux", "node-role.kubernetes.io/master": "" })
    );
    assert_eq!(pod["containers"][0]["image"], IMAGE);
    // The bundle of the cluster does not hide the authorities of the image, and the pod starts without it.
    let volumes = pod["volumes"].as_array().expect("volumes");
    let bundle = volumes
        .iter()
        .find(|it| it["name"] == "trusted-ca")
        .expect("a bundle");
    assert_eq!(
        bundle["configMap"],
        json!({ "name": "trusted-ca", "optional": true })
    );
    let directories = variable(&all, "SSL_CERT_DIR").expect("directories");
    assert!(
        directories.split(':').any(|it| it == "/trusted-ca"),
        "{directories}"
    );
    assert_eq!(variable(&all, "RELEASE_VERSION").as_deref(), Some("4.20.0"));
    for platform in [Platform::Azure, Platform::Gcp, Platform::OpenStack] {
        let objects = objects("OVNKubernetes", &on(platform.clone()), &settings(&[]));
        assert_eq!(titles(&objects), expected, "{platform}");
    }
    for (network, platform, image) in [
        ("OVNKubernetes", Platform::BareMetal, IMAGE),
        ("OVNKubernetes", Platform::None, IMAGE),
        ("Weft", Platform::Aws, IMAGE),
        ("Calico", Platform::Aws, IMAGE),
        ("OVNKubernetes", Platform::Aws, ""),
    ] {
        let settings = settings(&[("CLOUD_NETWORK_CONFIG_CONTROLLER_IMAGE", image)]);
        let none: [&str; 0] = [];
        assert_eq!(
            titles(&objects(network, &on(platform.clone()), &settings)),
            none,
            "{network} {platform} {image}"
        );
    }
}

// cluster-network#190
#[test]
fn arguments_describe_the_cloud() {
    let with = |platform: Platform, cloud: Cloud| {
        let facts = Facts {
            cloud,
            proxy: vec![
                ("HTTPS_PROXY", "http://proxy.example.com".to_owned()),
                ("NO_PROXY", ".svc".to_owned()),
            ],
            ..on(platform)
        };
        objects("OVNKubernetes", &facts, &settings(&[]))
    };
    let expected = |values: [&str; 5]| {
        let [kind, region, url, bundle, environment] = values;
        json!([
            "-platform-type",
            kind,
            format!("-platform-region={region}"),
            format!("-platform-api-url={url}"),
            format!("-platform-aws-ca-override={bundle}"),
            format!("-platform-azure-environment={environment}"),
            "-secret-name",
            "cloud-credentials",
        ])
    };
    let bundle = |text: &str| [("ca-bundle.pem".to_owned(), text.to_owned())].into();
    let aws = with(
        Platform::Aws,
        Cloud {
            region: "eu-west-1".to_owned(),
            api_url: "https://ec2.example.com".to_owned(),
            config: bundle("authorities"),
            ..Cloud::default()
        },
    );
    assert_eq!(
        controller(&aws)["args"],
        expected([
            "AWS",
            "eu-west-1",
            "https://ec2.example.com",
            "/kube-cloud-config/ca-bundle.pem",
            ""
        ])
    );
    let map = find(&aws, "ConfigMap", "kube-cloud-config");
    assert_eq!(map["data"], json!({ "ca-bundle.pem": "authorities" }));
    assert_eq!(
        variable(&aws, "HTTPS_PROXY").as_deref(),
        Some("http://proxy.example.com")
    );
    assert_eq!(variable(&aws, "NO_PROXY").as_deref(), Some(".svc"));
    assert_eq!(variable(&aws, "HTTP_PROXY"), None);
    let azure = with(
        Platform::Azure,
        Cloud {
            api_url: "https://arm.example.com".to_owned(),
            azure_environment: "AzureStackCloud".to_owned(),
            ..Cloud::default()
        },
    );
    assert_eq!(
        controller(&azure)["args"],
        expected(["Azure", "", "https://arm.example.com", "", "AzureStackCloud"])
    );
    // Only AWS has the bundle as an argument, and only if there is one.
    for (platform, text) in [(Platform::OpenStack, "authorities"), (Platform::Aws, "")] {
        let cloud = Cloud {
            config: bundle(text),
            ..Cloud::default()
        };
        let objects = with(platform.clone(), cloud);
        let name = platform.to_string();
        assert_eq!(controller(&objects)["args"], expected([&name, "", "", "", ""]));
    }
}

const HOSTED: [(&str, &str); 9] = [
    ("HYPERSHIFT", "true"),
    ("HOSTED_CLUSTER_NAME", "a"),
    ("HOSTED_CLUSTER_NAMESPACE", "clusters-a"),
    ("OVN_CONTROL_PLANE_IMAGE", "registry.example/host-ovn:v1"),
    ("TOKEN_MINTER_IMAGE", "registry.example/minter:v1"),
    ("SOCKS5_PROXY_IMAGE", "registry.example/socks:v1"),
    ("CLI_IMAGE", "registry.example/cli:v1"),
    ("MGMT_HTTPS_PROXY", "http://management.example.com"),
    ("GCP_CNCC_CREDENTIALS_FILE", ""),
];

fn hosted(more: &[(&str, &str)]) -> (Facts, Settings) {
    let mut all = more.to_vec();
    all.extend(HOSTED);
    let mut settings = settings(&all);
    if let Some(hosted) = &mut settings.hosted {
        hosted.api_server = "https://kube-apiserver:6443".to_owned();
    }
    let facts = Facts {
        control_plane_nodes: 0,
        management: Some(Management {
            control_plane: ControlPlane {
                replicas: 3,
                ..ControlPlane::default()
            },
            ..Management::default()
        }),
        cloud: Cloud {
            region: "us-central1".to_owned(),
            config: [("cloud.conf".to_owned(), "text".to_owned())].into(),
            ..Cloud::default()
        },
        // The proxy of the hosted cluster.
        proxy: vec![("HTTP_PROXY", "http://proxy.example.com".to_owned())],
        ..on(Platform::Gcp)
    };
    (facts, settings)
}

// cluster-network#192
#[test]
fn controller_of_a_hosted_cluster_is_in_the_management_cluster() {
    let (facts, settings) = hosted(&[]);
    let all = objects("OVNKubernetes", &facts, &settings);
    let (there, here): (Vec<Value>, Vec<Value>) = all
        .into_iter()
        .partition(|it| it["metadata"]["namespace"] == "clusters-a");
    assert_eq!(
        titles(&here),
        [
            "Namespace openshift-cloud-network-config-controller",
            "CustomResourceDefinition cloudprivateipconfigs.cloud.network.openshift.io",
            "ServiceAccount cloud-network-config-controller",
            "ClusterRole cloud-network-config-controller",
            "ClusterRoleBinding cloud-network-config-controller",
            "Role cloud-network-config-controller",
            "RoleBinding cloud-network-config-controller-rb",
        ]
    );
    assert_eq!(
        titles(&there),
        [
            "ConfigMap cloud-network-config-controller-kube-cloud-config",
            "Deployment cloud-network-config-controller",
        ]
    );
    for object in &there {
        let cluster = &object["metadata"]["annotations"]["network.operator.openshift.io/cluster-name"];
        assert_eq!(cluster, "management");
    }
    assert_eq!(there[0]["data"], json!({ "cloud.conf": "text" }));
    let spec = &there[1]["spec"];
    // Two pods would assign addresses at the same time.
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["strategy"], json!({ "type": "Recreate" }));
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "hypershift-control-plane");
    assert!(pod["affinity"].get("podAntiAffinity").is_none());
    assert_eq!(pod["initContainers"][0]["image"], "registry.example/cli:v1");
    assert_eq!(
        pod["initContainers"][0]["env"][0]["value"],
        "https://kube-apiserver:6443"
    );
    let images: Vec<_> = pod["containers"]
        .as_array()
        .expect("containers")
        .iter()
        .map(|it| (it["name"].as_str(), it["image"].as_str()))
        .collect();
    let minter = Some("registry.example/minter:v1");
    assert_eq!(
        images,
        [
            (Some("controller"), Some(IMAGE)),
            (Some("cloud-token"), minter),
            (Some("token-minter"), minter)
        ]
    );
    assert_eq!(
        controller(&there)["args"],
        json!([
            "-platform-type",
            "GCP",
            "-platform-region=us-central1",
            "-platform-api-url=",
            "-platform-aws-ca-override=",
            "-platform-azure-environment=",
            "-secret-name",
            "cloud-network-config-controller-creds",
            "-kubeconfig",
            "/var/run/secrets/hosted_cluster/kubeconfig",
        ])
    );
    // The proxy is that of the management cluster.
    assert_eq!(
        variable(&there, "HTTPS_PROXY").as_deref(),
        Some("http://management.example.com")
    );
    assert_eq!(variable(&there, "HTTP_PROXY"), None);
    assert_eq!(variable(&there, "GOOGLE_APPLICATION_CREDENTIALS"), None);
}

// cluster-network#192
#[test]
fn credentials_of_a_hosted_cluster_are_those_of_its_cloud() {
    for file in ["credentials.json", ".credentials"] {
        let (facts, with_gcp) = hosted(&[("GCP_CNCC_CREDENTIALS_FILE", file)]);
        let gcp = objects("OVNKubernetes", &facts, &with_gcp);
        assert_eq!(
            variable(&gcp, "GOOGLE_APPLICATION_CREDENTIALS"),
            Some(format!("/etc/secret/cloudprovider/{file}"))
        );
    }
    let (facts, with_azure) = hosted(&[
        ("ARO_HCP_SECRET_PROVIDER_CLASS", "class"),
        ("MANAGED_AZURE_HCP_CREDENTIALS_FILE_PATH", "file.json"),
    ]);
    let azure = objects("OVNKubernetes", &facts, &with_azure);
    assert_eq!(
        variable(&azure, "ARO_HCP_CLIENT_CREDENTIALS_PATH").as_deref(),
        Some("/var/run/secrets/azure/file.json")
    );
    let volumes = &find(&azure, "Deployment", NAME)["spec"]["template"]["spec"]["volumes"];
    let mut volumes = volumes.as_array().expect("volumes").iter();
    let volume = volumes.find(|it| it["name"] == "cncc-cert").expect("a volume");
    assert_eq!(volume["csi"]["volumeAttributes"]["secretProviderClass"], "class");
    for path in ["../secret", "a/b", ".."] {
        let (facts, settings) = hosted(&[("GCP_CNCC_CREDENTIALS_FILE", path)]);
        let failed = rendered("OVNKubernetes", &facts, &settings).failed;
        let message = format!("invalid GCP_CNCC_CREDENTIALS_FILE {path:?}: must be a filename");
        assert!(failed.contains(&(Part::CloudNetwork, message)), "{failed:?}");
    }
}
