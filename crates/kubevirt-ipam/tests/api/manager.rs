//! The whole controller, in a thread of the test's process.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc;

use kube_kit::serve::Bind;
use kube_kit::tls::Profile;
use kubevirt_ipam::election::Leadership;
use kubevirt_ipam::manager::Manager;
use kubevirt_ipam::settings::Settings;
use kubevirt_ipam::state::Shared;
use stage::Hold;

use crate::stage::{Stage, Task, until};

/// The answer of a server without TLS, with its head.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut tcp = TcpStream::connect(address).expect("a connection");
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A running controller. It ends when it is dropped.
pub(crate) struct Managing {
    /// Port of the webhook.
    pub(crate) port: u16,
    /// Addresses of probes and metrics.
    pub(crate) plain: Vec<SocketAddr>,
    pub(crate) shared: Shared,
    pub(crate) leadership: Leadership,
    task: Task,
}

impl Managing {
    /// Starts a single replica, and waits until it is ready.
    pub(crate) fn start(stage: &Stage) -> Self {
        Self::launch(stage, None, "one", |_| ())
    }

    /// Starts one of several replicas, and waits until it is ready.
    pub(crate) fn elected(stage: &Stage, me: &'static str) -> Self {
        Self::launch(stage, None, me, |settings| settings.elect = true)
    }

    /// Starts a replica whose watches are held after their lists.
    pub(crate) fn behind(stage: &Stage, hold: Hold) -> Self {
        Self::launch(stage, Some(hold), "one", |_| ())
    }

    pub(crate) fn launch(
        stage: &Stage,
        hold: Option<Hold>,
        me: &'static str,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let local: Bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
        let mut settings = Settings {
            webhook: local.clone(),
            probes: local.clone(),
            metrics: local,
            elect: false,
            http2: false,
            certificates: stage.certificate().to_owned(),
            default_namespace: "randomNS".to_owned(),
            profile: Profile::default(),
        };
        change(&mut settings);
        let (at, started) = mpsc::channel();
        let task = stage.task(move |client, shutdown| async move {
            let client = match hold {
                Some(hold) => hold.client(client),
                None => client,
            };
            let running = Manager::new(settings).start(client, me).await.expect("it starts");
            running.ready().await;
            let facts = (
                running.address().port(),
                running.plain_addresses(),
                running.state().clone(),
                running.leadership().clone(),
            );
            at.send(facts).expect("a test");
            // A lost Lease ends the program.
            let _ = Box::pin(running.run(&shutdown)).await;
        });
        let (port, plain, shared, leadership) = started.recv().expect("it starts");
        Self {
            port,
            plain,
            shared,
            leadership,
            task,
        }
    }

    /// Waits until the queues are empty and no reconcile runs.
    #[track_caller]
    pub(crate) fn wait_until_idle(&self) {
        let [_, figures] = self.plain[..] else {
            panic!("metrics are served");
        };
        until("the controller to be idle", || {
            let text = get(figures, "/metrics");
            let is_work = |line: &&str| {
                let figure = ["workqueue_depth", "controller_runtime_active_workers"];
                figure.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0")
            };
            match text.lines().find(is_work) {
                Some(line) => Err(line.to_owned()),
                None => Ok(()),
            }
        });
    }

    /// Ends the controller without a shutdown, like SIGKILL.
    pub(crate) fn kill(self) {
        self.task.kill();
    }
}
