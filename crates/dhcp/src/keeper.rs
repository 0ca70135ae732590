//! The task that acquires the lease of one attachment and keeps it until its release.

use std::sync::Arc;
use std::time::Duration;

use cni::Version;
use linux::link::Mac;
use plugins::dhcp::wire::Allocation;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::changes;
use crate::clock::{Timers, now};
use crate::exchange::{Exchange, Outgoing, blocking};
use crate::lease::Lease;
use crate::machine::{Action, Event, JITTER, Machine};
use crate::place::{Place, Trouble};
use crate::settings::Settings;
use crate::store::{Record, Store};

/// A request of a client to a keeper.
#[derive(Debug)]
pub(crate) enum Command {
    /// Answer with the lease, as soon as it is acquired. The keeper ends without an answer if the link was replaced.
    Lease(Allocation, oneshot::Sender<Result<Value, String>>),
    /// Release the lease.
    Release(oneshot::Sender<()>),
}

/// State that all keepers share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) timers: Timers,
}

/// Whether the keeper continues.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Go,
    End,
}

/// The keeper of one attachment.
#[derive(Debug)]
pub(crate) struct Keeper {
    context: Arc<Context>,
    allocation: Allocation,
    place: Place,
    machine: Option<Machine>,
    record: Option<Record>,
    exchange: Option<Exchange>,
    waiting: Vec<oneshot::Sender<Result<Value, String>>>,
}

/// An event for the keeper.
enum News {
    Command(Option<Command>),
    Event(Event, Option<Mac>),
    /// No client waits for the new lease any more.
    GivenUp,
    /// The exchange failed.
    Broken(std::io::Error),
}

impl Keeper {
    /// A keeper that acquires a lease at the first command.
    pub(crate) fn new(context: Arc<Context>, allocation: Allocation) -> Self {
        let place = Place {
            path: context.settings.on_host(&allocation.netns),
            ifname: allocation.attachment.ifname.clone(),
            identity: None,
        };
        Self {
            context,
            allocation,
            place,
            machine: None,
            record: None,
            exchange: None,
            waiting: Vec::new(),
        }
    }

    /// A keeper that continues a lease of an earlier daemon.
    pub(crate) fn adopt(context: Arc<Context>, record: Record) -> Self {
        let machine = Machine::adopt(record.held(), context.settings.timing, jitter, now());
        let mut keeper = Self::new(context, record.allocation.clone());
        keeper.place.identity = Some(record.identity);
        keeper.machine = Some(machine);
        keeper.record = Some(record);
        keeper
    }

