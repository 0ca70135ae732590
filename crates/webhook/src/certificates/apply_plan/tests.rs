//! Certificates that another client reverts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::UNIX_EPOCH,
};

use axum::http::{Method, Request, Response, Uri};
use kube_kit::{
    kube::{Client, client::Body},
    lock,
    merge::Policy,
    object,
};
use rcgen::PKCS_ECDSA_P256_SHA256;
use tower::{BoxError, service_fn};

use super::*;

const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/webhooks";
const SERVING: &str = "/api/v1/namespaces/addons/secrets/server";
const AUTHORITY: &str = "/api/v1/namespaces/addons/secrets/authority";

/// Field managers: ours, derived from the user agent, and the other client's.
const WEFT: &str = "weft";
const MANAGER: &str = "manager";

const HOUR: Duration = Duration::from_hours(1);
const FIRST_PAUSE: Duration = Duration::from_secs(15);

/// An API server that stores objects by path. The last writer manages all fields of an object.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    objects: BTreeMap<String, Value>,
    writes: usize,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let (code, answer) = server.answer(&head.method, &head.uri, &body);
                let answer = Body::from(answer.to_string().into_bytes());
                Response::builder()
                    .status(code)
                    .body(answer)
                    .map_err(BoxError::from)
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, uri: &Uri, body: &[u8]) -> (u16, Value) {
        let path = uri.path();
        let named = uri
            .query()
            .and_then(|query| query.split_once("fieldSelector=metadata.name%3D"));
        if let Some((_, name)) = named {
            let found = self.get(&format!("{path}/{name}"));
            let items: Vec<_> = found.into_iter().collect();
            return (
                200,
                json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }),
            );
        }
        if method == Method::GET {
            return self
                .get(path)
                .map_or_else(|| not_found(path), |found| (200, found));
        }
        let object: Value = serde_json::from_slice(body).expect("an object");
        let path = if method == Method::POST {
            let name = object["metadata"]["name"].as_str().expect("a name");
            format!("{path}/{name}")
        } else {
            path.to_owned()
        };
        (200, self.put(&path, object, WEFT))
    }

    fn get(&self, path: &str) -> Option<Value> {
        lock(&self.0).objects.get(path).cloned()
    }

    fn put(&self, path: &str, mut object: Value, manager: &str) -> Value {
        let mut stored = lock(&self.0);
        stored.writes += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(stored.writes.to_string());
        metadata["managedFields"] = json!([{
            "manager": manager, "operation": "Update", "time": "2026-11-21T00:00:00Z",
            "fieldsV1": { "f:metadata": {}, "f:data": {}, "f:webhooks": {} },
        }]);
        stored.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn writes(&self) -> usize {
        lock(&self.0).writes
    }
}

fn not_found(path: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": format!("{path} not found"), "details": { "name": path },
    });
    (404, status)
}

/// A webhook without a bundle.
fn configuration(uid: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "webhooks", "uid": uid },
        "webhooks": [{
            "name": "server.addons.svc",
            "clientConfig": { "service": { "name": "server", "namespace": "addons" } },
        }],
    })
}

fn secret(name: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": kind,
        "metadata": { "name": name, "namespace": "addons", "labels": { "version": "ours" } },
    })
}

/// The certificate manager with that API server, and the clock.
struct World {
    server: Server,
    applier: Applier,
    objects: Objects,
    identity: Identity,
    intervals: Intervals,
    now: SystemTime,
}

impl World {
    fn new() -> Self {
        let server = Server::default();
        server.put(CONFIGURATION, configuration("1"), "helm");
        Self {
            applier: Applier::new(server.client(), Policy::default()),
            server,
            objects: Objects {
                authority: secret("authority", "Opaque"),
                serving: secret("server", "kubernetes.io/tls"),
                configurations: vec![object::MUTATING_WEBHOOK_CONFIGURATION.object(None, "webhooks")],
            },
            identity: Identity {
                authority: "webhooks".to_owned(),
                service: "server".to_owned(),
                namespace: "addons".to_owned(),
            },
            intervals: Intervals {
                ca_rotate: 48 * HOUR,
                ca_overlap: 24 * HOUR,
                cert_rotate: 24 * HOUR,
                cert_overlap: 12 * HOUR,
            },
            now: UNIX_EPOCH + Duration::from_secs(1_795_219_200),
        }
    }

