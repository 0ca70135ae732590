//! Watches of objects, with the time of arrival of each event.

use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use cluster::{Kubectl, run};
use serde_json::{Deserializer, Value};

use super::super::TIMEOUT;

/// A watch of kubectl. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    kubectl: Child,
    events: Receiver<(Instant, Value)>,
}

impl Watch {
    /// Starts a watch of the objects that the arguments of `kubectl get` select. Each object is an event at first.
    ///
    /// Select one object by a field selector, not by its name: with a name, kubectl misses the events between its first
    /// read and its watch.
    pub(super) fn start(kubectl: &Kubectl, args: &[&str]) -> anyhow::Result<Self> {
        let mut command = kubectl.command(["get", "--watch", "--output-watch-events", "--output=json"]);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run `{}`", run::shown(&command)))?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let events = Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
            for event in events.map_while(Result::ok) {
                if sender.send((Instant::now(), event)).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            kubectl: child,
            events,
        })
    }

    /// Waits for an event that `accepts` accepts, and returns its time of arrival. Earlier events are dropped.
    pub(super) fn until(
        &self,
        what: &str,
        mut accepts: impl FnMut(&Value) -> bool,
    ) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left);
            let (at, event) = event.with_context(|| format!("no event of the watch shows {what}"))?;
            if accepts(&event) {
                return Ok(at);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // kubectl may have ended.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
