//! The operator's metrics, scraped in the manner of a monitoring stack.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use cluster::wait;
use kube_kit::object;
use rustls::{
    ClientConfig, ClientConnection, StreamOwned, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{
        CryptoProvider,
        aws_lc_rs::{self, kx_group},
    },
    pki_types::ServerName,
    version,
};
use serde_json::{Value, json};
use stage::Line;
use tls_client::Anybody;

use crate::{
    fixture::{DEADLINE, Fixture, MONITORING_NAMESPACE, NAMESPACE, VERSION},
    stubs::MONITORING,
};

/// The credentials and the TLS settings of a scraper.
#[derive(Clone)]
pub(crate) struct Scraper {
    pub(crate) token: Option<String>,
    version: &'static SupportedProtocolVersion,
    provider: CryptoProvider,
}

impl Scraper {
    fn with(token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            version: &version::TLS13,
            provider: aws_lc_rs::default_provider(),
        }
    }

    /// Offers only this cipher, and its version.
    pub(crate) fn offering(suite: SupportedCipherSuite) -> Self {
        let mut scraper = Self::with(None);
        scraper.version = suite.version();
        scraper.provider.cipher_suites = vec![suite];
        scraper
    }

    /// The status code and the text of the answer.
    pub(crate) fn scrape(&self, address: SocketAddr) -> Result<(u16, String), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let config = ClientConfig::builder_with_provider(Arc::new(self.provider.clone()))
            .with_protocol_versions(&[self.version])
            .expect("a version")
            .dangerous()
            .with_custom_certificate_verifier(Anybody::new(Arc::new(self.provider.clone())))
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let stream = TcpStream::connect(address).map_err(|error| text(&error))?;
        stream.set_read_timeout(Some(DEADLINE)).expect("a time limit");
        let mut stream = StreamOwned::new(session, stream);
        let bearer = self
            .token
            .as_ref()
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n");
        stream
            .write_all(request.as_bytes())
            .map_err(|error| text(&error))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| text(&error))?;
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((code.ok_or(&answer)?, answer))
    }

    /// The value of the first metric whose line has this prefix and contains a word.
    #[track_caller]
    pub(crate) fn figure(&self, fixture: &Fixture, beginning: &str, word: &str) -> f64 {
        let (_, text) = self.scrape(fixture.metrics_address()).expect("an answer");
        let line = text
            .lines()
            .find(|line| line.starts_with(beginning) && line.contains(word));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("{beginning} is not in\n{text}"))
    }

    #[track_caller]
    fn code(&self, fixture: &Fixture) -> u16 {
        self.scrape(fixture.metrics_address()).expect("an answer").0
    }

    fn wait_for_code(&self, fixture: &Fixture, code: u16) {
        wait::until(&format!("code {code}"), DEADLINE, || {
            match self.scrape(fixture.metrics_address()) {
                Ok((found, _)) if found == code => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    fn wait_for_refusal(&self, fixture: &Fixture) {
        wait::until("a refused handshake", DEADLINE, || {
            match self.scrape(fixture.metrics_address()) {
                Err(error) if error.contains("ProtocolVersion") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    fn wait_for_lines(&self, fixture: &Fixture, lines: &[&str]) -> String {
        wait::until(&format!("{lines:?}"), DEADLINE, || {
            let (_, text) = self.scrape(fixture.metrics_address())?;
            let missing = lines
                .iter()
                .find(|line| !text.lines().any(|found| found == **line));
            missing.map_or(Ok(text.clone()), |line| Err(format!("{line} is not in\n{text}")))
        })
        .unwrap_or_else(|error| panic!("{error}\n{:#}", fixture.configuration()))
    }
}

impl Fixture {
    fn apply_objects(&self, objects: &[Value]) {
        for object in objects {
            self.kubectl().apply(&object.to_string()).expect("applied");
        }
    }

    /// A fresh token of a service account, which is created if it does not exist.
    fn token(&self, namespace: &str, account: &str) -> String {
        let meta = json!({ "name": account, "namespace": namespace });
        self.apply_objects(&[
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta }),
        ]);
        let token = self
            .kubectl()
            .run(["create", "token", account, "--namespace", namespace])
            .expect("a token");
        token.trim().to_owned()
    }

    /// A token of the monitoring stack, whose role allows it to read metrics.
    pub(crate) fn observer(&self) -> Scraper {
        let account = "prometheus-k8s";
        let rbac = "rbac.authorization.k8s.io";
        self.apply_objects(&[
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": { "name": account },
                "rules": [{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }],
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": account },
                "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": account },
                "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": MONITORING_NAMESPACE }],
            }),
        ]);
        let scraper = Scraper::with(Some(&self.token(MONITORING_NAMESPACE, account)));
        // A binding takes effect a moment later, and a refusal is cached for a moment.
        scraper.wait_for_code(self, 200);
        scraper
    }
}

