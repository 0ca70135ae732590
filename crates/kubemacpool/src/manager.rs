//! The manager: starts its parts in order (kubemacpool §3.2).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use kube::Client;
use kube_kit::metrics::Requests;
use kube_kit::serve::Readiness;
use tokio::sync::Notify;

use crate::healing;
use crate::metrics::{Metrics, Serving};
use crate::names;
use crate::notices::Notices;
use crate::range_config::RangeConfig;
use crate::reviews;
use crate::server::Webhooks;
use crate::settings::Settings;
use crate::state::{self, Part, Shared, State};
use crate::watches::Core;

/// A configured manager that is not running yet.
pub struct Manager {
    settings: Settings,
    shared: Shared,
    metrics: Metrics,
}

impl Manager {
    /// Creates a manager without any observed objects.
    ///
    /// # Errors
    /// If the kernel's random numbers cannot be read.
    pub fn new(settings: Settings) -> anyhow::Result<Self> {
        let share = settings.share.of(&settings.range)?;
        let random = state::random().context("cannot read random bytes")?;
        let shared = Arc::new(Mutex::new(State::new(settings.range, share, random)));
        let source = Arc::clone(&shared);
        let metrics = Metrics::new(Arc::new(move || state::lock(&source).snapshot()));
        Ok(Self {
            settings,
            shared,
            metrics,
        })
    }

    /// Metrics of the client that the manager uses.
    pub fn requests(&self) -> &Requests {
        self.metrics.requests()
    }

    /// Starts watches and servers; reviews wait until the lists are complete.
    ///
    /// # Errors
    /// If an address is taken, or TLS cannot be set up.
    pub async fn start(self, client: Client) -> anyhow::Result<Running> {
        let Self {
            settings,
            shared,
            metrics,
        } = self;
        let Settings {
            namespace,
            share,
            wait_time,
            reject_duplicates,
            metrics: bind,
            webhooks,
            pod: _,
            range: _,
        } = settings;
        let core = Core {
            shared: Arc::clone(&shared),
            client: client.clone(),
            readiness: Readiness::new(),
            notices: Notices::new(),
            usage_changed: Arc::new(Notify::new()),
            hint: Arc::new(Notify::new()),
        };
        let certificates = Path::new(names::METRICS_CERTIFICATES);
        let profile = webhooks.profile.clone();
        let scrapes = metrics
            .serve(client.clone(), &bind, profile, certificates, &namespace)
            .await?;
        let router = metrics.counted(reviews::router(&core, reject_duplicates));
        let webhooks = Webhooks::start(webhooks, core.readiness.clone(), router).await?;
        core.watch();
        let range = RangeConfig::start(&client, &namespace, share, &core);
        let known = core.clone();
        tokio::spawn(range.follow(move || known.complete(Part::Range)));
        tokio::spawn(healing::run(core.clone(), wait_time));
        let notices = core.notices.clone();
        tokio::spawn(async move { notices.publish_all(client, &namespace).await });
        Ok(Running {
            core,
            webhooks,
            scrapes,
        })
    }
}

/// A manager that runs until it is stopped, or its runtime ends.
pub struct Running {
    core: Core,
    webhooks: Webhooks,
    scrapes: Option<Serving>,
}

impl Running {
    /// Address of the webhooks.
    pub fn address(&self) -> SocketAddr {
        self.webhooks.address()
    }

    /// Address of the metrics, unless they are disabled.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.scrapes.as_ref().map(Serving::address)
    }

    /// The shared state, for tests.
    pub fn state(&self) -> &Shared {
        &self.core.shared
    }

    /// Whether the lists are complete.
    pub fn readiness(&self) -> &Readiness {
        &self.core.readiness
    }

    /// Closes the listeners, and waits for the current requests.
    pub async fn stop(self) {
        let Self {
            core: _,
            webhooks,
            scrapes,
        } = self;
        let scrapes = async {
            if let Some(scrapes) = scrapes {
                scrapes.stop().await;
            }
        };
        // Both stop concurrently: the kubelet waits no longer than for the webhooks alone.
        tokio::join!(webhooks.stop(), scrapes);
    }
}
