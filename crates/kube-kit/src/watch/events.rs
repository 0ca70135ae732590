//! The events of a kind: a paginated list, then a watch from there, without end.
//!
//! The client library's watcher does the same, but hides the version of its list and the bookmarks. The
//! [store](super::Store) needs both to know which of its own writes the watch has passed.

use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher::Error;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

/// Maximum silence of a watch. The API server ends each watch after 290 s, so a connection with a longer silence is
/// dead.
const SILENCE: Duration = Duration::from_secs(295);

/// An event of a kind.
#[derive(Debug)]
pub(super) enum Event<K> {
    /// A list starts.
    Init,
    /// An object of the list.
    InitApply(K),
    /// The list is complete, as of this version.
    InitDone(String),
    /// The API server has accepted the watch.
    Started,
    /// An object is new or different.
    Apply(K),
    /// An object is gone.
    Delete(K),
    /// The watch has reported every event up to this version.
    Bookmark(String),
}

/// Lists and watches until it is dropped. After an error the stream resumes when it is polled again; the reader decides
/// on the delay.
pub(super) fn events<K>(
    api: Api<K>,
    list: ListParams,
    watch: WatchParams,
) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let source = Source { api, list, watch };
    stream::unfold((source, State::Empty), |(source, mut state)| async move {
        loop {
            let (event, next) = source.step(state).await;
            state = next;
            if let Some(event) = event {
                return Some((event, (source, state)));
            }
        }
    })
}

struct Source<K> {
    api: Api<K>,
    list: ListParams,
    watch: WatchParams,
}

enum State<K> {
    Empty,
    /// Objects of a page, and the rest of the list.
    Listing(VecDeque<K>, Rest),
    /// The list is complete, as of this version.
    Listed(String),
    /// The version of the last event, and the stream of the next ones.
    Watching(String, BoxStream<'static, kube::Result<WatchEvent<K>>>),
}

/// The rest of a list after a page.
enum Rest {
    /// Another page, by its token; the first one has none.
    Page(Option<String>),
    /// The end of the list, with its version.
    End(String),
}

impl<K> Source<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn step(&self, state: State<K>) -> (Option<Result<Event<K>, Error>>, State<K>) {
        match state {
            State::Empty => (
                Some(Ok(Event::Init)),
                State::Listing(VecDeque::new(), Rest::Page(None)),
            ),
            State::Listing(mut objects, rest) => match (objects.pop_front(), rest) {
                (Some(object), rest) => (Some(Ok(Event::InitApply(object))), State::Listing(objects, rest)),
                (None, Rest::End(version)) => {
                    (Some(Ok(Event::InitDone(version.clone()))), State::Listed(version))
                }
                (None, Rest::Page(token)) => match self.page(token).await {
                    Ok((objects, rest)) => (None, State::Listing(objects, rest)),
                    Err(error) => (Some(Err(error)), State::Empty),
                },
            },
            State::Listed(version) => match self.api.watch(&self.watch, &version).await {
                Ok(events) => (Some(Ok(Event::Started)), State::Watching(version, events.boxed())),
                Err(error) => (Some(Err(Error::WatchStartFailed(error))), State::Listed(version)),
            },
            State::Watching(version, mut events) => {
                match tokio::time::timeout(SILENCE, events.next()).await {
                    Ok(Some(Ok(event))) => follow(event, version, events),
                    Ok(Some(Err(error))) => (
                        Some(Err(Error::WatchFailed(error))),
                        State::Watching(version, events),
                    ),
                    Ok(None) | Err(_) => (None, State::Listed(version)),
                }
            }
        }
    }

    async fn page(&self, token: Option<String>) -> Result<(VecDeque<K>, Rest), Error> {
        let parameters = ListParams {
            continue_token: token,
            ..self.list.clone()
        };
        let list = self.api.list(&parameters).await;
        let list = list.map_err(Error::InitialListFailed)?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let rest = match given(list.metadata.continue_) {
            Some(token) => Rest::Page(Some(token)),
            None => Rest::End(given(list.metadata.resource_version).ok_or(Error::NoResourceVersion)?),
        };
        Ok((list.items.into(), rest))
    }
}

