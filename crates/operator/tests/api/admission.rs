//! The admission policy has the same texts as the operator's validation: the tests compare it with handwritten texts,
//! and with the validation itself.

use std::{fmt::Write as _, process::Stdio};

use cluster::{Kubectl, wait};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
    core::{Request, params::PostParams},
};
use manifests::render_admission;
use operator::{cluster_facts::Cluster, configuration};
use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, any},
    prop_oneof,
    sample::select,
    test_runner::{Config as Cases, TestCaseError, TestRunner},
};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::fixture::{DEADLINE, Fixture};

const PREFIX: &str = "network-addons-config' with binding 'network-addons-config'";
const GROUP: &str = "networkaddonsoperator.network.kubevirt.io";

/// A server with the policy.
struct Admission {
    fixture: Fixture,
    runtime: Runtime,
    client: Client,
}

impl Admission {
    fn start(file: &str) -> Self {
        let fixture = Fixture::installed();
        let files = render_admission().expect("the policy");
        let (_, yaml) = files.iter().find(|(name, _)| *name == file).expect("the file");
        fixture.kubectl().apply(yaml).expect("the policy is accepted");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(client(fixture.kubectl()));
        let admission = Self {
            fixture,
            runtime,
            client,
        };
        // A policy takes effect a moment after its write, and the policy of another test stays in effect for a moment.
        let refuses = file == "admission-policy-deny.yaml";
        admission.wait_until("the policy", |answer| match answer {
            Ok(warnings) => !refuses && warnings.len() == 1,
            Err(_) => refuses,
        });
        admission
    }

