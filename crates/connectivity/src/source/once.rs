//! `weft check-endpoints --once`: checks the given endpoints once, for `weft network check --matrix` and for people.

use kube_kit::duration::GoDuration;
use serde::{Deserialize, Serialize};

use crate::dial::{self, Endpoint};

/// Maximum number of endpoints that are checked at a time.
pub(crate) const AT_A_TIME: usize = 100;

/// The result of an endpoint: a line of JSON.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Line {
    /// Host and port.
    pub(crate) endpoint: String,
    /// Time that the connection took, as a Go duration.
    pub(crate) latency: String,
    /// `None` if the endpoint is reachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

impl Line {
    async fn of(endpoint: String) -> Self {
        let checked = Endpoint {
            target: &endpoint,
            address: &endpoint,
        };
        let outcome = dial::check(checked, None).await;
        let message = &outcome.last.message;
        let cause = message.strip_prefix(&format!("{endpoint}: ")).unwrap_or(message);
        Self {
            latency: GoDuration::from(outcome.last.latency).to_string(),
            failure: (!outcome.success()).then(|| cause.to_owned()),
            endpoint,
        }
    }
}

/// Checks the endpoints, and returns their results in the same order.
///
/// # Errors
/// If a result cannot be encoded.
pub(super) async fn check(endpoints: &[String]) -> serde_json::Result<String> {
    let mut text = String::new();
    for group in endpoints.chunks(AT_A_TIME) {
        let checks: Vec<_> = group
            .iter()
            .map(|endpoint| tokio::spawn(Line::of(endpoint.clone())))
            .collect();
        for check in checks {
            // No task is aborted, and a panic ends the process.
            if let Ok(line) = check.await {
                text += &serde_json::to_string(&line)?;
                text.push('\n');
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn endpoints_are_printed_in_their_order_with_latency_or_cause() {
        // cluster-network#208
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let open = listener.local_addr().expect("an address").to_string();
        let _answers = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let closed = format!("127.0.0.1:{}", cluster::free_port().expect("a port"));
        let text = check(&[closed.clone(), open.clone()]).await.expect("lines");
        let lines: Vec<Line> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("a result"))
            .collect();
        let endpoints: Vec<_> = lines.iter().map(|line| &line.endpoint).collect();
        assert_eq!(endpoints, [&closed, &open], "{text}");
        let cause = format!(
            "failed to establish a TCP connection to {closed}: dial tcp {closed}: connect: connection refused"
        );
        assert_eq!(lines[0].failure, Some(cause));
        assert_eq!(lines[1].failure, None);
        assert!(lines[1].latency.ends_with('s'), "{text}");
    }
}
