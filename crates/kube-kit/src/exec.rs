//! Runs programs in containers of pods, through the API server.

use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::AttachParams;
use tokio::io::{self, AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

/// Time for the rest of the output after the connection was lost.
const REST: Duration = Duration::from_secs(1);

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub name: String,
}

/// Output of a program.
#[derive(Debug)]
pub struct Output {
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
}

impl Output {
    /// The cause of missing or invalid standard output: standard error, else the status of the program.
    pub fn cause(&self) -> String {
        let stderr = String::from_utf8_lossy(&self.stderr);
        if !stderr.trim().is_empty() {
            return stderr.trim().to_owned();
        }
        let message = self.status.as_ref().and_then(|status| status.message.clone());
        message.unwrap_or_else(|| "no output".to_owned())
    }
}

/// Runs a program without input until it ends, and returns its output: at most `longest` bytes of each stream. A program
/// that fails is no error. The caller sets a deadline.
///
/// # Errors
/// If the program cannot be started.
pub async fn run(
    pods: &Api<Pod>,
    container: &Container,
    command: Vec<String>,
    longest: u64,
) -> kube::Result<Output> {
    let params = AttachParams::default()
        .container(container.name.clone())
        .stdin(false)
        .stdout(true)
        .stderr(true);
    let mut process = pods.exec(&container.pod, command, &params).await?;
    let (stdout, stderr, status) = (process.stdout(), process.stderr(), process.take_status());
    let mut streams = pin!(async { tokio::join!(head(stdout, longest), head(stderr, longest)) });
    let mut status = pin!(async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    });
    let ((stdout, stderr), status) = tokio::select! {
        streams = &mut streams => (streams, status.await),
        status = &mut status => match status {
            Some(status) => (streams.await, Some(status)),
            // The connection is lost. The streams do not end then.
            None => (timeout(REST, streams).await.unwrap_or_default(), None),
        },
    };
    Ok(Output {
        stdout,
        stderr,
        status,
    })
}

/// Reads a stream to its end, and returns its first bytes.
async fn head(stream: Option<impl AsyncRead + Unpin>, longest: u64) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(mut stream) = stream {
        // An error ends the output.
        let _ = (&mut stream).take(longest).read_to_end(&mut read).await;
        // Unread output would keep the status away.
        let _ = io::copy(&mut stream, &mut io::sink()).await;
    }
    read
}

/// True if the user may not run programs in this pod.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn head_of_long_output_is_kept_and_the_rest_is_read() {
        let (mut output, stream) = io::duplex(4);
        let read = tokio::spawn(head(Some(stream), 6));
        output
            .write_all(b"0123456789abcdef")
            .await
            .expect("all of it is read");
        drop(output);
        assert_eq!(read.await.expect("the head"), b"012345");
    }

    #[test]
    fn cause_of_missing_output_is_stderr_of_program() {
        let output = |stderr: &str, message: Option<&str>| Output {
            stdout: Vec::new(),
            stderr: stderr.into(),
            status: message.map(|message| Status {
                message: Some(message.into()),
                ..Status::default()
            }),
        };
        assert_eq!(
            output("error: not root\n", Some("exit 2")).cause(),
            "error: not root"
        );
        assert_eq!(output("", Some("no such file")).cause(), "no such file");
        assert_eq!(output("", None).cause(), "no output");
    }
}
