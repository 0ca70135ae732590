//! The log of a pod that is about to end, which cannot be read afterwards.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cluster::{Kubectl, wait};

const DEADLINE: Duration = Duration::from_secs(60);

/// Follows a log from its start until the container ends.
pub struct Log {
    follower: Child,
    reader: Option<JoinHandle<String>>,
}

impl Log {
    pub fn follow(kubectl: &Kubectl, namespace: &str, pod: &str) -> Self {
        let mut command = kubectl.command(["--namespace", namespace, "logs", "--follow", pod]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut follower = command.spawn().expect("kubectl");
        let mut output = follower.stdout.take().expect("its output");
        let reader = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = output.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self {
            follower,
            reader: Some(reader),
        }
    }

    /// Returns the whole log of an ended container.
    pub fn end(mut self) -> String {
        let follower = &mut self.follower;
        let ended = wait::until("the end of the log", DEADLINE, || match follower.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        ended.unwrap_or_else(|error| panic!("{error}"));
        let reader = self.reader.take().expect("it ends once");
        reader.join().expect("the reader")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = self.follower.kill();
        let _ = self.follower.wait();
    }
}
