//! The administrator of an API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use axum::http::{Method, Request as HttpRequest, StatusCode, header};
use cluster::{ApiServer, Kubectl};
use kube::{Client, client::Body};
use kube_kit::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::{Line, Task, config, until};

/// A client of an API server with the rights of an administrator. Objects are named by their paths, such as
/// `/api/v1/namespaces/default/pods/p`, and collections by the path without the name.
pub struct Admin {
    kubectl: Kubectl,
    audit_log: PathBuf,
    /// Size of the audit log when this value was made: the log of a reused server is long.
    audit_start: u64,
    client: Client,
    runtime: Runtime,
}

/// The stage of the first entry of a write. Its effect is visible before its answer is logged.
const RECEIVED: &str = r#""stage":"RequestReceived""#;

/// Time after which a write without an answer counts as one that a test delays.
const HANGING: Duration = Duration::from_secs(10);

/// Finds the end of the answer that contains `mark`, and of the answers of all writes that were received before it.
/// `None` if an answer is missing. Unless `waits`, missing answers of writes do not count.
fn end_after(log: &str, mark: &str, waits: bool) -> Option<usize> {
    let id = |line: &'_ str| Some(line.split_once(r#""auditID":""#)?.1.split('"').next()?.to_owned());
    let (mut position, mut end) = (0, None);
    let mut open = BTreeSet::new();
    // The last line may be incomplete.
    for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        position += line.len();
        match (line.contains(RECEIVED), end) {
            (true, None) => open.extend(id(line)),
            (true, Some(_)) => {}
            (false, _) => {
                let is_awaited = id(line).is_some_and(|id| open.remove(&id));
                if line.contains(mark) || (end.is_some() && is_awaited) {
                    end = Some(position);
                }
            }
        }
    }
    end.filter(|_| open.is_empty() || !waits)
}

/// An answer of the API server.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: StatusCode,
    /// The body: an object, a list or a `Status`.
    pub object: Value,
    /// Texts of the warnings.
    pub warnings: Vec<String>,
}

/// A request in the audit log.
#[derive(Clone, Debug)]
pub struct Request {
    /// The verb, such as `list`.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// Status code of the answer.
    pub code: u64,
}

