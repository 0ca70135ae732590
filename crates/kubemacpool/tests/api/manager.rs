//! The whole manager, in a thread of the test's process.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use cluster::wait;
use cni::mac::Mac;
use kube_kit::serve::Readiness;
use kube_kit::tls::Profile;
use kubemacpool::manager::Manager;
use kubemacpool::metrics::{Bind, Snapshot};
use kubemacpool::pool::{Claimant, Owner};
use kubemacpool::range::Range;
use kubemacpool::server;
use kubemacpool::settings::{Settings, Share};
use kubemacpool::state::{self, Shared};
use stage::Hold;

use crate::fixture::{DEADLINE, NAMESPACE, POD, Stage, Task};

/// A manager that runs until it is dropped.
pub(crate) struct Managing {
    /// Address of the webhooks.
    pub(crate) port: u16,
    shared: Shared,
    readiness: Readiness,
    _task: Task,
}

pub(crate) fn mac(text: &str) -> Mac {
    Mac::parse(text).expect("an address")
}

pub(crate) fn range(start: &str, end: &str) -> Range {
    Range::new(mac(start), mac(end)).expect("a range")
}

impl Managing {
    /// Starts with the manifests' range. The API server does not call it yet.
    pub(crate) fn start(stage: &Stage) -> Self {
        Self::start_as(stage, |_| ())
    }

    /// With other settings.
    pub(crate) fn start_as(stage: &Stage, change: impl FnOnce(&mut Settings)) -> Self {
        Self::launch(stage, None, change)
    }

    fn launch(stage: &Stage, hold: Option<Hold>, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            namespace: NAMESPACE.to_owned(),
            pod: POD.to_owned(),
            range: range("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff"),
            share: Share::WHOLE,
            wait_time: Duration::from_mins(10),
            reject_duplicates: false,
            metrics: Bind::Off,
            webhooks: server::Settings {
                bind: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
                certificates: stage.certificate().dir().to_owned(),
                profile: Profile::default(),
                client: None,
            },
        };
        change(&mut settings);
        let (at, started) = mpsc::channel();
        let task = stage.task(move |client, shutdown| async move {
            let manager = Manager::new(settings).expect("a manager");
            let client = match hold {
                Some(hold) => hold.client(client),
                None => client,
            };
            let running = manager.start(client).await.expect("it starts");
            let port = running.address().port();
            at.send((port, running.state().clone(), running.readiness().clone()))
                .expect("a test");
            shutdown.wait().await;
            running.stop().await;
        });
        let (port, shared, readiness) = started.recv().expect("it starts");
        Self {
            port,
            shared,
            readiness,
            _task: task,
        }
    }

    /// Starts as in the manifests, called by the API server.
    pub(crate) fn ready(stage: &Stage) -> Self {
        Self::ready_as(stage, |_| ())
    }

    /// The same with changed settings.
    pub(crate) fn ready_as(stage: &Stage, change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_as(stage, change).configured(stage)
    }

    /// The same with delayed watches.
    pub(crate) fn ready_behind(stage: &Stage, hold: Hold) -> Self {
        Self::launch(stage, Some(hold), |_| ()).configured(stage)
    }

    /// Configures the webhooks, and waits until it is ready.
    fn configured(self, stage: &Stage) -> Self {
        stage.configure(self.port);
        self.wait_until_ready();
        self
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    pub(crate) fn wait_until_ready(&self) {
        self.wait("the manager to be ready", |_| {
            if self.is_ready() {
                Ok(())
            } else {
                Err("it is not".to_owned())
            }
        });
    }

    /// Waits for a condition of its state.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        mut condition: impl FnMut(&mut state::State) -> Result<T, String>,
    ) -> T {
        wait::until(what, DEADLINE, || condition(&mut state::lock(&self.shared)))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Holders of an address: `pod/ns/name:network`, `vm/ns/name:interface`, with `?` while pending.
    pub(crate) fn holders(&self, address: &str) -> Vec<String> {
        let holders = state::lock(&self.shared).pool.holders(mac(address));
        let text = |claimant: &Claimant| match claimant {
            Claimant::Named(owner) => owner.to_string(),
            Claimant::Unnamed { .. } => "(no name)".to_owned(),
        };
        let holders = holders.iter().map(|holder| {
            let pending = if holder.pending { "?" } else { "" };
            format!("{}:{}{pending}", text(&holder.claimant), holder.key)
        });
        holders.collect()
    }

    /// Waits until exactly these hold an address.
    pub(crate) fn wait_for_holders(&self, address: &str, expected: &[&str]) {
        wait::until(&format!("{address}: {expected:?}"), DEADLINE, || {
            let holders = self.holders(address);
            if holders == expected {
                Ok(())
            } else {
                Err(format!("{holders:?}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until it has observed a virtual machine, or its deletion.
    pub(crate) fn wait_until_known(&self, namespace: &str, name: &str, known: bool) {
        let machine = Owner::machine(namespace, name);
        self.wait(&format!("{machine} known: {known}"), |state| {
            if state.has_machine(&machine) == known {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        });
    }

    /// The metrics as Prometheus reads them.
    pub(crate) fn snapshot(&self) -> Snapshot {
        state::lock(&self.shared).snapshot()
    }
}
