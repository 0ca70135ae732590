use api::cluster_network::operator::NetworkSpec;
use serde_json::{Value, json};

use super::{Proxy, errors, lists, merge};
use crate::{
    base::{b, entry, spec},
    defaults,
    facts::Facts,
};

fn flannel(config: &str) -> NetworkSpec {
    let mut spec = b();
    spec.default_network = crate::base::spec("{type: Flannel}");
    spec.cluster_network = vec![entry("192.168.0.0/14", 23)];
    spec.kube_proxy_config = Some(crate::base::spec(config));
    spec
}

fn proxy(config: &str) -> Result<(Proxy, Value), String> {
    let mut spec = flannel(config);
    defaults::fill(&mut spec, None, &Facts::default()).expect("defaults");
    let proxy = Proxy::of(&spec)?;
    let file = serde_saphyr::from_str(&proxy.file).expect("YAML");
    Ok((proxy, file))
}

#[test]
fn configuration_file_has_every_field() {
    let (proxy, file) = proxy("{iptablesSyncPeriod: 42s}").expect("a file");
    assert_eq!((proxy.health_port, proxy.metrics_port), (10255, 9102));
    let expected = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "bindAddress": "0.0.0.0",
        "bindAddressHardFail": false,
        "clientConnection": {
            "acceptContentTypes": "", "burst": 0, "contentType": "", "kubeconfig": "", "qps": 0,
        },
        "clusterCIDR": "192.168.0.0/14",
        "configSyncPeriod": "0s",
        "conntrack": {
            "maxPerCore": null, "min": null, "tcpBeLiberal": false, "tcpCloseWaitTimeout": null,
            "tcpEstablishedTimeout": null, "udpStreamTimeout": "0s", "udpTimeout": "0s",
        },
        "detectLocal": { "bridgeInterface": "", "interfaceNamePrefix": "" },
        "detectLocalMode": "",
        "enableProfiling": false,
        "featureGates": {},
        "healthzBindAddress": "0.0.0.0:10255",
        "hostnameOverride": "",
        "iptables": {
            "localhostNodePorts": null, "masqueradeAll": false, "masqueradeBit": null, "minSyncPeriod": "0s",
            "syncPeriod": "42s",
        },
        "ipvs": {
            "excludeCIDRs": null, "minSyncPeriod": "0s", "scheduler": "", "strictARP": false, "syncPeriod": "0s",
            "tcpFinTimeout": "0s", "tcpTimeout": "0s", "udpTimeout": "0s",
        },
        "kind": "KubeProxyConfiguration",
        "logging": {
            "flushFrequency": 0,
            "options": { "json": { "infoBufferSize": "0" }, "text": { "infoBufferSize": "0" } },
            "verbosity": 0,
        },
        "metricsBindAddress": "0.0.0.0:29102",
        "mode": "iptables",
        "nftables": {
            "masqueradeAll": false, "masqueradeBit": null, "minSyncPeriod": "0s", "syncPeriod": "0s",
        },
        "nodePortAddresses": null,
        "oomScoreAdj": null,
        "portRange": "",
        "showHiddenMetricsForVersion": "",
        "winkernel": {
            "enableDSR": false, "forwardHealthCheckVip": false, "networkName": "", "rootHnsEndpointName": "",
            "sourceVip": "",
        },
    });
    assert_eq!(file, expected);
}

#[test]
fn arguments_become_fields() {
    let (proxy, file) = proxy(
        "proxyArguments:
  healthz-port: ['10256']
  metrics-port: ['9101']
  proxy-mode: [iptables, nftables]
  conntrack-max-per-core: ['0']
  conntrack-tcp-timeout-established: [2h]
  nodeport-addresses: ['10.0.0.0/8,192.168.0.0/16']
  iptables-min-sync-period: [120s]",
    )
    .expect("a file");
    assert_eq!((proxy.health_port, proxy.metrics_port), (10256, 9101));
    assert_eq!(file["healthzBindAddress"], "0.0.0.0:10256");
    assert_eq!(file["metricsBindAddress"], "0.0.0.0:29102");
    assert_eq!(file["mode"], "nftables");
    assert_eq!(file["conntrack"]["maxPerCore"], 0);
    assert_eq!(file["conntrack"]["tcpEstablishedTimeout"], "2h0m0s");
    assert_eq!(file["nodePortAddresses"], json!(["10.0.0.0/8", "192.168.0.0/16"]));
    assert_eq!(file["iptables"]["minSyncPeriod"], "2m0s");
}

// cluster-network#54
#[test]
fn last_layer_and_last_value_win() {
    let key = "conntrack-max-per-core";
    let [user, defaults, overrides] = ["5", "10", "15"].map(|value| lists(&[(key, value)]));
    assert_eq!(merge(&[&defaults, &user, &overrides])[key], "15");
    assert_eq!(merge(&[&defaults, &user])[key], "5");
    let two = [(key.to_owned(), vec!["a".to_owned(), "b".to_owned()])].into();
    assert_eq!(merge(&[&defaults, &two])[key], "b");
    let none = [(key.to_owned(), Vec::new())].into();
    assert_eq!(merge(&[&defaults, &none])[key], "10");
    let mut spec = flannel("{}");
    spec.cluster_network = b().cluster_network;
    let file: Value = serde_saphyr::from_str(&Proxy::of(&spec).expect("a file").file).expect("YAML");
    assert_eq!(file["clusterCIDR"], "");
}

// cluster-network#55
#[test]
fn invalid_settings_are_all_reported() {
    let wrong = flannel(
        "iptablesSyncPeriod: asdf
bindAddress: abc
proxyArguments: {metrics-port: ['999'], healthz-port: ['999'], feature-gates: [A=true]}",
    );
    let expected = [
        "IptablesSyncPeriod is not a valid duration (time: invalid duration \"asdf\")",
        "BindAddress must be a valid IP address",
        "kube-proxy --metrics-port cannot be overridden",
        "kube-proxy --healthz-port cannot be overridden",
        "kube-proxy --feature-gates cannot be overridden",
    ];
    assert_eq!(errors(&wrong), expected);
    let on_ovn = |config: &str| {
        let mut ovn = b();
        ovn.kube_proxy_config = Some(spec(config));
        errors(&ovn)
    };
    let none: [&str; 0] = [];
    assert_eq!(
        on_ovn("{iptablesSyncPeriod: 42s}"),
        [r#"network type "OVNKubernetes" does not allow specifying kube-proxy options"#]
    );
    assert_eq!(on_ovn("{bindAddress: 0.0.0.0}"), none);
    let error = proxy("{proxyArguments: {foo: [bar]}}").expect_err("unknown");
    assert_eq!(
        error,
        "failed to generate kube-proxy configuration file: unused arguments: foo"
    );
    let error = proxy("{proxyArguments: {foo: [bar], conntrack-min: [many]}}").expect_err("unknown");
    assert_eq!(
        error,
        "failed to generate kube-proxy configuration file: [invalid conntrack-min \"many\" (not a number), unused \
         arguments: foo]"
    );
}