impl Admin {
    /// Returns the administrator of a server.
    pub fn of(server: &ApiServer) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        Self {
            kubectl: server.kubectl().clone(),
            audit_start: fs::metadata(server.audit_log()).map_or(0, |file| file.len()),
            audit_log: server.audit_log(),
            client: runtime.block_on(client(server.kubeconfig(), None)),
            runtime,
        }
    }

    /// Returns the administrator's kubectl.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Returns the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        self.kubectl.kubeconfig()
    }

    /// Runs a task beside the test, with a client of another account such as `system:serviceaccount:NAMESPACE:NAME`.
    /// The account has only the rights that the test grants.
    pub fn task_as<F: Future<Output = ()>>(
        &self,
        account: &str,
        work: impl FnOnce(Client, Shutdown) -> F + Send + 'static,
    ) -> Task {
        let (kubeconfig, account) = (self.kubeconfig().to_owned(), account.to_owned());
        Task::start(async move |shutdown| work(client(&kubeconfig, Some(&account)).await, shutdown).await)
    }

    /// Like [`task_as`](Self::task_as), with a client whose connections go through this line.
    pub fn task_through<F: Future<Output = ()>>(
        &self,
        line: &Line,
        account: &str,
        work: impl FnOnce(Client, Shutdown) -> F + Send + 'static,
    ) -> Task {
        let (kubeconfig, account) = (self.kubeconfig().to_owned(), account.to_owned());
        let url = line.url().parse().expect("a URL");
        Task::start(async move |shutdown| {
            let mut config = config(&kubeconfig, Some(&account)).await;
            config.cluster_url = url;
            work(Client::try_from(config).expect("a client"), shutdown).await;
        })
    }

    /// Sends a request. Patches are merge patches.
    pub fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = HttpRequest::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .body(Body::from(body))
            .expect("a request");
        self.runtime.block_on(async {
            let response = self.client.send(request).await.expect("an answer");
            let (head, body) = response.into_parts();
            let warnings = head.headers.get_all(header::WARNING).iter();
            let warnings = warnings.filter_map(|warning| warning_text(warning.to_str().ok()?));
            let bytes = body.collect_bytes().await.expect("an answer");
            Answer {
                status: head.status,
                object: serde_json::from_slice(&bytes).unwrap_or_default(),
                warnings: warnings.collect(),
            }
        })
    }

    /// Creates an object, and returns the stored object. A refusal fails the test.
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.send(Method::POST, path, Some(object)).accepted()
    }

    /// Creates or changes an object like `kubectl apply`.
    pub fn apply(&self, object: &Value) {
        let applied = self.kubectl.apply(&object.to_string());
        applied.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Creates or changes many objects like one `kubectl apply`, which costs as much as for one object.
    pub fn apply_all(&self, objects: &[Value]) {
        self.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }));
    }

    /// Creates a namespace with these labels.
    pub fn namespace(&self, name: &str, labels: &[(&str, &str)]) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
        });
        self.create("/api/v1/namespaces", &namespace);
    }

    /// Returns an object, or `None` if it is missing.
    pub fn get(&self, path: &str) -> Option<Value> {
        let answer = self.send(Method::GET, path, None);
        (answer.status != StatusCode::NOT_FOUND).then(|| answer.accepted())
    }

    /// Returns all objects of a collection.
    pub fn list(&self, path: &str) -> Vec<Value> {
        let list = self.send(Method::GET, path, None).accepted();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Applies a merge patch to an object.
    pub fn patch(&self, path: &str, patch: &Value) -> Answer {
        self.send(Method::PATCH, path, Some(patch))
    }

    /// Applies a merge patch to the status of an object, like a kubelet or a controller.
    pub fn report(&self, path: &str, status: &Value) -> Value {
        let patch = json!({ "status": status });
        self.patch(&format!("{path}/status"), &patch).accepted()
    }

    /// Deletes an object or a collection at once, without waiting for finalizers.
    pub fn delete(&self, path: &str) {
        let path = format!("{path}?gracePeriodSeconds=0");
        self.send(Method::DELETE, &path, None).accepted();
    }

    /// Waits until an object satisfies a condition. The condition gets `None` while the object is missing.
    #[track_caller]
    pub fn wait_for<T>(
        &self,
        what: &str,
        path: &str,
        mut condition: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        until(what, || {
            let object = self.get(path);
            condition(object.as_ref()).ok_or_else(|| format!("{object:#?}\n{:#?}", self.events("")))
        })
    }

    /// Waits until the API server serves a kind after the creation of its CRD.
    #[track_caller]
    pub fn wait_until_served(&self, path: &str) {
        until(path, || match self.send(Method::GET, path, None) {
            answer if answer.status == StatusCode::OK => Ok(()),
            answer => Err(format!("{answer:#?}")),
        });
    }

    /// Returns the events of a namespace, oldest first, in the form `Type Reason kind/name xCOUNT: message`. An empty
    /// namespace selects all events.
    pub fn events(&self, namespace: &str) -> Vec<String> {
        let mut events = self.list(&match namespace {
            "" => "/api/v1/events".to_owned(),
            name => format!("/api/v1/namespaces/{name}/events"),
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events.sort_by_key(|event| text(&event["metadata"]["creationTimestamp"]));
        let line = |event: &Value| {
            let about = &event["involvedObject"];
            format!(
                "{} {} {}/{} x{}: {}",
                text(&event["type"]),
                text(&event["reason"]),
                text(&about["kind"]),
                text(&about["name"]),
                event["count"],
                text(&event["message"])
            )
        };
        events.iter().map(line).collect()
    }

    /// Returns the current end of the audit log, after the answers of all writes whose effects are visible.
    pub fn mark(&self) -> u64 {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("/version?mark={}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.send(Method::GET, &unique, None);
        let hanging = Instant::now() + HANGING;
        until("the audit log", || {
            let log = self.audit_between(self.audit_start, u64::MAX);
            match end_after(&log, &format!("\"{unique}\""), Instant::now() < hanging) {
                Some(end) => Ok(self.audit_start + u64::try_from(end).unwrap_or_default()),
                None => Err(format!("no {unique} in it, or no answer of a write before it")),
            }
        })
    }

    /// Returns the audit log entries of answers since a [mark](Self::mark).
    pub fn entries_since(&self, mark: u64) -> Vec<Value> {
        let end = self.mark();
        let lines = self.audit_between(mark, end);
        let answers = lines.lines().filter(|line| !line.contains(RECEIVED));
        answers
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    fn audit_between(&self, start: u64, end: u64) -> String {
        let mut log = fs::File::open(&self.audit_log).expect("the audit log");
        log.seek(SeekFrom::Start(start)).expect("the start");
        let mut part = Vec::new();
        log.take(end.saturating_sub(start))
            .read_to_end(&mut part)
            .expect("the audit log");
        String::from_utf8_lossy(&part).into_owned()
    }

    /// Returns the requests of an account since a [mark](Self::mark), except watches.
    pub fn requests_of(&self, account: &str, mark: u64) -> Vec<Request> {
        let all = self.entries_since(mark).into_iter();
        let its = all.filter(|entry| entry["impersonatedUser"]["username"] == account);
        its.filter(|entry| entry["verb"] != "watch")
            .map(|entry| Request {
                verb: entry["verb"].as_str().unwrap_or_default().to_owned(),
                uri: entry["requestURI"].as_str().unwrap_or_default().to_owned(),
                code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
            })
            .collect()
    }
}

impl Answer {
    /// Returns the object of a successful answer.
    #[track_caller]
    pub fn accepted(self) -> Value {
        assert!(self.status.is_success(), "{}: {:#}", self.status, self.object);
        self.object
    }

    /// Returns the message of a refusal.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(!self.status.is_success(), "{}: {:#}", self.status, self.object);
        self.object["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// Returns a client of the administrator, or of an account that the administrator impersonates.
async fn client(kubeconfig: &Path, account: Option<&str>) -> Client {
    Client::try_from(config(kubeconfig, account).await).expect("a client")
}

/// Returns the text of a warning: `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?;
    serde_json::from_str(quoted).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(id: &str) -> String {
        format!("{{{RECEIVED},\"auditID\":\"{id}\"}}\n")
    }

    fn answered(id: &str, uri: &str) -> String {
        format!("{{\"stage\":\"ResponseComplete\",\"auditID\":\"{id}\",\"uri\":\"{uri}\"}}\n")
    }

    #[test]
    fn mark_is_after_the_answers_of_writes_that_were_received_before() {
        let before = received("a") + &received("b") + &answered("b", "/b") + &answered("m", "mark");
        let end = |log: &str, waits: bool| end_after(log, "mark", waits);
        assert_eq!(end(&before, true), None, "the answer of a is missing");
        assert_eq!(end(&before, false), Some(before.len()));
        let answer = answered("a", "/a");
        assert_eq!(
            end(&(before.clone() + answer.trim_end()), true),
            None,
            "an incomplete line"
        );
        let all = before.clone() + &received("later") + &answer;
        assert_eq!(
            end(&(all.clone() + &answered("later", "/later")), true),
            Some(all.len())
        );
        assert_eq!(end(&received("a"), false), None, "no mark");
    }
}
