//! All leases of the node: the keepers of attachments, and access to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use plugins::dhcp::wire::{Allocation, Attachment, Valid};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use crate::clock::Timers;
use crate::exchange::blocking;
use crate::keeper::{Command, Context, Keeper};
use crate::names::MAX_LEASES;
use crate::place::Trouble;
use crate::settings::Settings;
use crate::store::Store;

/// Maximum number of queued commands for one keeper.
const QUEUE: usize = 8;
/// Maximum number of keepers for a request whose keeper ends meanwhile.
const TRIES: u32 = 2;

type Keepers = Mutex<HashMap<Attachment, mpsc::Sender<Command>>>;

/// The leases. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Leases {
    context: Arc<Context>,
    keepers: Arc<Keepers>,
}

impl Leases {
    /// Opens the directory of the leases.
    pub(crate) fn open(settings: Settings) -> anyhow::Result<Self> {
        let folder = settings.leases();
        let store = Store::open(folder.clone())
            .with_context(|| format!("cannot keep leases in {}", folder.display()))?;
        Ok(Self {
            context: Arc::new(Context {
                settings,
                store,
                timers: Timers::default(),
            }),
            keepers: Arc::default(),
        })
    }

    /// Checks the timers of all leases after each suspend of the machine.
    pub(crate) async fn watch_clock(&self) {
        if let Err(error) = self.context.timers.watch().await {
            tracing::warn!(%error, "leases are renewed late after a suspend of the machine");
        }
    }

    /// Adopts the leases of an earlier daemon whose links still exist, and removes the others.
    pub(crate) async fn adopt(&self) {
        let records = match self.context.store.read() {
            Ok(records) => records,
            Err(error) => return tracing::warn!(%error, "cannot read the leases of an earlier daemon"),
        };
        for record in records {
            let attachment = record.allocation.attachment.clone();
            let keeper = Keeper::adopt(self.context.clone(), record);
            let place = keeper.place().clone();
            if let Err(Trouble::Gone(why)) = blocking(move || place.require()).await {
                info!(?attachment, why, "forgetting a lease");
                if let Err(error) = self.context.store.remove(&attachment) {
                    tracing::warn!(?attachment, %error, "cannot remove the record of a lease");
                }
                continue;
            }
            info!(?attachment, "going on with a lease");
            self.start(&mut kube_kit::lock(&self.keepers), attachment, keeper);
        }
    }

    /// The lease of an attachment, as a CNI result. When the last waiting client gives up, the lease is not acquired.
    pub(crate) async fn allocate(&self, allocation: Allocation) -> Result<Value, String> {
        for _ in 0..TRIES {
            let keeper = self.keeper(&allocation)?;
            let (client, answer) = oneshot::channel();
            if keeper
                .send(Command::Lease(allocation.clone(), client))
                .await
                .is_ok()
                && let Ok(outcome) = answer.await
            {
                return outcome;
            }
        }
        Err("the lease ended meanwhile".to_owned())
    }

    /// Releases the lease of an attachment, if it has one.
    pub(crate) async fn release(&self, attachment: &Attachment) -> Result<(), String> {
        let keeper = kube_kit::lock(&self.keepers).get(attachment).cloned();
        if let Some(keeper) = keeper {
            let (client, done) = oneshot::channel();
            if keeper.send(Command::Release(client)).await.is_ok() {
                // A keeper that has already ended has nothing to release.
                let _ = done.await;
            }
        }
        self.context
            .store
            .remove(attachment)
            .map_err(|error| format!("cannot remove the record of the lease: {error}"))
    }

    /// Releases the leases of a network's attachments that are not valid.
    pub(crate) async fn collect(&self, valid: &Valid) -> Result<(), String> {
        let is_valid = |attachment: &Attachment| {
            valid
                .attachments
                .iter()
                .any(|valid| valid.container_id == attachment.container && valid.ifname == attachment.ifname)
        };
        let mut stale: Vec<Attachment> = kube_kit::lock(&self.keepers).keys().cloned().collect();
        stale.retain(|attachment| attachment.network == valid.network && !is_valid(attachment));
        let mut outcome = Ok(());
        for attachment in stale {
            outcome = outcome.and(self.release(&attachment).await);
        }
        outcome
    }

    /// The keeper of an attachment, new if necessary.
    fn keeper(&self, allocation: &Allocation) -> Result<mpsc::Sender<Command>, String> {
        let attachment = &allocation.attachment;
        let mut keepers = kube_kit::lock(&self.keepers);
        if let Some(keeper) = keepers.get(attachment).filter(|keeper| !keeper.is_closed()) {
            return Ok(keeper.clone());
        }
        if keepers.len() >= MAX_LEASES {
            return Err(format!("the daemon keeps {MAX_LEASES} leases, and no more"));
        }
        let keeper = Keeper::new(self.context.clone(), allocation.clone());
        Ok(self.start(&mut keepers, attachment.clone(), keeper))
    }

    fn start(
        &self,
        keepers: &mut HashMap<Attachment, mpsc::Sender<Command>>,
        attachment: Attachment,
        keeper: Keeper,
    ) -> mpsc::Sender<Command> {
        let (commands, queue) = mpsc::channel(QUEUE);
        keepers.insert(attachment.clone(), commands.clone());
        let all = self.keepers.clone();
        let own = commands.downgrade();
        tokio::spawn(async move {
            keeper.run(queue).await;
            let mut all = kube_kit::lock(&all);
            // The attachment may already have another keeper.
            let is_own =
                |found: &mpsc::Sender<Command>| own.upgrade().is_some_and(|own| own.same_channel(found));
            if all.get(&attachment).is_some_and(is_own) {
                all.remove(&attachment);
            }
        });
        commands
    }
}
