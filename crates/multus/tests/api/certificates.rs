//! Certificates of nodes: requested, approved and signed as in a cluster. The test plays the signer, because the real
//! signer's certificates live for minutes at least.

use crate::node::{DEADLINE, api};
use cluster::{ApiServer, wait};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube_kit::shutdown::Shutdown;
use multus::certificate::generator::{self, Args};
use multus::certificate::store::NodeCertificate;
use multus::certificate::{Rotator, Settings, approver};
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    Issuer, KeyPair,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lifetime of the signer's certificates from their signature on.
const LIFE: Duration = Duration::from_secs(24);
/// Age of the signer's certificates at their signature. A node requests the next certificate at 70 to 90 % of the whole
/// time: after 0 to 16 s, so that 8 s are left for it.
const AGE: Duration = Duration::from_secs(60);

fn authority(api: &ApiServer) -> Issuer<'static, KeyPair> {
    let [certificate, key] = api.authority().map(|path| fs::read_to_string(path).unwrap());
    Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key).unwrap()).unwrap()
}

/// Approves by the rights of the manifest, and signs, for all tests of this process.
fn cluster_with_approver() -> &'static ApiServer {
    static READY: OnceLock<&'static ApiServer> = OnceLock::new();
    READY.get_or_init(|| {
        let api = api();
        let kubectl = api.kubectl();
        let manifest = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../deploy/multus/cert-approver.yaml"
        );
        kubectl.run(["apply", "--filename", manifest]).unwrap();
        // The rights of kubelets in a cluster.
        for (name, args) in [
            (
                "role",
                vec![
                    "clusterrole",
                    "csr",
                    "--verb=create,get,list,watch",
                    "--resource=certificatesigningrequests",
                ],
            ),
            (
                "binding",
                vec![
                    "clusterrolebinding",
                    "csr",
                    "--clusterrole=csr",
                    "--group=system:nodes",
                ],
            ),
        ] {
            kubectl
                .run([&["create"], &args[..]].concat())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let token = kubectl
            .run([
                "create",
                "token",
                "multus-cert-approver",
                "--namespace=kube-system",
            ])
            .unwrap();
        let dir = tempfile::tempdir().unwrap().keep();
        let mut config = kubectl.json(["config", "view", "--raw"]).unwrap();
        let admin = dir.join("admin");
        fs::write(&admin, config.to_string()).unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        let account = dir.join("approver");
        fs::write(&account, config.to_string()).unwrap();
        std::thread::spawn(move || {
            kube_kit::process::run(async {
                let approver = kube_kit::client::client_from("test", Some(&account))
                    .await
                    .unwrap();
                tokio::join!(approver::serve(approver), sign(&admin))
            })
        });
        api
    })
}

async fn sign(kubeconfig: &Path) {
    let client = kube_kit::client::client_from("test", Some(kubeconfig))
        .await
        .unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let issuer = authority(api());
    loop {
        for request in requests.list(&ListParams::default()).await.unwrap() {
            let status = request.status.unwrap_or_default();
            let approved = status
                .conditions
                .iter()
                .flatten()
                .any(|it| it.type_ == "Approved");
            if !approved || status.certificate.is_some() {
                continue;
            }
            let pem = String::from_utf8(request.spec.request.0).unwrap();
            let mut asked = CertificateSigningRequestParams::from_pem(&pem).unwrap();
            let now = SystemTime::now();
            asked.params.not_before = (now - AGE).into();
            asked.params.not_after = (now + LIFE).into();
            asked.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let signed = asked.signed_by(&issuer).unwrap().pem();
            let patch = json!({"status": {"certificate": k8s_openapi::ByteString(signed.into_bytes())}});
            let name = request.metadata.name.unwrap();
            requests
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes a certificate of a user in a group, and its key, into a file.
pub(crate) fn certify(api: &ApiServer, file: &Path, group: &str, user: &str) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, user);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &authority(api)).unwrap();
    fs::write(file, format!("{}{}", certificate.pem(), key.serialize_pem())).unwrap();
}

