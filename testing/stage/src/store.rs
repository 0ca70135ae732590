//! The store of an API server: its etcd.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use axum::http::Request;
use cluster::ApiServer;
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::base64;

/// Objects of the API server itself, which expire.
const OWN: [&str; 2] = [
    "/registry/leases/kube-system/apiserver-",
    "/registry/masterleases/",
];
/// Maximum number of deletions in one transaction of etcd. Its default limit is 128.
const TOGETHER: usize = 100;

/// A client of an etcd.
pub(crate) struct Store {
    client: Client,
    runtime: Runtime,
}

/// The objects of a store at some time, by key.
pub(crate) struct Snapshot(BTreeMap<Vec<u8>, Saved>);

#[derive(Debug)]
struct Saved {
    /// The store's revision when the object was written.
    revision: String,
    /// The object, in base64.
    object: String,
}

/// Answer to a range request. The gateway omits empty fields.
#[derive(Debug, Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Debug, Deserialize)]
struct Pair {
    key: ByteString,
    mod_revision: String,
    #[serde(default)]
    value: String,
}

/// Answer to a write.
#[derive(Debug, Deserialize)]
struct Written {
    header: Header,
}

#[derive(Debug, Deserialize)]
struct Header {
    revision: String,
}

impl Snapshot {
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key.as_bytes())
    }
}

impl Store {
    /// Returns a client of the store of a server.
    pub(crate) fn of(server: &ApiServer) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let url = server.store_url().parse().expect("a URL");
        let client = runtime.block_on(async { Client::try_from(Config::new(url)) });
        Self {
            client: client.expect("a client"),
            runtime,
        }
    }

    /// Returns the current objects.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let pairs = self.range(false).into_iter().map(|pair| {
            let saved = Saved {
                revision: pair.mod_revision,
                object: pair.value,
            };
            (pair.key.0, saved)
        });
        Snapshot(pairs.collect())
    }

    /// Restores the objects of a snapshot and deletes all others. Returns the keys of the restored and deleted
    /// objects. The API server learns of these changes by its watches, like those of another API server.
    pub(crate) fn restore(&self, snapshot: &mut Snapshot) -> BTreeSet<String> {
        let current = self.range(true).into_iter();
        let current: BTreeMap<_, _> = current.map(|pair| (pair.key.0, pair.mod_revision)).collect();
        let mut changed = BTreeSet::new();
        let new = current.keys().filter(|key| !snapshot.0.contains_key(*key));
        let new: Vec<_> = new.collect();
        for keys in new.chunks(TOGETHER) {
            let deletion = |key: &&Vec<u8>| json!({ "request_delete_range": { "key": base64(key) } });
            let deletions: Vec<_> = keys.iter().map(deletion).collect();
            let _: Written = self.send("txn", &json!({ "success": deletions }));
        }
        changed.extend(new.into_iter().map(|key| text(key)));
        for (key, saved) in &mut snapshot.0 {
            if current.get(key) == Some(&saved.revision) {
                continue;
            }
            let written: Written = self.send("put", &json!({ "key": base64(key), "value": saved.object }));
            saved.revision = written.header.revision;
            changed.insert(text(key));
        }
        changed
    }

    fn range(&self, only_keys: bool) -> Vec<Pair> {
        let all = json!({ "key": base64(b"/registry/"), "range_end": base64(b"/registry0"), "keys_only": only_keys });
        let mut pairs = self.send::<Range>("range", &all).kvs;
        pairs.retain(|pair| !OWN.iter().any(|prefix| pair.key.0.starts_with(prefix.as_bytes())));
        pairs
    }

    /// Sends a request to the JSON gateway of etcd's API.
    fn send<T: DeserializeOwned + Debug>(&self, method: &str, body: &Value) -> T {
        let request = Request::post(format!("/v3/kv/{method}")).body(body.to_string().into_bytes());
        let answer = self.client.request(request.expect("a request"));
        self.runtime.block_on(answer).expect("an answer of etcd")
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