    /// The link of the lease.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Runs until the lease is released or expired, or no client can request it any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        self.change().await;
        loop {
            let next = match self.news(&mut commands).await {
                News::Command(Some(command)) => self.command(command).await,
                News::Command(None) => Next::End,
                News::GivenUp => {
                    info!(attachment = ?self.allocation.attachment, "the lease has no waiter any more");
                    Next::End
                }
                News::Broken(error) => {
                    warn!(attachment = ?self.allocation.attachment, %error, "cannot receive packets");
                    self.exchange = None;
                    Next::Go
                }
                News::Event(event, station) => self.event(event, station).await,
            };
            if next == Next::End {
                return;
            }
        }
    }

    async fn news(&mut self, commands: &mut mpsc::Receiver<Command>) -> News {
        let until = self.machine.as_ref().and_then(Machine::until);
        let timer = async {
            match until {
                Some(until) => self.context.timers.reach(until, now).await,
                None => std::future::pending().await,
            }
        };
        let (exchange, allocation) = (&self.exchange, &self.allocation);
        let reply = async {
            match exchange {
                Some(exchange) => exchange.receive(allocation).await,
                None => std::future::pending().await,
            }
        };
        let is_new = self.record.is_none();
        let waiting = &mut self.waiting;
        let given_up = async {
            if waiting.is_empty() || !is_new {
                std::future::pending::<()>().await;
            }
            for client in waiting.iter_mut() {
                client.closed().await;
            }
        };
        tokio::select! {
            command = commands.recv() => News::Command(command),
            reply = reply => match reply {
                Ok((reply, station)) => News::Event(Event::Reply(reply), Some(station)),
                Err(error) => News::Broken(error),
            },
            () = given_up => News::GivenUp,
            () = timer => News::Event(Event::Timer, None),
        }
    }

    async fn command(&mut self, command: Command) -> Next {
        match command {
            Command::Release(done) => {
                self.release().await;
                self.fail("the attachment was deleted");
                // A client that closed its connection needs no answer.
                let _ = done.send(());
                Next::End
            }
            Command::Lease(allocation, client) => {
                let Some(record) = &self.record else {
                    self.waiting.push(client);
                    if self.machine.is_some() {
                        return Next::Go;
                    }
                    let (machine, action) = Machine::acquire(self.context.settings.timing, jitter, now());
                    self.machine = Some(machine);
                    return self.act(action, None).await;
                };
                let place = Place {
                    path: self.context.settings.on_host(&allocation.netns),
                    ..self.place.clone()
                };
                match blocking(move || place.require()).await {
                    Err(Trouble::Gone(why)) => {
                        info!(attachment = ?self.allocation.attachment, why, "forgetting a lease");
                        self.forget();
                        Next::End
                    }
                    Err(Trouble::Failed(error)) => {
                        let _ = client.send(Err(error));
                        Next::Go
                    }
                    Ok(()) => {
                        let _ = client.send(answer(&record.lease, &self.allocation));
                        Next::Go
                    }
                }
            }
        }
    }

    async fn event(&mut self, event: Event, station: Option<Mac>) -> Next {
        let Some(machine) = &mut self.machine else {
            return Next::Go;
        };
        let action = machine.step(event, now());
        self.act(action, station).await
    }

    async fn act(&mut self, action: Action, station: Option<Mac>) -> Next {
        match action {
            Action::Wait => Next::Go,
            Action::Again => {
                if let Some(exchange) = &self.exchange {
                    self.sent(exchange.again());
                }
                Next::Go
            }
            Action::Pause => {
                self.exchange = None;
                Next::Go
            }
            Action::Discover(wanted) => self.converse(Outgoing::Discover(wanted)).await,
            Action::Renew => match &self.record {
                Some(record) => {
                    let message = Outgoing::Renew(record.lease.clone(), record.station());
                    self.converse(message).await
                }
                None => Next::Go,
            },
            Action::Request(offer) => {
                if let Some(exchange) = &mut self.exchange {
                    let outcome = exchange.send(&self.allocation, &Outgoing::Request(offer));
                    self.sent(outcome);
                }
                Next::Go
            }
            Action::Keep(lease) => self.keep(lease, station).await,
            Action::Fail(failure) => self.fail(&failure.to_string()),
            Action::Expire => self.expire().await,
        }
    }

    /// Begins an exchange. A failed start counts as an attempt without an answer.
    async fn converse(&mut self, message: Outgoing) -> Next {
        self.exchange = None;
        let lease = self.record.as_ref().map(|record| record.lease.clone());
        let broadcast = self.context.settings.broadcast;
        match Exchange::open(&self.place, broadcast, lease.as_ref()).await {
            Ok(mut exchange) => {
                let outcome = exchange.send(&self.allocation, &message);
                self.exchange = Some(exchange);
                self.sent(outcome);
                Next::Go
            }
            Err(Trouble::Gone(why)) => {
                self.forget();
                self.fail(&why)
            }
            Err(Trouble::Failed(error)) => {
                warn!(attachment = ?self.allocation.attachment, %error, "cannot ask DHCP servers");
                Next::Go
            }
        }
    }

    fn sent(&self, outcome: linux::Result<()>) {
        if let Err(error) = outcome {
            warn!(attachment = ?self.allocation.attachment, %error, "cannot send to DHCP servers");
        }
    }

    /// Records a lease, applies it to the link, and answers.
    async fn keep(&mut self, lease: Lease, station: Option<Mac>) -> Next {
        let Some(exchange) = self.exchange.take() else {
            return Next::Go;
        };
        let old = self.record.take();
        let is_first = old.is_none();
        if old.as_ref().is_some_and(|old| old.lease.dns != lease.dns) {
            warn!(attachment = ?self.allocation.attachment, "name servers changed: a running container keeps the old ones");
        }
        let lacking = old.map_or_else(Vec::new, |old| {
            let fresh = changes::between(&old.lease, &lease);
            if !fresh.is_empty() {
                info!(attachment = ?self.allocation.attachment, changes = ?fresh, "the renewed lease differs");
            }
            changes::merged(old.lacking, fresh, &lease)
        });
        let identity = exchange.identity();
        self.place.identity = Some(identity);
        let record = Record {
            allocation: self.allocation.clone(),
            identity,
            station: station.map_or([0xff; 6], |station| station.0),
            lease,
            lacking,
            since: now(),
        };
        if let Err(error) = self.context.store.write(&record) {
            if is_first {
                self.record = Some(record);
                self.release().await;
                return self.fail(&format!("cannot record the lease: {error}"));
            }
            warn!(attachment = ?self.allocation.attachment, %error, "cannot record the renewed lease");
        }
        if is_first {
            info!(attachment = ?self.allocation.attachment, address = %record.lease.address, "leased");
        }
        let answer = answer(&record.lease, &self.allocation);
        let is_new = !self.waiting.is_empty();
        self.record = Some(record);
        self.change().await;
        let answered = self
            .waiting
            .drain(..)
            .filter_map(|client| client.send(answer.clone()).ok())
            .count();
        if is_new && answered == 0 {
            self.release().await;
            return Next::End;
        }
        Next::Go
    }

    /// Makes the changes that the link lacks. Those that fail, or all if the daemon is killed meanwhile, are made again
    /// after the next answer of a server, or by the next daemon.
    async fn change(&mut self) {
        let Some(record) = &mut self.record else { return };
        if record.lacking.is_empty() {
            return;
        }
        let (place, priority, changes) = (
            self.place.clone(),
            self.allocation.priority,
            record.lacking.clone(),
        );
        let lacking = match blocking(move || place.change(&changes, priority)).await {
            Err(error) => {
                warn!(attachment = ?self.allocation.attachment, %error, "cannot change the link");
                return;
            }
            Ok((lacking, error)) => {
                if let Some(error) = error {
                    warn!(attachment = ?self.allocation.attachment, %error, ?lacking, "cannot change the link");
                }
                // A route that could not be removed, and was added then, stays.
                changes::merged(lacking, Vec::new(), &record.lease)
            }
        };
        if lacking == record.lacking {
            return;
        }
        record.lacking = lacking;
        if let Err(error) = self.context.store.write(record) {
            warn!(attachment = ?self.allocation.attachment, %error, "cannot record the change of the link");
        }
    }

    /// Releases the lease: at the server if the link still exists, and on disk.
    async fn release(&mut self) {
        self.exchange = None;
        if let Some(record) = &self.record {
            let message = Outgoing::Release(record.lease.clone(), record.station());
            let opened = Exchange::open(&self.place, false, Some(&record.lease)).await;
            let outcome = opened.and_then(|mut exchange| Ok(exchange.send(&self.allocation, &message)?));
            match outcome {
                Ok(()) => info!(attachment = ?self.allocation.attachment, "released"),
                Err(error) => {
                    info!(attachment = ?self.allocation.attachment, %error, "cannot inform the server");
                }
            }
        }
        self.forget();
    }

    async fn expire(&mut self) -> Next {
        warn!(attachment = ?self.allocation.attachment, "the lease is over: setting the link down");
        self.exchange = None;
        let place = self.place.clone();
        if let Err(error) = blocking(move || place.set_down()).await {
            warn!(attachment = ?self.allocation.attachment, %error, "cannot set the link down");
        }
        self.forget();
        Next::End
    }

    fn forget(&mut self) {
        self.record = None;
        if let Err(error) = self.context.store.remove(&self.allocation.attachment) {
            warn!(attachment = ?self.allocation.attachment, %error, "cannot remove the record of a lease");
        }
    }

    fn fail(&mut self, why: &str) -> Next {
        self.exchange = None;
        info!(attachment = ?self.allocation.attachment, why, "no lease");
        for client in self.waiting.drain(..) {
            let _ = client.send(Err(why.to_owned()));
        }
        Next::End
    }
}

fn answer(lease: &Lease, allocation: &Allocation) -> Result<Value, String> {
    let result = lease.result(allocation.priority);
    result.to_json(Version::LATEST).map_err(|error| error.to_string())
}

/// Up to twice [`JITTER`].
fn jitter() -> Duration {
    let random = linux::random::bytes().map_or(0, u32::from_ne_bytes);
    (JITTER * 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
