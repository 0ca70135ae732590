use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// The answer of an API server to a replacement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reply {
    Done,
    Refused(u16),
    /// None. The replica is shut down meanwhile.
    Never,
}

/// An API server with one Lease, and no other object.
#[derive(Clone, Default)]
pub(crate) struct LeaseServer(Arc<Mutex<Served>>);

#[derive(Default)]
struct Served {
    lease: Option<Value>,
    /// Answers to the first replacements, the last one first.
    replies: Vec<Reply>,
    shutdown: Shutdown,
    requests: Vec<String>,
}

impl LeaseServer {
    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let written = serde_json::from_slice(&body).ok();
                let is_lease = parts.uri.path().contains("leases");
                let answer = if is_lease {
                    kube_kit::lock(&server.0).answer(&parts.method, written)
                } else {
                    Some(refusal(404))
                };
                let Some((code, answer)) = answer else {
                    return std::future::pending().await;
                };
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "ns1")
    }

    /// Methods of the requests for the Lease, with the written holder.
    pub(crate) fn requests(&self) -> Vec<String> {
        kube_kit::lock(&self.0).requests.clone()
    }
}

impl Served {
    /// Returns the code and the body of the answer. `None`: the server does not answer.
    fn answer(&mut self, method: &Method, written: Option<Value>) -> Option<(u16, Value)> {
        let Some(written) = written else {
            self.requests.push(method.to_string());
            let found = self.lease.clone().map(|lease| (200, lease));
            return Some(found.unwrap_or_else(|| refusal(404)));
        };
        let holder = written["spec"]["holderIdentity"].as_str().unwrap_or_default();
        self.requests.push(format!("{method} {holder}"));
        let reply = if method == Method::PUT {
            self.replies.pop().unwrap_or(Reply::Done)
        } else {
            Reply::Done
        };
        match reply {
            Reply::Done => {
                self.lease = Some(written.clone());
                Some((200, written))
            }
            Reply::Refused(code) => {
                self.shutdown.trigger();
                Some(refusal(code))
            }
            Reply::Never => {
                self.shutdown.trigger();
                None
            }
        }
    }
}

fn refusal(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Other" };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason, "code": code,
    });
    (code, status)
}

// kubevirt-ipam#94, the decision
#[tokio::test(start_paused = true)]
async fn lease_is_given_back_though_its_renewal_has_failed() {
    let renewed = ["GET", "POST me", "PUT me", "GET", "PUT "];
    let twice = [&renewed[..], &["GET", "PUT "]].concat();
    for (replies, expected) in [
        (vec![Reply::Never], renewed.to_vec()),
        (vec![Reply::Refused(500)], renewed.to_vec()),
        // The renewal comes between the read and the release.
        (vec![Reply::Refused(409), Reply::Never], twice),
    ] {
        let (server, shutdown) = (LeaseServer::default(), Shutdown::new());
        let mut election = Election::new(server.client(), "ns1", "me");
        {
            let mut served = kube_kit::lock(&server.0);
            served.replies = replies;
            served.shutdown = shutdown.clone();
        }
        assert_eq!(election.run(&shutdown).await, Ok(()));
        election.give_back().await;
        assert_eq!(server.requests(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_another_replica_is_not_given_back() {
    let server = LeaseServer::default();
    let lease = json!({ "metadata": { "name": "x" }, "spec": { "holderIdentity": "other", "leaseDurationSeconds": 15 } });
    kube_kit::lock(&server.0).lease = Some(lease);
    Election::new(server.client(), "ns1", "me").give_back().await;
    assert_eq!(server.requests(), ["GET"]);
}

fn record(holder: &str, version: u64) -> Record {
    Record {
        holder: holder.to_owned(),
        duration: DURATION,
        version: version.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_taken_when_it_is_not_renewed() {
    const NEARLY: Duration = DURATION.saturating_sub(RETRY);
    let seen = |holder: &str, version: u64| Some(record(holder, version));
    let mut me = Candidate::new("me");
    assert_eq!(me.observe(None, Instant::now()), Step::Create);
    assert_eq!(me.observe(seen("other", 1), Instant::now()), Step::Wait);
    tokio::time::advance(NEARLY).await;
    assert_eq!(me.observe(seen("other", 1), Instant::now()), Step::Wait);
    // The Lease was renewed: the wait starts again.
    assert_eq!(me.observe(seen("other", 2), Instant::now()), Step::Wait);
    tokio::time::advance(NEARLY).await;
    assert_eq!(me.observe(seen("other", 2), Instant::now()), Step::Wait);
    tokio::time::advance(RETRY).await;
    assert_eq!(me.observe(seen("other", 2), Instant::now()), Step::Take);
    assert_eq!(me.observe(seen("me", 3), Instant::now()), Step::Renew);
    assert_eq!(me.observe(seen("other", 4), Instant::now()), Step::Wait);
    assert_eq!(me.observe(seen("", 5), Instant::now()), Step::Take);
}

/// Two replicas and one Lease, in any order of their steps, with lost and delayed requests: the replicas never write at
/// the same time.
#[tokio::test(start_paused = true)]
async fn two_replicas_never_write_at_the_same_time() {
    // Ticks of a second. The answer to a request comes some ticks later, or never.
    let start = Instant::now();
    let at = |tick: u64| start + Duration::from_secs(tick);
    let mut seed = 1_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut changes = 0;
    for _ in 0..300 {
        let mut lease: Option<(String, u64)> = None;
        let mut replicas = ["a", "b"].map(|name| (name, Candidate::new(name), None::<Instant>, 0_u64));
        let mut last = None;
        for tick in 0..200_u64 {
            for (name, candidate, until, silent) in &mut replicas {
                if *silent > 0 {
                    *silent -= 1;
                    continue;
                }
                if random(20) == 0 {
                    // The replica is disconnected, or its host is paused.
                    *silent = random(30);
                    continue;
                }
                let now = at(tick);
                let seen = lease.as_ref().map(|(holder, version)| record(holder, *version));
                if candidate.observe(seen, now) == Step::Wait {
                    *until = None;
                    continue;
                }
                let version = lease.as_ref().map_or(1, |(_, version)| version + 1);
                lease = Some(((*name).to_owned(), version));
                candidate.observe(Some(record(name, version)), now);
                *until = Some(now + RENEW_DEADLINE);
            }
            let writers: Vec<_> = replicas
                .iter()
                .filter(|(_, _, until, _)| until.is_some_and(|until| at(tick) < until))
                .map(|(name, ..)| *name)
                .collect();
            assert!(writers.len() < 2, "tick {tick}");
            if let [writer] = writers[..]
                && last != Some(writer)
            {
                changes += 1;
                last = Some(writer);
            }
        }
    }
    assert!(changes > 300, "the lease changes hands: {changes}");
}