/// A kubeconfig with the identity of a node, as kubelet has it.
fn bootstrap(dir: &Path, node: &str) -> PathBuf {
    let api = cluster_with_approver();
    let kubelet = dir.join("kubelet.pem");
    certify(api, &kubelet, "system:nodes", &format!("system:node:{node}"));
    let mut config = api.kubectl().json(["config", "view", "--raw"]).unwrap();
    config["users"][0]["user"] = json!({"client-certificate": kubelet, "client-key": kubelet});
    let path = dir.join("bootstrap");
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// The user that the API server authenticates.
async fn whoami(client: &kube::Client) -> Result<String, kube::Error> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let request = kube::core::Request::new("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .create(&kube::api::PostParams::default(), review.into_bytes())
        .unwrap();
    let review: Value = client.request(request).await?;
    Ok(review["status"]["userInfo"]["username"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

#[test]
fn node_certificate_is_renewed_in_time() {
    // multus.md §7.8
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        node: "n1.example.com".into(),
        bootstrap: bootstrap(dir.path(), "n1.example.com"),
        dir: dir.path().join("certs"),
        duration: Duration::from_secs(600),
    };
    kube_kit::process::run(async {
        let keeper = Rotator::start(settings.clone()).await.unwrap();
        let (client, current) = (keeper.client(), keeper.file());
        assert_eq!(whoami(&client).await.unwrap(), "system:multus:n1.example.com");
        let first = fs::read_link(&current).unwrap();

        let keeping = tokio::spawn(keeper.keep());
        // By the certificate itself: the node's own identity does not exist any more.
        fs::rename(dir.path().join("kubelet.pem"), dir.path().join("away.pem")).unwrap();
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < LIFE + Duration::from_secs(5) || fs::read_link(&current).unwrap() == first {
            assert!(begun.elapsed() < DEADLINE, "never replaced");
            assert_eq!(whoami(&client).await.unwrap(), "system:multus:n1.example.com");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        keeping.abort();
        let _ = keeping.await;

        // An expired certificate does not count: the next start requests another one, as the node.
        let ends = NodeCertificate::parse(&fs::read_to_string(&current).unwrap())
            .unwrap()
            .not_after;
        while i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap() <= ends {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        fs::rename(dir.path().join("away.pem"), dir.path().join("kubelet.pem")).unwrap();
        let last = fs::read_link(&current).unwrap();
        let keeper = Rotator::start(settings).await.unwrap();
        assert_ne!(fs::read_link(&current).unwrap(), last);
        assert_eq!(
            whoami(&keeper.client()).await.unwrap(),
            "system:multus:n1.example.com"
        );
    })
    .unwrap();
}

#[test]
fn generator_writes_kubeconfig_for_thin_plugin() {
    // multus.md §7.8
    let dir = tempfile::tempdir().unwrap();
    let args = Args {
        certdir: dir.path().join("certs"),
        bootstrap_config: bootstrap(dir.path(), "n2"),
        kubeconfig: dir.path().join("run/kubeconfig"),
        cert_duration: "10m".into(),
    };
    let written = args.kubeconfig.clone();
    kube_kit::process::run(async {
        let shutdown = Shutdown::new();
        let running = tokio::spawn(generator::serve(args, Some("n2"), shutdown.clone()));
        while !written.exists() {
            assert!(!running.is_finished(), "{:?}", running.await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = kube_kit::client::client_from("test", Some(&written))
            .await
            .unwrap();
        assert_eq!(whoami(&client).await.unwrap(), "system:multus:n2");
        shutdown.trigger();
        running.await.unwrap().unwrap();
        assert!(!written.exists());
    })
    .unwrap();
}

#[test]
fn forged_certificate_request_is_denied() {
    // multus.md §7.8, §15.28
    let kubectl = cluster_with_approver().kubectl();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:multus");
    params
        .distinguished_name
        .push(DnType::CommonName, "system:multus:n3");
    let pem = params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "strange"},
        "spec": {"request": k8s_openapi::ByteString(pem.into_bytes()), "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["digital signature", "client auth"], "expirationSeconds": 600}});
    kubectl.apply(&request.to_string()).unwrap();
    let denied = wait::until("the answer", DEADLINE, || {
        let request = kubectl
            .json(["get", "csr", "strange"])
            .map_err(|error| error.to_string())?;
        let condition = request["status"]["conditions"][0].clone();
        if condition["type"].is_string() {
            Ok(condition)
        } else {
            Err(request.to_string())
        }
    })
    .unwrap();
    assert_eq!(
        (&denied["type"], &denied["reason"]),
        (&json!("Denied"), &json!("CSRDenied"))
    );
    let text = denied["message"].as_str().unwrap().to_owned();
    assert!(text.ends_with("is neither a node nor multus on a node"), "{text}");
    let selector = "--field-selector=involvedObject.name=strange,reason=CSRDenied,type=Warning";
    wait::until("the event", DEADLINE, || {
        let events = kubectl
            .json(["get", "events", "--namespace=default", selector])
            .map_err(|error| error.to_string())?;
        let found = &events["items"][0];
        if found["message"] == text.as_str() && found["source"]["component"] == "cert-approver" {
            Ok(())
        } else {
            Err(events.to_string())
        }
    })
    .unwrap();
}
