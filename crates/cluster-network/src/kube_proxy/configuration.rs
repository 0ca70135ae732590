//! Renders the configuration file of kube-proxy from its arguments (§9.3).

use std::net::{IpAddr, SocketAddr};

use kube_kit::duration::GoDuration;
use serde_json::{Map, Value, json};

use super::Arguments;
use crate::cidr;

/// Port of the probes, if the arguments have only an address.
const HEALTH_PORT: &str = "10256";
/// Port of the metrics, if the arguments have only an address.
const METRICS_PORT: &str = "10249";

/// The file, as YAML.
///
/// # Errors
/// All arguments with an invalid value, and all unknown arguments.
pub(super) fn file(arguments: &Arguments) -> Result<String, Vec<String>> {
    let mut reader = Reader {
        arguments: arguments.clone(),
        errors: Vec::new(),
    };
    let file = reader.document();
    let unused: Vec<&str> = reader.arguments.keys().map(String::as_str).collect();
    if !unused.is_empty() {
        reader
            .errors
            .push(format!("unused arguments: {}", unused.join(", ")));
    }
    if !reader.errors.is_empty() {
        return Err(reader.errors);
    }
    let mut file = file;
    file.sort_all_objects();
    serde_saphyr::to_string(&file).map_err(|error| vec![error.to_string()])
}

/// Consumes arguments, and collects errors in their values.
struct Reader {
    arguments: Arguments,
    errors: Vec<String>,
}

