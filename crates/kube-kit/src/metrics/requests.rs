//! Metrics of requests to the API server.

use std::task::{Context, Poll};

use axum::http::{Request, Response};
use futures::future::BoxFuture;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tower::Service;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    code: String,
    method: String,
    host: String,
}

/// Value of the code label for a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Requests of the process to API servers, counted when their answers start.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    total: Family<Labels, Counter>,
}

impl Requests {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host",
            self.total.clone(),
        );
    }

    /// Wraps a service so that its requests to `host` are counted.
    pub(crate) fn count<S>(&self, host: &str, service: S) -> Counted<S> {
        Counted {
            service,
            host: host.to_owned(),
            metrics: self.clone(),
        }
    }

    fn answered(&self, code: Option<u16>, method: String, host: String) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.total.get_or_create(&Labels { code, method, host }).inc();
    }
}

/// See [`Requests::count`].
pub(crate) struct Counted<S> {
    service: S,
    host: String,
    metrics: Requests,
}

impl<S, In, Out> Service<Request<In>> for Counted<S>
where
    S: Service<Request<In>, Response = Response<Out>>,
    S::Future: Send + 'static,
    S::Error: Send,
    Out: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let (metrics, host) = (self.metrics.clone(), self.host.clone());
        let method = request.method().to_string();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(|response| response.status().as_u16());
            metrics.answered(code, method, host);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Ready, ready};

    /// Answers with the status code in the path, and fails without one.
    struct Server;

    impl Service<Request<()>> for Server {
        type Response = Response<()>;
        type Error = &'static str;
        type Future = Ready<Result<Self::Response, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            let code: Option<u16> = request.uri().path()[1..].parse().ok();
            let answer = |code| Response::builder().status(code).body(()).unwrap();
            ready(code.map(answer).ok_or("gone"))
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_code_method_and_host() {
        let (metrics, mut registry) = (Requests::default(), Registry::default());
        metrics.register(&mut registry);
        let mut service = metrics.count("10.0.0.1:443", Server);
        for (method, path) in [
            ("GET", "/200"),
            ("GET", "/200"),
            ("PUT", "/409"),
            ("GET", "/none"),
        ] {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            let _ = service.call(request).await;
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for (code, method, count) in [("200", "GET", 2), ("409", "PUT", 1), ("<error>", "GET", 1)] {
            let line = format!(
                r#"rest_client_requests_total{{code="{code}",method="{method}",host="10.0.0.1:443"}} {count}"#
            );
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
