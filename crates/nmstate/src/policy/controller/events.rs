//! Follows watches, and enqueues policies.

use std::collections::BTreeMap;

use kube_kit::watch::{Change, Watch};
use tokio::time::Instant;

use super::{Controller, ORPHAN_INTERVAL, Revision, ThisNode, order};
use crate::objects::Policy;
use crate::policy::cleanup;
use crate::render::NodeFacts;
use crate::{jitter, variables};

impl Controller {
    pub(super) async fn follow_policies(&self, mut policies: Watch<String, Policy>) {
        let mut known = BTreeMap::<String, Revision>::new();
        let mut first = true;
        loop {
            let change = tokio::select! {
                change = policies.next() => match change {
                    Some(change) => change,
                    None => return,
                },
                // The store has the answer to our own write before the watch event, and the watch drops older events:
                // an edit that the write contained, or a released slot.
                name = self.written.next() => {
                    self.written.succeeded(&name);
                    Change::Applied(name)
                }
            };
            self.policy_changed.notify_waiters();
            match change {
                Change::Applied(name) => {
                    let Some(policy) = self.policies.get(&name) else {
                        continue;
                    };
                    let revision = Revision::of(&policy);
                    if known.get(&name) == Some(&revision) {
                        self.wake(&policy);
                        continue;
                    }
                    known.insert(name.clone(), revision);
                    // The first policies are ordered once all of them are listed.
                    if !first {
                        self.enqueue(name);
                    }
                }
                Change::Deleted(name) => {
                    known.remove(&name);
                    self.enqueue(name);
                }
                Change::Invalid(name, error) => {
                    tracing::warn!(policy = name, error, "ignoring malformed policy");
                }
                Change::Synced if first => {
                    first = false;
                    self.enqueue_all();
                }
                Change::Synced => {}
            }
        }
    }

    pub(super) async fn follow_node(&self, mut node: Watch<String, ThisNode>) {
        let mut known = None;
        while let Some(change) = node.next().await {
            let facts = self.node.with(&self.shared.node, |node| node.facts.clone());
            // The first pass uses the listed node.
            if matches!(change, Change::Synced) && known.is_none() {
                known = Some(facts);
                continue;
            }
            let Some(before) = &mut known else {
                continue;
            };
            match (before.as_ref(), &facts) {
                (Some(before), Some(now)) if before.labels == now.labels => {
                    self.enqueue_affected(before, now);
                }
                (_, Some(_)) => self.enqueue_all(),
                (_, None) => {}
            }
            *before = facts;
        }
    }

    /// Deletes enactments whose policies are gone: after each event, and all of them every [`ORPHAN_INTERVAL`].
    pub(super) async fn follow_enactments(&self, mut enactments: Watch<String, String>) {
        let mut all_at = Instant::now();
        loop {
            let due = tokio::select! {
                change = enactments.next() => match change {
                    Some(Change::Applied(name)) => vec![name],
                    Some(Change::Deleted(name)) => {
                        self.handle_deleted(&name);
                        continue;
                    }
                    Some(_) => continue,
                    None => return,
                },
                () = tokio::time::sleep_until(all_at) => {
                    all_at += ORPHAN_INTERVAL + jitter::up_to(ORPHAN_INTERVAL / 10);
                    self.enactments.keys()
                }
            };
            for name in due {
                let Some(policy) = self.enactments.get(&name) else {
                    continue;
                };
                // The watch of policies may be stale, so the API server is read for policies that it does not have.
                if policy.is_empty() || self.policies.contains(&policy) {
                    continue;
                }
                if let Err(error) = cleanup::delete_orphan(&self.shared.client, &name, &policy).await {
                    tracing::warn!(enactment = name, %error, "cannot delete an enactment without a policy");
                }
            }
        }
    }

    /// Handles a deleted enactment. Unless this handler deleted it, the policy is enqueued: only this handler can
    /// report its state on this node.
    fn handle_deleted(&self, enactment: &str) {
        if self.deleted().remove(enactment) {
            return;
        }
        let prefix = format!("{}.", self.shared.node);
        if let Some(policy) = enactment.strip_prefix(&prefix)
            && self.policies.contains(&policy.to_owned())
        {
            self.enqueue(policy.to_owned());
        }
    }

    /// Enqueues all policies, in the order in which they are applied.
    pub(super) fn enqueue_all(&self) {
        self.enqueue_where(|_| true);
    }

    /// Enqueues policies that refer to a changed annotation of the node. Other annotations, of the kubelet and drivers,
    /// change all the time.
    fn enqueue_affected(&self, before: &NodeFacts, now: &NodeFacts) {
        if before.annotations == now.annotations {
            return;
        }
        self.enqueue_where(|policy| {
            let mut keys = variables::annotations(policy.spec()).into_iter();
            keys.any(|key| before.annotations.get(key) != now.annotations.get(key))
        });
    }

    fn enqueue_where(&self, filter: impl Fn(&Policy) -> bool) {
        let policies = self.policies.values();
        let mut ordered: Vec<(i64, String)> = policies
            .iter()
            .filter(|&policy| filter(policy))
            .map(order)
            .collect();
        ordered.sort();
        for (_, name) in ordered {
            self.enqueue(name);
        }
    }

    pub(super) fn enqueue(&self, name: String) {
        self.requested().insert(name.clone());
        self.queue.add(name);
    }
}
