//! etcd, API server, controller manager and scheduler: their arguments.

use std::path::Path;

use crate::network;
use crate::pki::Pki;

/// Users of the API server beside the service accounts: name and groups.
pub(crate) const USERS: &[(&str, &str)] = &[
    (ADMIN, "system:masters"),
    (CONTROLLER_MANAGER, ""),
    ("system:kube-scheduler", ""),
    ("system:kube-proxy", "system:node-proxier"),
];
/// The user of the kubeconfig that is given to people and tests.
pub(crate) const ADMIN: &str = "admin";
/// The user that the controllers are.
pub(crate) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The authority of the API server as a client of API servers that it hands requests on to.
pub(crate) const FRONT_PROXY_AUTHORITY: &str = "front-proxy-ca";
/// The API server as such a client: its certificate and its name.
pub(crate) const FRONT_PROXY: &str = "front-proxy-client";
/// Port of the API server of a cluster.
pub(crate) const PORT: u16 = 6443;

/// Metadata of every request: the only way to count the requests of one client.
pub(crate) const AUDIT_POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]}"#;

/// The API server of a cluster as the cluster's own programs see it.
pub(crate) fn server() -> String {
    format!("https://{}:{PORT}", network::CONTROL)
}

fn argv<const N: usize>(program: &str, flags: [String; N]) -> Vec<String> {
    std::iter::once(program.to_owned()).chain(flags).collect()
}

/// etcd on loopback ports, for data that need not survive a power cut.
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

/// What both kinds of API server have in common.
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
            format!("--service-cluster-ip-range={}", network::SERVICES),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-account-key-file={}", file("sa.key")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--token-auth-file={}", tokens.display()),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
            "--anonymous-auth=false".to_owned(),
            "--profiling=false".to_owned(),
            "--v=1".to_owned(),
        ],
    )
}

/// What only the API server of a whole cluster needs.
pub(crate) fn api_server_of_cluster(pki: &Pki) -> [String; 15] {
    let file = |name: &str| pki.file(name).display().to_string();
    [
        format!("--secure-port={PORT}"),
        format!("--advertise-address={}", network::CONTROL),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        // Node names are not resolvable, and webhooks are reached at pod addresses.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--enable-aggregator-routing=true".to_owned(),
        format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
        format!("--kubelet-client-key={}", file("kubelet-client.key")),
        // How API servers that requests are handed on to (APIService) know it, and learn who asked.
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

/// The controllers, as the only instance.
pub(crate) fn controller_manager(program: &str, pki: &Pki, kubeconfig: &Path) -> Vec<String> {
    argv(
        program,
        [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--cluster-cidr={}", network::PODS),
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

/// Of the controllers only the one that deletes what nobody owns any more, without a port.
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

/// The scheduler, as the only instance.
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
