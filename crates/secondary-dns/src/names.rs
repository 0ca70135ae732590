//! Names.

/// Component in the user agent of requests.
pub(crate) const COMPONENT: &str = "secondary-dns";

/// Annotation of a launcher pod: the name of its instance.
pub(crate) const DOMAIN: &str = "kubevirt.io/domain";
/// Annotation of a pod: its attachments, written by multus.
pub(crate) const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Label selector of launcher pods.
pub(crate) const LAUNCHERS: &str = "kubevirt.io=virt-launcher";
/// Field selector of pods that have not ended.
pub(crate) const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// `ConfigMap` with the settings.
pub(crate) const CONFIG_MAP: &str = "secondary-dns";
/// Deployment of the secondary DNS.
pub(crate) const DEPLOYMENT: &str = "secondary-dns";

/// First label of every zone.
pub(crate) const ZONE: &str = "vm";
/// Label of the name server below the zone.
pub(crate) const NAME_SERVER: &str = "ns";
/// Label of the mailbox of the zone's administrator.
pub(crate) const MAILBOX: &str = "email";

/// Directory of zone files.
pub(crate) const ZONES: &str = "/zones";
/// Prefix of the name of a zone file; the zone follows.
pub(crate) const ZONE_FILE: &str = "db.";
/// Default Corefile of `serve`.
pub(crate) const COREFILE: &str = "Corefile";

/// Environment variables.
pub(crate) mod env {
    /// The zone is `vm.` and this domain.
    pub(crate) const DOMAIN: &str = "DOMAIN";
    /// Addresses of the name server, separated by commas.
    pub(crate) const NAME_SERVER_IP: &str = "NAME_SERVER_IP";
    /// `all-in-one` runs monitor and server in one process.
    pub(crate) const MODE: &str = "KSD_MODE";
    /// Whether there are AAAA records: `auto` or `off`.
    pub(crate) const IPV6: &str = "KSD_IPV6";
    /// TTL of records in seconds.
    pub(crate) const TTL: &str = "KSD_TTL";
    /// `counter` begins serials at 0.
    pub(crate) const SERIAL: &str = "KSD_SERIAL";
    /// Sources of addresses until a guest reports some: `off`, or `claims` and `network-status`, separated by commas.
    pub(crate) const EARLY: &str = "KSD_EARLY_ADDRESSES";
    /// Prefixes whose addresses have PTR records.
    pub(crate) const REVERSE: &str = "KSD_REVERSE_PREFIXES";
    /// Prefixes whose addresses may be published.
    pub(crate) const ALLOWED: &str = "KSD_ALLOWED_PREFIXES";
}

/// Port of the DNS.
pub(crate) const DNS_PORT: u16 = 5353;
/// Port of the monitor's probes.
pub(crate) const MONITOR_PORT: u16 = 8081;
/// Port of the server's liveness probe.
pub(crate) const HEALTH_PORT: u16 = 8082;
/// Port of the server's readiness probe.
pub(crate) const READY_PORT: u16 = 8083;
/// Path of the server's liveness probe.
pub(crate) const HEALTH: &str = "/health";
/// Path of the server's readiness probe.
pub(crate) const READY: &str = "/ready";

/// Names of metrics.
pub(crate) mod metric {
    /// Answers by type of the question, code and protocol.
    pub(crate) const REQUESTS: &str = "kubesecondarydns_dns_requests";
    /// Duration of answers.
    pub(crate) const DURATION: &str = "kubesecondarydns_dns_request_duration_seconds";
    /// Records of a zone.
    pub(crate) const RECORDS: &str = "kubesecondarydns_zone_records";
    /// Serial of a zone.
    pub(crate) const SERIAL: &str = "kubesecondarydns_zone_serial";
    /// Events of the watch.
    pub(crate) const EVENTS: &str = "kubesecondarydns_vmi_events";
    /// TCP connections that were closed early, and unanswered queries.
    pub(crate) const DROPPED: &str = "kubesecondarydns_dns_dropped";
}