const READY: &str = "kubevirt_cnao_cr_ready 1";
const NOT_READY: &str = "kubevirt_cnao_cr_ready 0";
const MAC_POOL: &str = "kubevirt_cnao_cr_kubemacpool_deployed 1";
const NO_MAC_POOL: &str = "kubevirt_cnao_cr_kubemacpool_deployed 0";

// operator#55
#[test]
fn metrics_need_authorized_token() {
    let fixture = Fixture::running();
    assert_eq!(Scraper::with(None).code(&fixture), 401);
    assert_eq!(Scraper::with(Some("invented")).code(&fixture), 401);
    let stranger = fixture.token(MONITORING_NAMESPACE, "stranger");
    assert_eq!(Scraper::with(Some(&stranger)).code(&fixture), 403);
    let observer = fixture.observer();

    let mark = fixture.mark();
    let fresh = Scraper::with(Some(&fixture.token(MONITORING_NAMESPACE, "prometheus-k8s")));
    for scraper in [&fresh, &observer, &fresh, &fresh] {
        assert_eq!(scraper.code(&fixture), 200);
    }
    let questions: Vec<_> = fixture
        .requests_since(mark)
        .into_iter()
        .map(|request| request.uri.trim_end_matches('?').to_owned())
        .filter(|uri| uri.ends_with("reviews"))
        .collect();
    assert_eq!(
        questions,
        [
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        ],
        "the API server reviews each token once in a while"
    );
}

#[test]
fn metrics_refuse_new_tokens_during_outage() {
    let mut fixture = Fixture::installed();
    let line = Line::to(fixture.server_url());
    fixture.start_through(&line.url());
    let observer = fixture.observer();
    let fresh = Scraper::with(Some(&fixture.token(MONITORING_NAMESPACE, "prometheus-k8s")));
    line.cut();
    assert_eq!(fresh.code(&fixture), 503);
    assert_eq!(
        observer.code(&fixture),
        200,
        "the answer from before still counts"
    );
    line.mend();
    fresh.wait_for_code(&fixture, 200);
}

// operator#55
#[test]
fn tls_profile_takes_effect_without_restart() {
    let fixture = Fixture::running();
    let new = Scraper::with(None);
    let old = Scraper {
        version: &version::TLS12,
        ..new.clone()
    };
    let mut post_quantum = new.clone();
    post_quantum.provider.kx_groups = vec![kx_group::X25519MLKEM768];

    // The default profile is Modern.
    fixture.configure(&json!({}));
    fixture.wait_until_available();
    old.wait_for_refusal(&fixture);
    assert_eq!(post_quantum.code(&fixture), 401);
    let intermediate = json!({ "tlsSecurityProfile": { "type": "Intermediate", "intermediate": {} } });
    fixture.configure(&intermediate);
    old.wait_for_code(&fixture, 401);
    assert_eq!(new.code(&fixture), 401);
    assert_eq!(post_quantum.code(&fixture), 401);
    fixture.configure(&json!({ "tlsSecurityProfile": { "type": "Modern", "modern": {} } }));
    old.wait_for_refusal(&fixture);

    // An invalid profile changes nothing.
    fixture.configure(&intermediate);
    old.wait_for_code(&fixture, 401);
    fixture.configure(&json!({ "tlsSecurityProfile": { "type": "Custom" } }));
    fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToValidate",
        "Progressing False InvalidConfiguration",
    ]);
    assert_eq!(old.code(&fixture), 401);
}