    async fn keeper(&self) -> Keeper<'_> {
        Keeper::read(&self.applier, &self.objects, &self.identity, &self.intervals)
            .await
            .expect("objects")
    }

    /// Returns the time of the next check, and whether anything was written.
    async fn keep(&self) -> (SystemTime, bool) {
        let (kept, has_written) = self.kept().await;
        (kept.next_check, has_written)
    }

    async fn kept(&self) -> (Kept, bool) {
        let writes = self.server.writes();
        let kept = self.keeper().await.keep(self.now).await;
        (kept.expect("a check"), self.server.writes() > writes)
    }

    /// Repairs what another client reverts, until repairs pause; returns the time of the next check.
    async fn exhaust(&self, revert: impl Fn()) -> SystemTime {
        let mut repairs = 0;
        loop {
            revert();
            let (kept, has_written) = self.kept().await;
            // While repairs pause, nothing is in order.
            assert_eq!(kept.in_order, has_written);
            if !has_written {
                assert_eq!(repairs, 5);
                return kept.next_check;
            }
            repairs += 1;
            assert!(repairs < 10, "repaired again and again");
        }
    }

    /// The name of the other client of a pause.
    async fn opponent(&self) -> Option<String> {
        let pause = self
            .keeper()
            .await
            .upkeep(|upkeep| upkeep.pause(self.now))
            .expect("a pause");
        pause.opponent
    }

    fn live(&self, path: &str) -> Value {
        self.server
            .get(path)
            .unwrap_or_else(|| panic!("{path} is not there"))
    }

    fn bundle(&self) -> Vec<Certificate> {
        read::certificates(&ca_bundle(&self.live(CONFIGURATION)["webhooks"][0]))
    }

    fn authority(&self) -> Certificate {
        let field = &self.live(AUTHORITY)["data"]["ca.crt"];
        read::certificates(&decoded(Some(field))).remove(0)
    }

    /// Prepends another CA to the bundle, like upstream certificate managers.
    fn put_in_front(&self, theirs: &Certificate) {
        let mut trusted = self.bundle();
        trusted.retain(|certificate| certificate != theirs);
        trusted.insert(0, theirs.clone());
        let mut configuration = self.live(CONFIGURATION);
        configuration["webhooks"][0]["clientConfig"]["caBundle"] =
            json!(STANDARD.encode(bundle::to_pem(&trusted)));
        self.server.put(CONFIGURATION, configuration, MANAGER);
    }
}

// operator#95, kubemacpool#95
#[tokio::test(start_paused = true)]
async fn keep_with_reverted_bundle_backs_off_and_still_renews() {
    let mut world = World::new();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let theirs = issue::authority(&key, &world.identity, &world.intervals, world.now).expect("an authority");
    let theirs = read::certificates(&theirs.certificate).remove(0);
    let (due, _) = world.keep().await;

    let until = world.exhaust(|| world.put_in_front(&theirs)).await;
    assert_eq!(until, world.now + FIRST_PAUSE);
    assert_eq!(
        world.opponent().await.as_deref(),
        Some(
            "(admissionregistration.k8s.io/v1, Kind=MutatingWebhookConfiguration) /webhooks: \
             field manager \"manager\" keeps changing webhooks.0.clientConfig.caBundle"
        )
    );
    assert_eq!(world.bundle()[0], theirs);

    // After the pause there is one repair, and the next pause is longer.
    tokio::time::advance(FIRST_PAUSE).await;
    world.now += FIRST_PAUSE;
    assert_eq!(world.keep().await, (due, true));
    assert_eq!(world.bundle()[0], world.authority());
    world.put_in_front(&theirs);
    assert_eq!(world.keep().await, (world.now + 2 * FIRST_PAUSE, false));

    // The certificate is renewed when due, during the pause.
    let served = world.live(SERVING)["data"].clone();
    world.now = due;
    let (renewed_until, has_written) = world.keep().await;
    assert!(has_written && renewed_until > due);
    assert_ne!(world.live(SERVING)["data"], served);
    world.put_in_front(&theirs);
    assert_eq!(world.keep().await, (world.now + 2 * FIRST_PAUSE, false));

    // A recreated configuration gets its first bundle.
    world.server.put(CONFIGURATION, configuration("2"), "helm");
    assert!(world.keep().await.1);
    assert_eq!(world.bundle()[0], world.authority());
}

// operator#95, Secrets
#[tokio::test(start_paused = true)]
async fn keep_with_reverted_secret_backs_off_and_names_the_client() {
    let world = World::new();
    world.keep().await;
    let until = world
        .exhaust(|| {
            let mut secret = world.live(SERVING);
            secret["metadata"]["labels"]["version"] = json!("theirs");
            world.server.put(SERVING, secret, MANAGER);
        })
        .await;
    assert_eq!(until, world.now + FIRST_PAUSE);
    assert_eq!(
        world.opponent().await.as_deref(),
        Some(
            "(/v1, Kind=Secret) addons/server: field manager \"manager\" keeps changing metadata.labels.version"
        )
    );
}
