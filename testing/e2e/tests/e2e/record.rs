//! A record of the operator's reports, and of the workloads that they concern.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use cluster::Kubectl;
use e2e::OPERATOR_NAMESPACE;
use e2e::availability::{Event, News};
use serde_json::Value;

/// Watches during a test. They are not restarted: a record ends with the first watch that ends, for instance when a
/// test kills the API server.
pub struct Record {
    began: Instant,
    watches: Vec<Child>,
    readers: Vec<JoinHandle<()>>,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    events: Vec<Event>,
    ended: bool,
}

impl Record {
    pub fn start(kubectl: &Kubectl) -> Self {
        let began = Instant::now();
        let mut record = Self {
            began,
            watches: Vec::new(),
            readers: Vec::new(),
            notes: Arc::default(),
        };
        let workloads = format!("/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}");
        for path in [
            "/apis/networkaddonsoperator.network.kubevirt.io/v1/networkaddonsconfigs".to_owned(),
            format!("{workloads}/daemonsets"),
            format!("{workloads}/deployments"),
        ] {
            let mut command = kubectl.command(["get", "--raw", &format!("{path}?watch=1")]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut watch = command.spawn().expect("kubectl");
            let output = watch.stdout.take().expect("its output");
            record.watches.push(watch);
            let notes = Arc::clone(&record.notes);
            record
                .readers
                .push(thread::spawn(move || read(output, began, &notes)));
        }
        record
    }

    /// True if it contains the configuration.
    pub fn has_begun(&self) -> bool {
        let is_configuration = |event: &Event| matches!(event.news, News::Configuration(_));
        lock(&self.notes).events.iter().any(is_configuration)
    }

    /// Records that the test damages a part now. The entry follows all earlier events of the watches.
    pub fn disturb(&self) {
        let mut notes = lock(&self.notes);
        let revisions = notes.events.iter().map(|event| event.revision);
        let revision = revisions.max().unwrap_or_default();
        notes.events.push(Event {
            revision,
            at: self.began.elapsed(),
            news: News::Disturbance,
        });
    }

    /// Ends the record, and returns its events.
    pub fn end(&mut self) -> Vec<Event> {
        self.stop();
        std::mem::take(&mut lock(&self.notes).events)
    }

    fn stop(&mut self) {
        lock(&self.notes).ended = true;
        for watch in &mut self.watches {
            let _ = watch.kill();
            let _ = watch.wait();
        }
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Records events, one per line, until the watch or the record ends.
fn read(output: ChildStdout, began: Instant, notes: &Mutex<Notes>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let event = serde_json::from_str::<Value>(&line).ok();
        let event = event.and_then(|event| Event::read(began.elapsed(), &event));
        let mut notes = lock(notes);
        if notes.ended {
            return;
        }
        notes.events.extend(event);
    }
    let mut notes = lock(notes);
    if !std::mem::replace(&mut notes.ended, true) {
        let seconds = began.elapsed().as_secs();
        println!("the record of Available ends after {seconds} s, with its first watch that ended");
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}
