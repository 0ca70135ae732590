//! Command lines of etcd, API server, controller manager and scheduler.

use std::path::Path;

use crate::network::{self, Families};
use crate::pki::Pki;

/// Users of the API server besides service accounts: name and groups.
pub(crate) const USERS: &[(&str, &str)] = &[
    (ADMIN, "system:masters"),
    (CONTROLLER_MANAGER, ""),
    ("system:kube-scheduler", ""),
    ("system:kube-proxy", "system:node-proxier"),
];
/// The user of the kubeconfig for developers and tests.
pub(crate) const ADMIN: &str = "admin";
/// The user of the controllers.
pub(crate) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// Certificate authority of the API server as a client of aggregated API servers.
pub(crate) const FRONT_PROXY_AUTHORITY: &str = "front-proxy-ca";
/// Name and certificate of the API server as such a client.
pub(crate) const FRONT_PROXY: &str = "front-proxy-client";
/// Port of the API server of a cluster.
pub(crate) const PORT: u16 = 6443;

/// Logs the metadata of every request, so that the requests of one client can be counted.
pub(crate) const AUDIT_POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]}"#;

/// Variable that lets Go's collector run more rarely than by default (100). A start of an API server takes a fifth less
/// processor time, and 80 MB more memory.
pub(crate) const GO_COLLECTOR: (&str, &str) = ("GOGC", "400");

/// Returns the URL of the API server for the cluster's programs.
pub(crate) fn server() -> String {
    format!("https://{}:{PORT}", network::CONTROL)
}

fn argv<const N: usize>(program: &str, flags: [String; N]) -> Vec<String> {
    let (name, value) = GO_COLLECTOR;
    let start = ["env".to_owned(), format!("{name}={value}"), program.to_owned()];
    start.into_iter().chain(flags).collect()
}

/// Returns the command line of an etcd on loopback ports, whose data need not survive a power cut.
pub(crate) fn etcd(program: &str, data: &Path, client: u16, peer: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    argv(
        program,
        [
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ],
    )
}

/// Returns the common arguments of all API servers.
pub(crate) fn api_server(
    program: &str,
    pki: &Pki,
    tokens: &Path,
    policy: &Path,
    audit: &Path,
    etcd: u16,
) -> Vec<String> {
    let file = |name: &str| pki.file(name).display().to_string();
    argv(
        program,
        [
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            "--allow-privileged=true".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-account-key-file={}", file("sa.key")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--token-auth-file={}", tokens.display()),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
            // The default is 100 MB. Tests read the log by offsets.
            "--audit-log-maxsize=4000".to_owned(),
            "--anonymous-auth=false".to_owned(),
            "--profiling=false".to_owned(),
            "--v=1".to_owned(),
        ],
    )
}

/// Returns the argument of an API server with the addresses of its services.
pub(crate) fn service_range(services: &str) -> String {
    format!("--service-cluster-ip-range={services}")
}

/// Returns the additional arguments of the API server of a cluster.
pub(crate) fn api_server_of_cluster(pki: &Pki, families: Families) -> [String; 16] {
    let file = |name: &str| pki.file(name).display().to_string();
    [
        format!("--secure-port={PORT}"),
        format!("--advertise-address={}", network::CONTROL),
        service_range(&families.services()),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        // Node names have no DNS records, and webhooks are reached at pod addresses.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--enable-aggregator-routing=true".to_owned(),
        format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
        format!("--kubelet-client-key={}", file("kubelet-client.key")),
        // Aggregated API servers (APIService) identify this API server and the user by these.
        format!(
            "--requestheader-client-ca-file={}",
            file(&format!("{FRONT_PROXY_AUTHORITY}.crt"))
        ),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", file(&format!("{FRONT_PROXY}.crt"))),
        format!("--proxy-client-key-file={}", file(&format!("{FRONT_PROXY}.key"))),
    ]
}

/// Returns the command line of the controllers, as a single instance.
pub(crate) fn controller_manager(
    program: &str,
    pki: &Pki,
    kubeconfig: &Path,
    families: Families,
) -> Vec<String> {
    argv(
        program,
        [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--cluster-cidr={}", families.pods()),
            format!("--root-ca-file={}", pki.file("ca.crt").display()),
            format!(
                "--service-account-private-key-file={}",
                pki.file("sa.key").display()
            ),
            format!("--cluster-signing-cert-file={}", pki.file("ca.crt").display()),
            format!("--cluster-signing-key-file={}", pki.file("ca.key").display()),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ],
    )
}

/// Returns the command line of the garbage collector alone, without a port.
pub(crate) fn garbage_collector(program: &str, kubeconfig: &Path) -> Vec<String> {
    argv(
        program,
        [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--controllers=garbage-collector-controller".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ],
    )
}

/// Returns the command line of the scheduler, as a single instance.
pub(crate) fn scheduler(program: &str, kubeconfig: &Path) -> Vec<String> {
    argv(
        program,
        [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ],
    )
}