impl Reader {
    fn document(&mut self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": self.address("bind-address"),
            "bindAddressHardFail": false,
            "clientConnection": {
                "acceptContentTypes": "", "burst": 0, "contentType": "", "kubeconfig": "", "qps": 0,
            },
            "clusterCIDR": self.block("cluster-cidr"),
            "configSyncPeriod": self.duration("config-sync-period"),
            "conntrack": {
                "maxPerCore": self.number("conntrack-max-per-core"),
                "min": self.number("conntrack-min"),
                "tcpBeLiberal": self.switch("conntrack-tcp-be-liberal"),
                "tcpCloseWaitTimeout": self.duration_unless_zero("conntrack-tcp-timeout-close-wait"),
                "tcpEstablishedTimeout": self.duration_unless_zero("conntrack-tcp-timeout-established"),
                "udpStreamTimeout": "0s",
                "udpTimeout": "0s",
            },
            "detectLocal": {
                "bridgeInterface": self.text("pod-bridge-interface"),
                "interfaceNamePrefix": self.text("pod-interface-name-prefix"),
            },
            "detectLocalMode": self.text("detect-local-mode"),
            "enableProfiling": self.switch("enable-profiling"),
            "featureGates": self.gates("feature-gates"),
            "healthzBindAddress": self.endpoint("healthz-bind-address", "healthz-port", HEALTH_PORT),
            "hostnameOverride": "",
            "iptables": {
                "localhostNodePorts": self.optional_switch("iptables-localhost-nodeports"),
                "masqueradeAll": self.switch("masquerade-all"),
                "masqueradeBit": self.number("iptables-masquerade-bit"),
                "minSyncPeriod": self.duration("iptables-min-sync-period"),
                "syncPeriod": self.duration("iptables-sync-period"),
            },
            "ipvs": {
                "excludeCIDRs": self.list("ipvs-exclude-cidrs"),
                "minSyncPeriod": self.duration("ipvs-min-sync-period"),
                "scheduler": self.text("ipvs-scheduler"),
                "strictARP": self.switch("ipvs-strict-arp"),
                "syncPeriod": self.duration("ipvs-sync-period"),
                "tcpFinTimeout": self.duration("ipvs-tcp-fin-timeout"),
                "tcpTimeout": self.duration("ipvs-tcp-timeout"),
                "udpTimeout": self.duration("ipvs-udp-timeout"),
            },
            "logging": {
                "flushFrequency": 0,
                "options": { "json": { "infoBufferSize": "0" }, "text": { "infoBufferSize": "0" } },
                "verbosity": 0,
            },
            "metricsBindAddress": self.endpoint("metrics-bind-address", "metrics-port", METRICS_PORT),
            "mode": self.text("proxy-mode"),
            "nftables": {
                "masqueradeAll": self.switch("nftables-masquerade-all"),
                "masqueradeBit": self.number("nftables-masquerade-bit"),
                "minSyncPeriod": self.duration("nftables-min-sync-period"),
                "syncPeriod": self.duration("nftables-sync-period"),
            },
            "nodePortAddresses": self.node_port_addresses(),
            "oomScoreAdj": null,
            "portRange": self.text("proxy-port-range"),
            "showHiddenMetricsForVersion": self.text("show-hidden-metrics-for-version"),
            "winkernel": {
                "enableDSR": false, "forwardHealthCheckVip": false, "networkName": "", "rootHnsEndpointName": "",
                "sourceVip": "",
            },
        })
    }

    fn wrong(&mut self, name: &str, value: &str, why: &str) {
        self.errors.push(format!("invalid {name} {value:?} ({why})"));
    }

    fn text(&mut self, name: &str) -> String {
        self.arguments.remove(name).unwrap_or_default()
    }

    fn address(&mut self, name: &str) -> String {
        let value = self.text(name);
        if !value.is_empty() && !cidr::is_address(&value) {
            self.wrong(name, &value, "not an IP address");
        }
        value
    }

    fn block(&mut self, name: &str) -> String {
        let value = self.text(name);
        if !value.is_empty()
            && let Err(error) = cidr::parse(&value)
        {
            self.wrong(name, &value, &error.to_string());
        }
        value
    }

    fn endpoint(&mut self, address_name: &str, port_name: &str, default_port: &str) -> String {
        let (address, port) = (self.text(address_name), self.text(port_name));
        if address.is_empty() && port.is_empty() {
            return String::new();
        }
        let address = if address.is_empty() {
            "0.0.0.0".to_owned()
        } else {
            address
        };
        let port = if port.is_empty() {
            default_port.to_owned()
        } else {
            port
        };
        match (address.parse::<IpAddr>(), port.parse::<u16>()) {
            (Ok(address), Ok(port)) => SocketAddr::new(address, port).to_string(),
            (address_read, port_read) => {
                if address_read.is_err() {
                    self.wrong(address_name, &address, "not an IP address");
                }
                if port_read.is_err() {
                    self.wrong(port_name, &port, "not a port");
                }
                String::new()
            }
        }
    }

    fn number(&mut self, name: &str) -> Option<i32> {
        let value = self.arguments.remove(name)?;
        let number = value.parse();
        if number.is_err() {
            self.wrong(name, &value, "not a number");
        }
        number.ok()
    }

    fn optional_switch(&mut self, name: &str) -> Option<bool> {
        let value = self.arguments.remove(name)?;
        match value.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
            _ => {
                self.wrong(name, &value, "neither true nor false");
                None
            }
        }
    }

    fn switch(&mut self, name: &str) -> bool {
        self.optional_switch(name).unwrap_or_default()
    }

    fn duration(&mut self, name: &str) -> String {
        self.duration_unless_zero(name).unwrap_or_else(|| "0s".to_owned())
    }

    fn duration_unless_zero(&mut self, name: &str) -> Option<String> {
        let value = self.arguments.remove(name)?;
        match GoDuration::parse(&value) {
            Ok(duration) => Some(duration.to_string()).filter(|text| text != "0s"),
            Err(error) => {
                self.wrong(name, &value, &error.to_string());
                None
            }
        }
    }

    fn list(&mut self, name: &str) -> Option<Vec<String>> {
        let value = self.arguments.remove(name)?;
        Some(value.split(',').map(str::to_owned).collect())
    }

    fn node_port_addresses(&mut self) -> Option<Vec<String>> {
        let other = self.list("node-port-addresses");
        self.list("nodeport-addresses").or(other)
    }

    fn gates(&mut self, name: &str) -> Map<String, Value> {
        let mut gates = Map::new();
        for gate in self.list(name).unwrap_or_default() {
            match gate
                .split_once('=')
                .map(|(name, value)| (name, value.parse::<bool>()))
            {
                Some((gate, Ok(value))) => {
                    gates.insert(gate.to_owned(), json!(value));
                }
                _ => self.wrong(name, &gate, "not NAME=true or NAME=false"),
            }
        }
        gates
    }
}
