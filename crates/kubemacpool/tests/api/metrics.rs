//! The metrics endpoint.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use cluster::wait;
use cni::mac::Mac;
use kube_kit::tls::Profile;
use kubemacpool::{
    metrics::{Bind, Metrics, Snapshot, Source},
    server,
};
use rustls::{SupportedProtocolVersion, version};
use serde_json::json;
use tls_client::Peer;

use crate::fixture::{DEADLINE, NAMESPACE, Stage, Task};

/// A scraper.
#[derive(Clone)]
pub(crate) struct Scraper {
    token: Option<String>,
    version: &'static SupportedProtocolVersion,
    /// The trusted certificate as PEM; any if missing.
    trusted: Option<String>,
}

impl Scraper {
    fn with(token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            version: &version::TLS13,
            trusted: None,
        }
    }

    /// A scraper with the right to read the metrics.
    pub(crate) fn allowed(stage: &Stage) -> Self {
        let rbac = "rbac.authorization.k8s.io";
        let account = "prometheus";
        stage.apply(&json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": { "name": account },
            "rules": [{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }],
        }));
        stage.apply(&json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": account },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": account },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
        }));
        Self::with(Some(&token(stage, account)))
    }

    /// Status code and text of the response.
    pub(crate) fn scrape(&self, address: SocketAddr) -> Result<(u16, String), String> {
        let peer = Peer {
            versions: vec![self.version],
            trusted: self.trusted.clone(),
            timeout: DEADLINE,
        };
        let bearer = self
            .token
            .as_ref()
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n");
        peer.ask(address, request.as_bytes())
    }

    /// Waits until the text has exactly these lines with the prefix `beginning`.
    pub(crate) fn wait_for_series(&self, address: SocketAddr, beginning: &str, lines: &[&str]) {
        wait::until(&format!("{lines:?}"), DEADLINE, || {
            let (code, text) = self.scrape(address)?;
            let found: Vec<_> = text.lines().filter(|line| line.starts_with(beginning)).collect();
            if code == 200 && found == lines {
                Ok(())
            } else {
                Err(format!("{code} {text}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    fn wait_for_code(&self, address: SocketAddr, code: u16) -> String {
        let mut body = String::new();
        wait::until(&format!("code {code}"), DEADLINE, || match self.scrape(address) {
            Ok((found, text)) if found == code => {
                body = text;
                Ok(())
            }
            other => Err(format!("{other:?}")),
        })
        .unwrap_or_else(|error| panic!("{error}"));
        body
    }
}

/// A token of a new account in the manager's namespace.
fn token(stage: &Stage, account: &str) -> String {
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": account, "namespace": NAMESPACE },
    }));
    let kubectl = stage.kubectl();
    let token = kubectl
        .run(["create", "token", account, "-n", NAMESPACE])
        .expect("a token");
    token.trim().to_owned()
}

/// Serves metrics with one collision.
fn serve(stage: &Stage, profile: Profile, certificates: PathBuf) -> (SocketAddr, Task) {
    let (at, address) = mpsc::channel();
    let task = stage.task(move |client, shutdown| async move {
        let source: Source = Arc::new(|| Snapshot {
            collisions: vec![(Mac::from_number(0x0200_0000_0050), 2)],
            ..Snapshot::default()
        });
        let bind: Bind = "127.0.0.1:0".parse().expect("an address");
        let metrics = Metrics::new(source);
        let serving = metrics
            .serve(client, &bind, profile, &certificates, NAMESPACE)
            .await;
        let serving = serving.expect("no error").expect("a server");
        at.send(serving.address()).expect("a test");
        shutdown.wait().await;
        serving.stop().await;
    });
    (address.recv().expect("an address"), task)
}

// kubemacpool#89
#[test]
fn metrics_need_the_right_to_read_them() {
    let stage = Stage::start();
    let (address, _task) = serve(&stage, Profile::default(), "/nonexistent".into());
    for nobody in [None, Some("invented")] {
        assert_eq!(
            Scraper::with(nobody).scrape(address),
            Ok((401, "Unauthorized".to_owned()))
        );
    }
    let stranger = token(&stage, "stranger");
    assert_eq!(
        Scraper::with(Some(&stranger)).scrape(address),
        Ok((
            403,
            format!("Authorization denied for user system:serviceaccount:{NAMESPACE}:stranger")
        ))
    );
    let text = Scraper::allowed(&stage).wait_for_code(address, 200);
    for line in [
        r#"kmp_mac_collisions{mac="02:00:00:00:00:50"} 2"#,
        "kubevirt_kmp_duplicate_macs 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}

#[test]
fn metrics_follow_flags_and_certificate() {
    let stage = Stage::start();
    let certificates = stage.certificate().dir().to_owned();
    let profile = server::profile("VersionTLS12", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256");
    let (address, _task) = serve(&stage, profile.expect("a profile"), certificates);
    let scraper = Scraper {
        trusted: Some(stage.certificate().authority.clone()),
        version: &version::TLS12,
        token: None,
    };
    assert_eq!(scraper.scrape(address).map(|(code, _)| code), Ok(401));
    let (address, _task) = serve(&stage, Profile::default(), "/nonexistent".into());
    let error = scraper
        .scrape(address)
        .expect_err("TLS 1.3 alone, and another certificate");
    assert!(error.contains("ProtocolVersion"), "{error}");
}
