//! The bridges of Open vSwitch, from the updates of its database.

use super::Settings;
use crate::marker::FIRST_PAUSE;
use crate::source::Source;
use anyhow::Context;
use linux::backoff::Backoff;
use linux::files::is_deleted_directory;
use ovsdb::{Address, Client, Error};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// The table and its column.
const TABLE: &str = "Bridge";
const NAME: &str = "name";

/// Deadline of a connection and of each request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time without a message after which the server is probed.
const SILENCE: Duration = Duration::from_mins(1);

/// The bridges of a database. A thread follows them, and ends within a minute after this is dropped.
#[derive(Debug)]
pub struct Bridges {
    names: watch::Receiver<Option<BTreeSet<String>>>,
}

impl Bridges {
    /// Starts the thread. The bridges are unknown until it has connected.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn follow(settings: &Settings) -> anyhow::Result<Self> {
        let (seen, names) = watch::channel(None);
        let (address, longest) = (settings.socket.clone(), settings.update_interval);
        thread::Builder::new()
            .name("ovsdb".to_owned())
            .spawn(move || follow(&address, longest, &seen))
            .context("cannot start a thread that follows the database of Open vSwitch")?;
        Ok(Self { names })
    }
}

impl Source for Bridges {
    fn names(&self) -> Option<BTreeSet<String>> {
        self.names.borrow().clone()
    }

    fn list(&mut self) -> anyhow::Result<()> {
        // The server loses no update: it closes the connection instead, and the next one starts with all rows.
        Ok(())
    }

    async fn changed(&mut self) -> anyhow::Result<()> {
        let changed = self.names.changed().await;
        changed.context("the thread that follows the database of Open vSwitch has ended")
    }
}

/// Connects with back-off, until there is no receiver any more, or the directory of the socket was deleted.
fn follow(address: &Address, longest: Duration, seen: &watch::Sender<Option<BTreeSet<String>>>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, longest);
    let mut logged = String::new();
    while !seen.is_closed() {
        let mut connected = || {
            tracing::info!(%address, "following the bridges of Open vSwitch");
            backoff.reset();
            logged.clear();
        };
        if let Err(error) = session(address, seen, &mut connected) {
            let error = error.to_string();
            if is_deleted(address) {
                tracing::error!(
                    error,
                    %address,
                    "the directory of the socket was deleted on the node, and this container never sees the one that \
                     replaces it: the marker ends, so that kubelet starts it again with the present directory"
                );
                return;
            }
            // A repeated failure is logged once.
            if error != logged {
                tracing::warn!(
                    error,
                    "cannot follow the bridges of Open vSwitch, the node keeps what it advertises; \
                     check that ovsdb-server runs on this node and that its socket is mounted"
                );
                logged = error;
            }
        }
        thread::sleep(backoff.next_delay());
    }
}

/// True if the directory of the socket was deleted while it is mounted here. Some services of Open vSwitch delete and
/// create it at each restart.
fn is_deleted(address: &Address) -> bool {
    match address {
        Address::Unix(socket) => socket.parent().is_some_and(is_deleted_directory),
        Address::Tcp(_) => false,
    }
}

/// Follows the bridges over one connection, until it fails or there is no receiver any more.
fn session(
    address: &Address,
    seen: &watch::Sender<Option<BTreeSet<String>>>,
    connected: &mut dyn FnMut(),
) -> Result<(), Error> {
    let mut client = Client::connect(address, TIMEOUT)?;
    let columns = json!({TABLE: {"columns": [NAME]}});
    let mut known = Known::default();
    known.follow(&client.monitor(columns)?);
    connected();
    while !seen.is_closed() {
        let names = Some(known.names());
        seen.send_if_modified(|seen| {
            let is_new = *seen != names;
            *seen = names;
            is_new
        });
        match client.next_update(Some(SILENCE))? {
            Some(update) => known.follow(&update),
            None => client.echo()?,
        }
    }
    Ok(())
}

/// Names of bridges by row.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known(BTreeMap<String, String>);

impl Known {
    /// Applies the rows of the start, or of an update.
    fn follow(&mut self, update: &Value) {
        for (row, change) in update.get(TABLE).and_then(Value::as_object).into_iter().flatten() {
            match change.get("new").and_then(|columns| columns.get(NAME)?.as_str()) {
                Some(name) => self.0.insert(row.clone(), name.to_owned()),
                None => self.0.remove(row),
            };
        }
    }

    fn names(&self) -> BTreeSet<String> {
        self.0.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsRawFd as _;

    #[tokio::test]
    async fn follow_ends_once_the_directory_of_the_socket_is_deleted() {
        // cni-plugins#65 (the directory is deleted)
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("openvswitch");
        fs::create_dir(&dir).expect("a directory");
        let open = File::open(&dir).expect("opened");
        let address: Address = format!("/proc/self/fd/{}/db.sock", open.as_raw_fd())
            .parse()
            .expect("an address");
        let (seen, mut names) = watch::channel(None);
        let of_thread = address.clone();
        thread::spawn(move || follow(&of_thread, Duration::from_millis(10), &seen));
        assert!(!is_deleted(&address), "a missing socket is awaited");
        let waited = tokio::time::timeout(Duration::from_millis(100), names.changed()).await;
        assert!(waited.is_err(), "a missing socket is awaited");
        fs::remove_dir(&dir).expect("removed");
        fs::create_dir(&dir).expect("a directory");
        let ended = tokio::time::timeout(Duration::from_mins(1), names.changed()).await;
        ended.expect("an end").expect_err("the thread has ended");
    }

    fn names(known: &Known) -> Vec<String> {
        known.names().into_iter().collect()
    }

    #[test]
    fn updates_add_rename_and_remove_bridges() {
        let mut known = Known::default();
        known.follow(&json!({"Bridge": {"a": {"new": {"name": "br1"}}, "b": {"new": {"name": "br2"}}}}));
        assert_eq!(names(&known), ["br1", "br2"]);
        known.follow(&json!({"Bridge": {"a": {"old": {"name": "br1"}, "new": {"name": "br3"}}}}));
        assert_eq!(names(&known), ["br2", "br3"]);
        known.follow(&json!({"Bridge": {"b": {"old": {"name": "br2"}}}}));
        assert_eq!(names(&known), ["br3"]);
    }

    #[test]
    fn updates_without_bridges_change_nothing() {
        let mut known = Known::default();
        known.follow(&json!({"Bridge": {"a": {"new": {"name": "br1"}}}}));
        for update in [
            json!({}),
            json!({"Port": {"a": {}}}),
            json!({"Bridge": []}),
            json!(1),
        ] {
            known.follow(&update);
            assert_eq!(names(&known), ["br1"]);
        }
    }
}
