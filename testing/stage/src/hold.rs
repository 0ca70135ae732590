//! Watches that lag.

use axum::http::Request;
use kube::{Client, client::Body};
use tokio::sync::watch;
use tower::service_fn;

/// Holds the watches of a resource until it is released: they report no event meanwhile, and lists are answered. Clones
/// hold and release together.
#[derive(Clone, Debug)]
pub struct Hold {
    resource: &'static str,
    released: watch::Sender<bool>,
}

impl Hold {
    /// Holds the watches of this resource, such as `configmaps`.
    pub fn watches_of(resource: &'static str) -> Self {
        Self {
            resource,
            released: watch::Sender::new(false),
        }
    }

    /// Lets the watches report their events.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// A client that sends its requests with `client`, and these watches only after the release.
    pub fn client(self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let service = service_fn(move |request: Request<Body>| {
            let uri = request.uri();
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            let is_held = is_watch && uri.path().rsplit('/').next() == Some(self.resource);
            let (client, mut released) = (client.clone(), self.released.subscribe());
            async move {
                if is_held {
                    // An error means that every `Hold` is gone: the test is over.
                    let _ = released.wait_for(|released| *released).await;
                }
                client.send(request).await
            }
        });
        Client::new(service, namespace)
    }
}
