//! The connection between the controller and the API server. A test can disturb it.

use axum::http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tower::Service;
use tower::layer::layer_fn;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Judge = Box<dyn FnMut(&Method, &str) -> Fate + Send>;

/// The fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is answered.
    Answered,
    /// It does not arrive.
    Lost,
    /// It arrives, and the answer does not.
    AnswerLost,
}

/// Judges each request of the controller, by method and path. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Way(Arc<Mutex<Option<Judge>>>);

impl Way {
    /// From now on `judge` decides the fate of requests.
    pub(crate) fn is(&self, judge: impl FnMut(&Method, &str) -> Fate + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(judge));
    }

    /// From now on every request succeeds.
    pub(crate) fn is_good(&self) {
        *self.0.lock().unwrap() = None;
    }

    /// A client over this connection.
    pub(crate) fn client(&self, config: Config) -> Client {
        let way = self.clone();
        let layer = layer_fn(move |inner| OnTheWay {
            inner,
            way: way.clone(),
        });
        ClientBuilder::try_from(config)
            .unwrap()
            .with_layer(&layer)
            .build()
    }
}

struct OnTheWay<S> {
    inner: S,
    way: Way,
}

impl<S> Service<Request<Body>> for OnTheWay<S>
where
    S: Service<Request<Body>, Error = BoxError>,
    S::Response: Send,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let judge = self.way.0.lock().unwrap().take();
        let fate = judge.map_or(Fate::Answered, |mut judge| {
            let fate = judge(request.method(), request.uri().path());
            // Unless the test has changed its judge meanwhile.
            self.way.0.lock().unwrap().get_or_insert(judge);
            fate
        });
        if fate == Fate::Lost {
            return Box::pin(async { Err("the way is bad".into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            match fate {
                Fate::Answered => Ok(answer),
                _ => Err("the answer is lost".into()),
            }
        })
    }
}