    /// Waits until the answer to an invalid configuration meets the condition.
    fn wait_until(&self, what: &str, condition: impl Fn(&Result<Vec<String>, String>) -> bool) {
        wait::until(what, DEADLINE, || {
            let answer = self.create("v1", "cluster", &json!({ "imagePullPolicy": "BAD" }));
            if condition(&answer) {
                Ok(())
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The warnings of the server about a creation with this specification, or the text of its refusal.
    fn create(&self, version: &str, name: &str, spec: &Value) -> Result<Vec<String>, String> {
        let object = json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": "NetworkAddonsConfig",
            "metadata": { "name": name }, "spec": spec,
        });
        let try_out = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let request = Request::new(format!("/apis/{GROUP}/{version}/networkaddonsconfigs"))
            .create(&try_out, object.to_string().into_bytes())
            .expect("a request");
        self.runtime.block_on(async {
            let response = self
                .client
                .send(request.map(Body::from))
                .await
                .expect("an answer");
            if response.status().is_success() {
                let warnings = response.headers().get_all("warning").iter();
                return Ok(warnings.map(|value| warning(value.as_bytes())).collect());
            }
            let text = response.into_body().collect_bytes().await.expect("a body");
            let status: Value = serde_json::from_slice(&text).expect("JSON");
            Err(status["message"].as_str().expect("a message").to_owned())
        })
    }

    /// The texts of the policy about a specification, one per rule.
    fn texts(&self, version: &str, spec: &Value) -> Vec<String> {
        let warnings = self
            .create(version, "cluster", spec)
            .unwrap_or_else(|error| panic!("{spec}: {error}"));
        let prefix = format!("Validation failed for ValidatingAdmissionPolicy '{PREFIX}: ");
        let text = |warning: String| {
            warning
                .strip_prefix(&prefix)
                .map(str::to_owned)
                .expect("the policy's warning")
        };
        warnings.into_iter().map(text).collect()
    }
}

async fn client(kubectl: &Kubectl) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubectl.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// The text of a header `299 - "text"`.
fn warning(header: &[u8]) -> String {
    let header = std::str::from_utf8(header).expect("UTF-8");
    let quoted = header
        .strip_prefix("299 - \"")
        .and_then(|text| text.strip_suffix('"'));
    let mut text = String::new();
    let mut characters = quoted.expect("a warning").chars();
    while let Some(character) = characters.next() {
        text.push(if character == '\\' {
            characters.next().expect("what is escaped")
        } else {
            character
        });
    }
    text
}

/// The operator's own validation.
fn verdict(spec: &Value) -> Vec<String> {
    let spec = configuration::read(spec.clone()).expect("a specification");
    configuration::validate(&spec, &Cluster::default())
}

fn pool(start: &str, end: &str) -> Value {
    json!({ "kubeMacPool": { "rangeStart": start, "rangeEnd": end } })
}

fn intervals(ca_rotate: &str, ca_overlap: &str, cert_rotate: &str, cert_overlap: &str) -> Value {
    json!({ "selfSignConfiguration": {
        "caRotateInterval": ca_rotate, "caOverlapInterval": ca_overlap,
        "certRotateInterval": cert_rotate, "certOverlapInterval": cert_overlap,
    } })
}

/// Operator §5.1, row by row.
#[allow(clippy::too_many_lines, reason = "it is a table")]
fn table() -> Vec<(Value, Vec<&'static str>)> {
    let half = "both or none of the KubeMacPool ranges needs to be configured";
    let start = "failed to parse rangeStart because the mac address is invalid";
    let end = "failed to parse rangeEnd because the mac address is invalid";
    let socket = "`hostCRISocketPath` must be one of: /run/crio/crio.sock, /run/containerd/containerd.sock, \
                  /run/k3s/containerd/containerd.sock, /var/snap/microk8s/common/run/containerd.sock";
    vec![
        (
            json!({ "multus": { "globalNamespaces": ["default", "a,b"] } }),
            vec!["multus: globalNamespaces: \"a,b\" is not the name of a namespace"],
        ),
        (pool("02:00:00:00:00:00", ""), vec![half]),
        (pool("", "02:00:00:00:00:00"), vec![half]),
        (pool("02:00:00:00:00:00:00", "02:00:00:00:00:00"), vec![start]),
        (pool("02:00-00:00:00:00", "02:00:00:00:00:00"), vec![start]),
        (pool("020000000000", "02:00:00:00:00:00"), vec![start]),
        (pool("02:00:00:00:00:00", "0200.0000"), vec![end]),
        (pool("02:00:00:00:00:00", "02:00:00:00:00:00\n"), vec![end]),
        (
            pool("02-00-00-FF-00-00", "0200.0000.0000"),
            vec![
                "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. \
                 start: 02:00:00:ff:00:00 end: 02:00:00:00:00:00",
            ],
        ),
        (
            pool("02:00:00:00:00:00", "0200.0000.0000"),
            vec![
                "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. \
                 start: 02:00:00:00:00:00 end: 02:00:00:00:00:00",
            ],
        ),
        (
            pool("02:ff:00:00:00:00", "02:00:00:00:00:01"),
            vec![
                "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. \
                 start: 02:ff:00:00:00:00 end: 02:00:00:00:00:01",
            ],
        ),
        (
            pool("0100.0000.0000", "02:00:00:00:00:00"),
            vec![
                "failed to set RangeStart: invalid mac address. Multicast addressing is not supported. Unicast \
                 addressing must be used. The first octet is 0X1",
            ],
        ),
        (
            pool("02:00:00:00:00:00", "fd:ff:ff:ff:ff:ff"),
            vec![
                "failed to set RangeEnd: invalid mac address. Multicast addressing is not supported. Unicast \
                 addressing must be used. The first octet is 0XFD",
            ],
        ),
        (
            json!({ "imagePullPolicy": "BAD" }),
            vec!["requested imagePullPolicy 'BAD' is not valid"],
        ),
        (
            intervals("", "1h", "", "asdf"),
            vec![
                "failed to validate selfSignConfiguration: caRotateInterval is missing",
                "failed to validate selfSignConfiguration: certRotateInterval is missing",
            ],
        ),
        (
            intervals("asdf", "1", "1d", "9999999999h"),
            vec![
                "failed to validate selfSignConfiguration: error parsing caRotateInterval: time: invalid duration \
                 \"asdf\"",
                "failed to validate selfSignConfiguration: error parsing caOverlapInterval: time: missing unit in \
                 duration \"1\"",
                "failed to validate selfSignConfiguration: error parsing certRotateInterval: time: unknown unit \
                 \"d\" in duration \"1d\"",
                "failed to validate selfSignConfiguration: error parsing certOverlapInterval: time: invalid \
                 duration \"9999999999h\"",
            ],
        ),
        (
            intervals("0", "-1h", "1h", "-0"),
            vec![
                "failed to validate selfSignConfiguration: caRotateInterval duration has to be > 0",
                "failed to validate selfSignConfiguration: caOverlapInterval duration has to be > 0",
                "failed to validate selfSignConfiguration: certOverlapInterval duration has to be > 0",
            ],
        ),
        (
            intervals("1h", "2h", "1h0.5s", "1h1m"),
            vec![
                "failed to validate selfSignConfiguration: caOverlapInterval(2h0m0s) has to be <= \
                 caRotateInterval(1h0m0s)",
                "failed to validate selfSignConfiguration: certRotateInterval(1h0m0.5s) has to be <= \
                 caRotateInterval(1h0m0s)",
                "failed to validate selfSignConfiguration: certOverlapInterval(1h1m0s) has to be <= \
                 certRotateInterval(1h0m0.5s)",
            ],
        ),
        (
            json!({ "multusDynamicNetworks": { "hostCRISocketPath": "Lorem ipsum" } }),
            vec!["the `multus` configuration is required"],
        ),
        (
            json!({ "multus": {}, "multusDynamicNetworks": { "hostCRISocketPath": "Lorem ipsum" } }),
            vec![socket],
        ),
        (
            json!({ "kubeSecondaryDNS": { "ttl": 86_401, "allowedPrefixes": ["10.0.0.0/8", "10.0.0.1"] } }),
            vec![
                "kubeSecondaryDNS: ttl 86401 is not a number of seconds from 0 to 86400",
                "kubeSecondaryDNS: allowedPrefixes: \"10.0.0.1\" is not a prefix such as 10.0.0.0/8",
            ],
        ),
        (
            json!({ "tlsSecurityProfile": {} }),
            vec!["failed to validate tlsSecurityProfile: type is missing"],
        ),
        (
            json!({ "tlsSecurityProfile": { "type": "Custom", "custom": null } }),
            vec!["failed to validate tlsSecurityProfile: custom is missing for type Custom"],
        ),
        (
            json!({ "cniDirectories": { "bin": "opt/cni/bin", "conf": "/etc/../cni" } }),
            vec![
                "requested cniDirectories.bin 'opt/cni/bin' is not valid: it has to be an absolute path of letters, \
                 digits, '.', '_', '+' and '-', without '..'",
                "requested cniDirectories.conf '/etc/../cni' is not valid: it has to be an absolute path of letters, \
                 digits, '.', '_', '+' and '-', without '..'",
            ],
        ),
        (
            json!({
                "cniDirectories": { "bin": "" }, "tlsSecurityProfile": {}, "multusDynamicNetworks": {},
                "imagePullPolicy": "BAD", "kubeMacPool": { "rangeEnd": "02:00:00:00:00:00" },
            }),
            vec![
                half,
                "requested imagePullPolicy 'BAD' is not valid",
                "the `multus` configuration is required",
                "failed to validate tlsSecurityProfile: type is missing",
                "requested cniDirectories.bin '' is not valid: it has to be an absolute path of letters, digits, \
                 '.', '_', '+' and '-', without '..'",
            ],
        ),
    ]
}

/// Valid specifications.
fn good() -> Vec<Value> {
    vec![
        json!({}),
        json!({ "kubeMacPool": {}, "selfSignConfiguration": null, "tlsSecurityProfile": null }),
        json!({ "multus": {}, "linuxBridge": {}, "kubeMacPool": {}, "ovs": {}, "macvtap": {}, "nmstate": {} }),
        json!({ "multus": { "namespaceIsolation": true, "globalNamespaces": ["default", "a-1"] } }),
        json!({ "kubeSecondaryDNS": { "ttl": 0, "allowedPrefixes": [" fd00::/8 ", "10.0.0.0/8"] } }),
        json!({ "multus": {}, "multusDynamicNetworks": {}, "imagePullPolicy": "Always" }),
        json!({ "multus": {}, "multusDynamicNetworks": { "hostCRISocketPath": "/run/containerd/containerd.sock" } }),
        pool("02:00:00:00:00:00", "02-00-00-00-00-02"),
        pool("020a.00ff.0001", "FE:FF:FF:FF:FF:FF"),
        intervals("1h", "60m", "3600s", "1h0m0.0s"),
        intervals("+48h0m0s", "24h", "24h0m0s", ".5us"),
        json!({ "tlsSecurityProfile": { "type": "Old", "old": null } }),
        json!({ "tlsSecurityProfile": { "custom": { "ciphers": ["AES128-SHA"], "minTLSVersion": "VersionTLS12" } } }),
        json!({ "cniDirectories": { "bin": "/opt/cni/bin/", "conf": "/etc/cni/net.d" } }),
        json!({ "cniDirectories": {} }),
    ]
}

/// A specification without nulls that the schema refuses.
fn without_nulls(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(members) = spec.as_object_mut() {
        members.retain(|name, member| name == "tlsSecurityProfile" || !member.is_null());
    }
    spec
}

// operator#29-32, operator#34, operator#37, operator#38, operator#42, operator#44, operator#45, operator#54: the texts
// of the policy are those of the operator.
#[test]
fn warn_policy_warns_of_invalid_configuration_with_texts_of_operator() {
    let admission = Admission::start("admission-policy.yaml");
    for (spec, texts) in table() {
        assert_eq!(verdict(&spec), texts, "the operator, {spec}");
        for version in ["v1", "v1alpha1"] {
            assert_eq!(admission.texts(version, &spec), texts, "{version} {spec}");
        }
        assert_eq!(
            admission.create("v1", "other", &spec),
            Ok(Vec::new()),
            "the text is unreadable: {spec}"
        );
    }
    for spec in good() {
        let spec = without_nulls(&spec);
        assert_eq!(verdict(&spec), Vec::<String>::new(), "the operator, {spec}");
        assert_eq!(admission.create("v1", "cluster", &spec), Ok(Vec::new()), "{spec}");
    }
    // A message has no line breaks, and a maximum length.
    let fallback = ["the configuration is not valid, as its status will say"];
    for policy in ["a\nb".to_owned(), "long ".repeat(2000)] {
        assert_eq!(
            admission.texts("v1", &json!({ "imagePullPolicy": policy })),
            fallback
        );
    }
    // A value whose evaluation would cost too much is accepted; the operator validates it.
    for endless in ["1", "x", "1h", "µ"] {
        let endless = intervals(&endless.repeat(150_000), "1h", "1h", "1h");
        assert_eq!(admission.create("v1", "cluster", &endless), Ok(Vec::new()));
    }
    for endless in [
        pool(&"0".repeat(150_000), "02:00:00:00:00:00"),
        json!({ "cniDirectories": { "conf": "/..".repeat(50_000) } }),
        json!({ "multus": {}, "multusDynamicNetworks": { "hostCRISocketPath": "/".repeat(150_000) } }),
    ] {
        assert_eq!(admission.texts("v1", &endless).len(), 1);
    }

    // In the form of kubectl.
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "NetworkAddonsConfig", "metadata": { "name": "cluster" },
        "spec": { "imagePullPolicy": "BAD", "multusDynamicNetworks": {} },
    });
    let mut apply = admission.fixture.kubectl().command(["apply", "--filename", "-"]);
    let mut child = apply
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl");
    let mut input = child.stdin.take().expect("standard input");
    std::io::Write::write_all(&mut input, object.to_string().as_bytes()).expect("input");
    drop(input);
    let output = child.wait_with_output().expect("kubectl");
    assert!(output.status.success(), "it is stored all the same");
    let mut expected = String::new();
    for text in [
        "requested imagePullPolicy 'BAD' is not valid",
        "the `multus` configuration is required",
    ] {
        writeln!(
            expected,
            "Warning: Validation failed for ValidatingAdmissionPolicy '{PREFIX}: {text}"
        )
        .expect("text");
    }
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn deny_policy_refuses_invalid_configuration() {
    let admission = Admission::start("admission-policy-deny.yaml");
    for (spec, texts) in table() {
        // The server returns the first of several texts.
        let refusal = format!("ValidatingAdmissionPolicy '{PREFIX} denied request: {}", texts[0]);
        let error = admission.create("v1", "cluster", &spec).expect_err("a refusal");
        assert!(error.ends_with(&refusal), "{spec}: {error}");
    }
    for spec in good() {
        let spec = without_nulls(&spec);
        assert_eq!(admission.create("v1", "cluster", &spec), Ok(Vec::new()), "{spec}");
    }
}

#[test]
fn deny_policy_allows_labelling_correcting_and_deleting_invalid_configuration() {
    let admission = Admission::start("admission-policy.yaml");
    admission.fixture.configure(&json!({ "imagePullPolicy": "BAD" }));
    let kubectl = admission.fixture.kubectl();
    let files = render_admission().expect("the policy");
    kubectl.apply(&files[1].1).expect("the policy that refuses");
    let change = |spec: &Value| {
        let patch = json!({ "spec": spec }).to_string();
        kubectl.run([
            "patch",
            "networkaddonsconfig",
            "cluster",
            "--type=merge",
            "-p",
            &patch,
        ])
    };
    let mut tries = 0;
    wait::until("a refusal", DEADLINE, || {
        // The value differs each time: an unchanged one is not validated.
        tries += 1;
        let policy = format!("WORSE{tries}");
        match change(&json!({ "imagePullPolicy": policy })) {
            Err(error)
                if error
                    .to_string()
                    .contains(&format!("requested imagePullPolicy '{policy}' is not valid")) =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    kubectl
        .run(["label", "networkaddonsconfig", "cluster", "a=b"])
        .expect("a label");
    change(&json!({ "imagePullPolicy": "Always" })).expect("a cure");
    kubectl
        .delete(["networkaddonsconfig", "cluster"])
        .expect("deleted");
}

fn mac() -> impl Strategy<Value = String> {
    let octets = vec(
        prop_oneof![Just(0_u8), Just(1), Just(2), Just(0xff), any::<u8>()],
        5..8,
    );
    let separators = select(vec![":", ":", ":", "-", ".", "", ":-"]);
    (octets, separators, any::<bool>(), 0_u8..10).prop_map(|(mut octets, separator, upper, empty)| {
        if empty == 0 {
            return String::new();
        }
        if empty < 9 {
            octets.resize(6, 0);
        }
        let groups: Vec<_> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
        let text = match separator {
            "." => groups
                .chunks(2)
                .map(<[String]>::concat)
                .collect::<Vec<_>>()
                .join("."),
            ":-" => groups.join(":").replacen(':', "-", 1),
            separator => groups.join(separator),
        };
        if upper { text.to_uppercase() } else { text }
    })
}

fn duration() -> impl Strategy<Value = String> {
    let number = select(vec![
        "1", "1", "2", "90", "05", "1.5", "48", ".25", "1.", "0", "0.000001", "99999", "", ".", "1..2",
    ]);
    let unit = select(vec![
        "h", "h", "h", "m", "m", "s", "s", "ms", "us", "µs", "μs", "ns", "d", "", "h ", "\"", "\\é", "hs",
    ]);
    let sign = select(vec!["", "", "", "", "+", "-"]);
    let tokens = vec((number, unit), 0..4);
    prop_oneof![
        3 => select(vec!["1h", "2h", "60m", "90m0.5s", "3600s", "1ms", "1.5us", "7ns", "24h0m0s"]).prop_map(str::to_owned),
        2 => (sign, tokens).prop_map(|(sign, tokens)| {
            let tokens: String = tokens.iter().map(|(number, unit)| format!("{number}{unit}")).collect();
            format!("{sign}{tokens}")
        }),
    ]
}

fn specification() -> impl Strategy<Value = Value> {
    let policy = select(vec![
        "",
        "Always",
        "Never",
        "IfNotPresent",
        "always",
        "It's",
        "\\\"",
        "日本",
        " ",
    ]);
    let socket = select(vec![
        "",
        "/run/crio/crio.sock",
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock",
        "/run/crio/crio.sock/",
        "nowhere",
    ]);
    let profile = select(vec![
        json!(null),
        json!({}),
        json!({ "type": "Old" }),
        json!({ "type": "Custom" }),
        json!({ "type": "Custom", "custom": null }),
        json!({ "type": "Modern", "custom": {} }),
        json!({ "custom": { "minTLSVersion": "VersionTLS10" } }),
    ]);
    let path = select(vec![
        "",
        "/",
        "//",
        "/a",
        "/a/",
        "/a//",
        "a",
        "/a/b.c/d_e-f+g",
        "/..",
        "/a/../b",
        "/a/./b",
        "/.a",
        "/...",
        "/a b",
        "/a'",
        "/ä",
        "/a\n",
    ]);
    let directories = (option::of(path.clone()), option::of(path));
    let interval = || option::weighted(0.95, duration());
    (
        option::of((mac(), mac())),
        option::of(policy),
        option::of([interval(), interval(), interval(), interval()]),
        (any::<bool>(), option::of(option::of(socket))),
        option::of(profile),
        option::of(directories),
    )
        .prop_map(
            |(pool_ends, policy, times, (multus, dynamic), profile, directories)| {
                let mut spec = Map::new();
                if let Some((start, end)) = pool_ends {
                    spec.extend(pool(&start, &end).as_object().cloned().unwrap_or_default());
                }
                if let Some(policy) = policy {
                    spec.insert("imagePullPolicy".into(), json!(policy));
                }
                if let Some(times) = times {
                    let names = [
                        "caRotateInterval",
                        "caOverlapInterval",
                        "certRotateInterval",
                        "certOverlapInterval",
                    ];
                    let given = names
                        .iter()
                        .zip(times)
                        .filter_map(|(name, time)| Some(((*name).to_owned(), json!(time?))));
                    spec.insert("selfSignConfiguration".into(), Value::Object(given.collect()));
                }
                if multus {
                    spec.insert("multus".into(), json!({}));
                }
                if let Some(socket) = dynamic {
                    let settings = socket.map_or(json!({}), |socket| json!({ "hostCRISocketPath": socket }));
                    spec.insert("multusDynamicNetworks".into(), settings);
                }
                if let Some(profile) = profile {
                    spec.insert("tlsSecurityProfile".into(), profile);
                }
                if let Some((bin, conf)) = directories {
                    let given = [("bin", bin), ("conf", conf)];
                    let given = given
                        .into_iter()
                        .filter_map(|(name, path)| Some((name.to_owned(), json!(path?))));
                    spec.insert("cniDirectories".into(), Value::Object(given.collect()));
                }
                Value::Object(spec)
            },
        )
}

#[test]
fn policy_and_operator_agree_about_any_specification() {
    let admission = Admission::start("admission-policy.yaml");
    let mut runner = TestRunner::new(Cases {
        cases: 600,
        failure_persistence: None,
        ..Cases::default()
    });
    let outcome = runner.run(
        &(specification(), select(vec!["v1", "v1alpha1"])),
        |(spec, version)| {
            // A message with a line break becomes the fallback.
            let expected: Vec<_> = verdict(&spec)
                .into_iter()
                .map(|text| {
                    if text.contains('\n') {
                        "the configuration is not valid, as its status will say".to_owned()
                    } else {
                        text
                    }
                })
                .collect();
            let mut distinct = expected.clone();
            distinct.dedup();
            let found = admission.texts(version, &spec);
            if found == distinct {
                Ok(())
            } else {
                Err(TestCaseError::fail(format!(
                    "the policy: {found:#?}\nthe operator: {distinct:#?}"
                )))
            }
        },
    );
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