fn follow<K: Resource>(
    event: WatchEvent<K>,
    version: String,
    events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
) -> (Option<Result<Event<K>, Error>>, State<K>) {
    let (event, version) = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            let version = object.resource_version();
            (Event::Apply(object), version)
        }
        WatchEvent::Deleted(object) => {
            let version = object.resource_version();
            (Event::Delete(object), version)
        }
        WatchEvent::Bookmark(bookmark) => {
            let version = bookmark.metadata.resource_version;
            (Event::Bookmark(version.clone()), Some(version))
        }
        WatchEvent::Error(status) => {
            // The version is too old: list again.
            let next = match status.code {
                410 => State::Empty,
                _ => State::Watching(version, events),
            };
            return (Some(Err(Error::WatchError(status))), next);
        }
    };
    match version.filter(|version| !version.is_empty()) {
        Some(version) => (Some(Ok(event)), State::Watching(version, events)),
        None => (Some(Err(Error::NoResourceVersion)), State::Empty),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;
    use crate::watch::DeserializeGuard;
    use axum::http::{Request, Response, StatusCode};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};
    use tower::service_fn;

    /// Returns these answers in turn, then none; records the requests.
    fn server(answers: &[(u16, &str)]) -> (Client, Arc<Mutex<Vec<String>>>) {
        let answers: VecDeque<(u16, String)> = answers
            .iter()
            .map(|(code, body)| (*code, (*body).to_owned()))
            .collect();
        let (answers, asked) = (Arc::new(Mutex::new(answers)), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            log.lock().unwrap().push(request.uri().to_string());
            let answer = answers.lock().unwrap().pop_front();
            async move {
                let Some((code, body)) = answer else {
                    return std::future::pending().await;
                };
                let mut response = Response::new(axum::body::Body::from(body));
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        (Client::new(service, "default"), asked)
    }

    async fn seen(client: Client, count: usize) -> Vec<String> {
        let api: Api<DeserializeGuard<ConfigMap>> = Api::all(client);
        let options = Options::all().labels("a=b");
        let events = events(api, options.list(), options.watch());
        let name = |object: &DeserializeGuard<ConfigMap>| object.name_any();
        let text = events.map(|event| match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(object)) => format!("has {}", name(&object)),
            Ok(Event::InitDone(version)) => format!("listed {version}"),
            Ok(Event::Started) => "started".to_owned(),
            Ok(Event::Apply(object)) => format!("applied {}", name(&object)),
            Ok(Event::Delete(object)) => format!("deleted {}", name(&object)),
            Ok(Event::Bookmark(version)) => format!("bookmark {version}"),
            Err(error) => format!("error {error}"),
        });
        text.take(count).collect().await
    }

    const FIRST_PAGE: &str = r#"{"apiVersion": "v1", "kind": "ConfigMapList",
        "metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]}"#;
    const LAST_PAGE: &str = r#"{"apiVersion": "v1", "kind": "ConfigMapList",
        "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}"#;

    #[tokio::test]
    async fn events_have_version_of_list_and_bookmarks() {
        let lines = [
            r#"{"type": "ADDED", "object": {"metadata": {"name": "c", "resourceVersion": "8"}}}"#,
            r#"{"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "11"}}}"#,
            r#"{"type": "DELETED", "object": {"metadata": {"name": "c", "resourceVersion": "12"}}}"#,
        ];
        let lines = lines.join("\n") + "\n";
        let (client, asked) = server(&[(200, FIRST_PAGE), (200, LAST_PAGE), (200, &lines), (200, "")]);
        let expected = [
            "init",
            "has a",
            "has b",
            "listed 7",
            "started",
            "applied c",
            "bookmark 11",
            "deleted c",
            // The API server has ended the watch.
            "started",
        ];
        assert_eq!(seen(client, expected.len()).await, expected);
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked.len(), 4, "{asked:#?}");
        for (request, parts) in asked.iter().zip([
            &["labelSelector=a%3Db", "limit=50"][..],
            &["continue=more"][..],
            &["watch=true", "resourceVersion=7", "allowWatchBookmarks=true"][..],
            &["watch=true", "resourceVersion=12"][..],
        ]) {
            for part in parts {
                assert!(request.contains(part), "{part} is not in {request}");
            }
        }
    }

    #[tokio::test]
    async fn events_after_expired_version_start_with_list() {
        let gone = r#"{"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410}}"#;
        let gone = format!("{gone}\n");
        let (client, _) = server(&[(200, LAST_PAGE), (200, &gone), (200, LAST_PAGE)]);
        let seen = seen(client, 8).await;
        assert!(seen[4].starts_with("error "), "{seen:?}");
        assert_eq!(seen[5..], ["init", "has b", "listed 7"]);
    }
}
