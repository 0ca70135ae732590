use super::*;
use rstest::rstest;

fn spec(http: &str, https: &str, none: &str) -> Spec {
    Spec {
        http_proxy: http.to_owned(),
        https_proxy: https.to_owned(),
        no_proxy: none.to_owned(),
        trusted_ca: Reference::default(),
        ..Spec::default()
    }
}

fn on(platform: &str, region: &str) -> Infrastructure {
    Infrastructure {
        name: "cluster".to_owned(),
        internal_url: "https://api-int.example.com:6443".to_owned(),
        platform: platform.to_owned(),
        region: region.to_owned(),
        ..Infrastructure::default()
    }
}

fn network() -> Network {
    Network {
        name: "cluster".to_owned(),
        services: vec!["172.30.0.0/16".to_owned()],
        pods: vec!["10.128.0.0/14".to_owned()],
    }
}

fn machines() -> Installation {
    let config = "networking:\n  machineCIDR: 10.0.0.0/16\n  machineNetwork:\n  - cidr: 10.0.0.0/16\n  - cidr: 0.0.0.0/0\n";
    Installation::read(config).expect("YAML")
}

const PROXY: &str = "http://proxy.example.com:3128";

/// The common entries of all platforms, merged with the entries of a platform.
fn merged(of_platform: &str) -> String {
    let same = ".cluster.local,.svc,10.0.0.0/16,10.128.0.0/14,127.0.0.1,172.30.0.0/16,api-int.example.com,example.org,localhost";
    let mut all: Vec<_> = same
        .split(',')
        .chain(of_platform.split(',').filter(|it| !it.is_empty()))
        .collect();
    all.sort_unstable();
    all.join(",")
}

#[rstest]
#[case::none(on("None", ""), merged(""))]
#[case::bare_metal(on("BareMetal", ""), merged(""))]
#[case::openstack(on("OpenStack", ""), merged("169.254.169.254"))]
#[case::aws(on("AWS", "eu-west-1"), merged("169.254.169.254,.eu-west-1.compute.internal"))]
#[case::aws_first(on("AWS", "us-east-1"), merged("169.254.169.254,.ec2.internal"))]
#[case::gcp(
    on("GCP", "europe-west1"),
    merged("169.254.169.254,metadata,metadata.google.internal,metadata.google.internal.")
)]
#[case::azure(on("Azure", ""), merged("169.254.169.254"))]
#[case::azure_government(
    Infrastructure { azure_cloud: "AzureUSGovernmentCloud".to_owned(), ..on("Azure", "") },
    merged("168.63.129.16,169.254.169.254")
)]
#[case::azure_stack(
    Infrastructure {
        azure_cloud: "AzureStackCloud".to_owned(),
        azure_endpoint: "https://management.local.azurestack.external".to_owned(),
        ..on("Azure", "")
    },
    merged("168.63.129.16,169.254.169.254,management.local.azurestack.external")
)]
#[case::hosted(Infrastructure { is_hosted: true, ..on("None", "") }, merged(".hypershift.local"))]
fn exceptions_are_those_of_users_and_of_the_platform(
    #[case] infrastructure: Infrastructure,
    #[case] expected: String,
) {
    // cluster-network#71
    let spec = spec(PROXY, "", "example.org, 127.0.0.1");
    let status = status(&spec, &infrastructure, &machines(), &network()).expect("a status");
    assert_eq!(status.no_proxy, expected);
    assert_eq!(
        (status.http_proxy.as_str(), status.https_proxy.as_str()),
        (PROXY, "")
    );
}

#[test]
fn missing_input_of_no_proxy_is_reported() {
    // cluster-network#71
    let spec = spec(PROXY, "", "");
    let missing = |infrastructure: &Infrastructure, installation: &Installation, network: &Network| {
        let missing = status(&spec, infrastructure, installation, network);
        missing.expect_err("something is missing").to_string()
    };
    let nowhere = Infrastructure {
        internal_url: String::new(),
        ..on("None", "")
    };
    assert_eq!(
        missing(&nowhere, &machines(), &network()),
        "internal api server url missing from infrastructure config 'cluster'"
    );
    // HyperShift's internal URL may be that for clients outside, who use the proxy.
    for infrastructure in [nowhere, on("None", "")] {
        let proxied = Infrastructure {
            has_proxied_api_server: true,
            ..infrastructure
        };
        let complete = status(&spec, &proxied, &machines(), &network()).expect("a status");
        assert!(!complete.no_proxy.contains("api-int"), "{}", complete.no_proxy);
    }
    let no_services = Network {
        services: vec![],
        ..network()
    };
    assert_eq!(
        missing(&on("None", ""), &machines(), &no_services),
        "serviceNetwork missing from network 'cluster' status"
    );
    let no_pods = Network {
        pods: vec![],
        ..network()
    };
    assert_eq!(
        missing(&on("None", ""), &machines(), &no_pods),
        "clusterNetwork missing from network `cluster` status"
    );
    assert_eq!(
        missing(&on("None", ""), &Installation::NoConfig, &network()),
        "missing install-config in configmap"
    );
}

#[test]
fn all_exceptions_stay_all_and_no_proxy_is_an_empty_status() {
    // cluster-network#71
    let nothing = Network::default();
    let all = status(&spec(PROXY, PROXY, "*"), &on("AWS", "r"), &machines(), &nothing);
    let expected = Status {
        http_proxy: PROXY.to_owned(),
        https_proxy: PROXY.to_owned(),
        no_proxy: "*".to_owned(),
    };
    assert_eq!(all, Ok(expected));
    let none = status(
        &Spec::default(),
        &Infrastructure::default(),
        &Installation::NoConfig,
        &nothing,
    );
    assert_eq!(none, Ok(Status::default()));
}

#[test]
fn cluster_of_another_installer_has_no_blocks_of_machines() {
    let status = status(
        &spec(PROXY, "", ""),
        &on("None", ""),
        &Installation::Unknown,
        &network(),
    );
    assert_eq!(
        status.expect("a status").no_proxy,
        ".cluster.local,.svc,10.128.0.0/14,127.0.0.1,172.30.0.0/16,api-int.example.com,localhost"
    );
}

#[rstest]
#[case(spec("", "", ""), None)]
#[case(spec("http://h:1", "", ""), None)]
#[case(
    spec(
        "http://u:p@h:1",
        "https://h",
        ".a.b,a.b.,10.0.0.1,10.0.0.0/8,fd00::1,fd00::/8"
    ),
    None
)]
#[case(spec("", "http://h", "*"), None)]
#[case(
    spec("", "", "a.b"),
    Some("httpProxy or httpsProxy must be set when using proxy")
)]
#[case(spec("https://h", "", ""), Some("httpProxy must be a URL of scheme http"))]
#[case(spec("h:1", "", ""), Some("httpProxy must be a URL of scheme http"))]
#[case(spec("http://", "", ""), Some("httpProxy must be a URL of scheme http"))]
#[case(
    spec("", "ftp://h", ""),
    Some("httpsProxy must be a URL of scheme http or https")
)]
#[case(spec("http://h", "", "a.b,a_b"), Some("invalid noProxy: a_b"))]
#[case(spec("http://h", "", "*.a.b"), Some("invalid noProxy: *.a.b"))]
#[case(spec("http://h", "", "10.0.0.300"), Some("invalid noProxy: 10.0.0.300"))]
#[case(spec("http://h", "", "10.0.0.0/33"), Some("invalid noProxy: 10.0.0.0/33"))]
fn settings_of_users_are_validated(#[case] spec: Spec, #[case] expected: Option<&str>) {
    let error = validate(&spec).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), expected);
}
