//! The API server's handling of the webhook server's responses (kubemacpool §8, §12).

use std::future::ready;
use std::net::SocketAddr;
use std::sync::mpsc;

use axum::extract::Request as HttpRequest;
use axum::http::Version;
use axum::middleware::{Next, from_fn};
use kube_kit::serve::Readiness;
use kube_kit::tls::Profile;
use kubemacpool::server::{Settings, Webhooks};
use serde_json::{Value, json};
use webhook::admission::{self, Change, Operation, Request, Verdict};

use crate::fixture::{Stage, Task};
use crate::objects::{Kind, Nic, addresses, machine};

/// Decides by the object's name. Denials contain the path.
fn decide(path: &str, request: &Request) -> Verdict {
    let add = |path: &str, value: Value| Change::Add {
        path: path.to_owned(),
        value,
    };
    let stamp = |text: String| Verdict::patched(vec![add("/metadata/annotations", json!({ "asked": text }))]);
    match request.name.as_str() {
        "denied" => Verdict::denied(500, format!("the range is full, says {path}")),
        "odd" => Verdict::denied(400, "cannot be read: \"\u{fc}\"\nat line 1"),
        "panics" => panic!("on purpose"),
        "warned" => Verdict {
            warnings: vec!["MAC 02:00:00:00:00:01 is taken".to_owned(), "twice".to_owned()],
            ..Verdict::allowed()
        },
        "patched" => {
            let interface = "/spec/template/spec/domain/devices/interfaces/0/macAddress";
            let mut verdict = stamp(format!(
                "{:?} {} {}",
                request.operation, request.namespace, request.dry_run
            ));
            verdict.patch.push(add(interface, json!("02:00:00:00:00:09")));
            verdict.message = Some("for the record".to_owned());
            verdict
        }
        "" => stamp(format!("no name, request {}", request.uid.len())),
        _ if request.operation == Operation::Update => {
            let both = request.object.is_some() && request.old_object.is_some();
            stamp(format!("update, both objects: {both}"))
        }
        _ => Verdict::allowed(),
    }
}

/// The versions of reviews, and the path of each.
const PATHS: [(&str, &str); 2] = [("v1beta1", "/old"), ("v1", "/new")];

/// A server without a pool, and its port.
fn serve(stage: &Stage, pool: &Readiness) -> (Task, u16) {
    let (certificates, pool) = (stage.certificate().dir().to_owned(), pool.clone());
    let (at, address) = mpsc::channel();
    let task = stage.task(move |_, shutdown| async move {
        let settings = Settings {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            certificates,
            profile: Profile::default(),
            client: None,
        };
        let spoken = |request: HttpRequest, next: Next| async move {
            // The API server uses HTTP/2 if the server offers it.
            assert_eq!(request.version(), Version::HTTP_2);
            next.run(request).await
        };
        let at_path =
            |path: &'static str| admission::router(path, move |request| ready(decide(path, &request)));
        let [old, new] = PATHS.map(|(_, path)| at_path(path));
        let router = old.merge(new).layer(from_fn(spoken));
        let server = Webhooks::start(settings, pool, router).await.expect("a server");
        at.send(server.address().port()).expect("a test");
        shutdown.wait().await;
        server.stop().await;
    });
    let port = address.recv().expect("a port");
    (task, port)
}

fn complete() -> Readiness {
    let pool = Readiness::new();
    pool.set(true);
    pool
}

/// Configures one version, and waits until the API server uses it.
fn ask_in(stage: &Stage, port: u16, (version, path): (&str, &str), seconds: u64) {
    stage.configure_as(port, |configuration| {
        let webhook = &mut configuration["webhooks"][1];
        webhook["admissionReviewVersions"] = json!([version]);
        webhook["clientConfig"]["url"] = json!(format!("https://127.0.0.1:{port}{path}"));
        webhook["timeoutSeconds"] = json!(seconds);
    });
    let probe = machine("denied", &[]);
    let expected = format!("{DENIED}the range is full, says {path}");
    stage.wait_until_called(Kind::Machine, "vms", &probe, |answer| {
        answer.object["message"] == expected
    });
}

const DENIED: &str = "admission webhook \"mutatevirtualmachines.kubemacpool.io\" denied the request: ";

#[test]
fn responses_work_in_both_versions() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let (_server, port) = serve(&stage, &complete());
    let vm = |name| machine(name, &[Nic::masquerade("default")]);
    for (version, path) in PATHS {
        ask_in(&stage, port, (version, path), 10);
        let refused = |name| stage.refused(Kind::Machine, "vms", &vm(name));
        assert_eq!(
            refused("odd"),
            format!("{DENIED}cannot be read: \"\u{fc}\"\nat line 1"),
            "{version}"
        );
        assert_eq!(
            refused("panics"),
            format!("{DENIED}internal error: the webhook failed, see its log"),
            "{version}"
        );
        let warned = stage.create_dry(Kind::Machine, "vms", &vm("warned"));
        assert_eq!(
            warned.warnings,
            ["MAC 02:00:00:00:00:01 is taken", "twice"],
            "{version}"
        );
        warned.accepted();

        let would_be = stage.create_dry(Kind::Machine, "vms", &vm("patched")).accepted();
        assert_eq!(would_be["metadata"]["annotations"]["asked"], "Create vms true");
        let patched = stage.create(Kind::Machine, "vms", &vm("patched"));
        assert_eq!(patched["metadata"]["annotations"]["asked"], "Create vms false");
        assert_eq!(addresses(&patched), ["02:00:00:00:00:09"], "{version}");

        let plain = stage.create(Kind::Machine, "vms", &vm("plain"));
        assert_eq!(plain["metadata"]["annotations"], Value::Null, "{version}");
        let label = json!({ "metadata": { "labels": { "a": "b" } } });
        let updated = stage.patch(Kind::Machine, "vms", "plain", &label).accepted();
        assert_eq!(
            updated["metadata"]["annotations"]["asked"],
            "update, both objects: true"
        );

        let mut unnamed = vm("");
        unnamed["metadata"] = json!({ "generateName": "vm-" });
        let unnamed = stage.create(Kind::Machine, "vms", &unnamed);
        assert_eq!(unnamed["metadata"]["annotations"]["asked"], "no name, request 36");
        for name in [
            "patched",
            "plain",
            unnamed["metadata"]["name"].as_str().expect("a name"),
        ] {
            stage.delete(Kind::Machine, "vms", name);
        }
    }
}

// The end of kubemacpool.md §8.
#[test]
fn unready_pool_answers_before_the_api_server_times_out() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let pool = complete();
    let (_server, port) = serve(&stage, &pool);
    ask_in(&stage, port, PATHS[1], 2);
    let vm = machine("vm", &[]);
    pool.set(false);
    let text = stage.refused(Kind::Machine, "vms", &vm);
    assert!(
        text.contains("failed calling webhook \"mutatevirtualmachines.kubemacpool.io\"")
            && text.contains("internal server error: pool manager not ready"),
        "{text}"
    );
    pool.set(true);
    stage.create(Kind::Machine, "vms", &vm);
}