// operator#71
#[test]
fn gauges_follow_configuration() {
    let mut fixture = Fixture::running();
    let observer = fixture.observer();
    observer.wait_for_lines(&fixture, &[NOT_READY, NO_MAC_POOL]);

    fixture.configure(&json!({}));
    observer.wait_for_lines(&fixture, &[READY, NO_MAC_POOL]);
    fixture.configure(&json!({ "kubeMacPool": {} }));
    observer.wait_for_lines(&fixture, &[NOT_READY, MAC_POOL]);
    let deployments = ["kubemacpool-mac-controller-manager", "kubemacpool-cert-manager"];
    fixture.roll_out_deployments(&deployments);
    observer.wait_for_lines(&fixture, &[READY, MAC_POOL]);

    // A restarted operator finds no difference, and writes no status.
    fixture.stop();
    fixture.start();
    observer.wait_for_lines(&fixture, &[READY, MAC_POOL]);

    fixture.configure(&json!({ "kubeMacPool": {}, "imagePullPolicy": "BAD" }));
    observer.wait_for_lines(&fixture, &[NOT_READY, MAC_POOL]);
    fixture.configure(&json!({}));
    let text = observer.wait_for_lines(&fixture, &[READY, NO_MAC_POOL]);
    let host = fixture.server_url().trim_start_matches("https://");
    for part in [
        format!(r#"rest_client_requests_total{{code="201",method="POST",host="{host}"}} "#),
        r#"controller_runtime_reconcile_total{controller="networkaddonsconfig-controller",result="success"} "#.to_owned(),
    ] {
        let value = text.lines().find_map(|line| line.strip_prefix(&part));
        let value: u64 = value.unwrap_or_else(|| panic!("{part} is not in\n{text}")).parse().expect("a number");
        assert!(value > 0, "{part}");
    }

    fixture
        .kubectl()
        .delete(["networkaddonsconfig", "cluster"])
        .expect("deleted");
    wait::until("gauges of nothing", DEADLINE, || {
        let (_, text) = observer.scrape(fixture.metrics_address())?;
        let both = [NOT_READY, NO_MAC_POOL]
            .iter()
            .all(|line| text.lines().any(|found| found == *line));
        if both { Ok(()) } else { Err(text) }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

// operator#74, operands#14
#[test]
fn monitoring_stack_may_read_its_targets() {
    let mut fixture = Fixture::with(MONITORING);
    fixture.start();
    fixture.configure(&json!({}));
    fixture.wait_until_available();
    fixture.observer();
    let name = "cluster-network-addons-operator-monitoring";
    let binding = fixture.operand("rolebinding", name).expect("a binding");
    let subject = &binding["subjects"][0];
    let text = |key: &str| subject[key].as_str().unwrap_or_default();
    let (account, namespace) = (text("name"), text("namespace"));
    assert_eq!(namespace, MONITORING_NAMESPACE);
    let accounts = object::SERVICE_ACCOUNT.path(Some(namespace));
    let found = fixture.admin().get(&format!("{accounts}/{account}"));
    assert!(found.is_some(), "the binding has no subject: {binding:#}");
    for resource in ["services", "endpoints", "pods"] {
        let user = format!("--as=system:serviceaccount:{namespace}:{account}");
        let question = [
            "auth",
            "can-i",
            "watch",
            resource,
            "--namespace",
            NAMESPACE,
            &user,
        ];
        let answer = fixture.kubectl().run(question).expect("an answer");
        assert_eq!(answer.trim(), "yes", "{resource}");
    }
}

// operator#11
#[test]
fn monitored_components_have_service_monitor_and_rules() {
    let mut fixture = Fixture::with(MONITORING);
    fixture.start();
    fixture.configure(&json!({ "macvtap": {} }));
    fixture.roll_out(&["macvtap-cni"]);
    let configuration = fixture.wait_until_available();
    for (kind, name) in [
        ("service", "cluster-network-addons-operator-prometheus-metrics"),
        (
            "servicemonitor",
            "service-monitor-cluster-network-addons-operator",
        ),
        (
            "prometheusrule",
            "prometheus-rules-cluster-network-addons-operator",
        ),
    ] {
        let object = fixture
            .operand(kind, name)
            .unwrap_or_else(|| panic!("{kind} {name}"));
        let expected = json!({
            "networkaddonsoperator.network.kubevirt.io/version": VERSION,
            "prometheus.cnao.io": "true",
            "app.kubernetes.io/managed-by": "cnao-operator",
            "app.kubernetes.io/component": "network",
        });
        for (label, value) in expected.as_object().expect("labels") {
            assert_eq!(&object["metadata"]["labels"][label], value, "{kind} {label}");
        }
        let owner = &object["metadata"]["ownerReferences"][0]["uid"];
        assert_eq!(owner, &configuration["metadata"]["uid"], "{kind}");
    }
}
