//! The manager: its parts, started in order (kubemacpool §3.2).

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

/// A manager that is yet to start.
pub struct Manager {
    settings: Settings,
    shared: Shared,
    metrics: Metrics,
}

impl Manager {
    /// Knows nothing but its settings.
    ///
    /// # Errors
    /// When there are no random numbers to begin with.
    pub fn new(settings: Settings) -> anyhow::Result<Self> {
        let share = settings.share.of(&settings.range)?;
        let random = state::random().context("cannot read random bytes")?;
        let shared = Arc::new(Mutex::new(State::new(settings.range, share, random)));
        let source = Arc::clone(&shared);
        let metrics = Metrics::new(Arc::new(move || state::lock(&source).figures()));
        Ok(Self {
            settings,
            shared,
            metrics,
        })
    }

    /// Counts requests of the client that the manager is to use.
    pub fn requests(&self) -> &Requests {
        self.metrics.requests()
    }

    /// Starts everything: what the API server tells is taken in, and when all of it is known, requests are answered.
    ///
    /// # Errors
    /// When an address can't be listened on, or TLS can't be set up at all.
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
            moved: Arc::new(Notify::new()),
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
        tokio::spawn(async move { notices.carry(client, &namespace).await });
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
    /// Where the webhooks are.
    pub fn address(&self) -> SocketAddr {
        self.webhooks.address()
    }

    /// Where the metrics are, if anywhere.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.scrapes.as_ref().map(Serving::address)
    }

    /// What is known, for those who look into it.
    pub fn state(&self) -> &Shared {
        &self.core.shared
    }

    /// Whether everything is known that has to be.
    pub fn readiness(&self) -> &Readiness {
        &self.core.readiness
    }

    /// Takes no more requests, and ends when those under way are answered.
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
        // Side by side: the kubelet does not wait longer than for the webhooks alone.
        tokio::join!(webhooks.stop(), scrapes);
    }
}
