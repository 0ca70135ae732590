//! Comments of rules and elements in nftables, by which they tell whose they are (cni-plugins §2.7).

use std::collections::BTreeSet;

use linux::nft::{COMMENT_LENGTH, Key, Socket, Table, Transaction};

use crate::{
    hash::hashed,
    record::{Attachment, AttachmentId},
};

/// Digits of the hashes in comments.
const HASH_LENGTH: usize = 16;
/// Limit of elements that one message to the kernel deletes.
const COLLECT_AT_ONCE: usize = 500;

/// The beginning of comments about a network's attachments, before a dash.
pub(crate) fn network_hash(network: &str) -> String {
    hashed(HASH_LENGTH, "", network)
}

impl Attachment<'_> {
    /// The beginning of comments about the attachment.
    pub(crate) fn hash(&self) -> String {
        let instance = hashed(HASH_LENGTH, "", &format!("{}:{}", self.ifname, self.container_id));
        format!("{}-{instance}", network_hash(self.network))
    }
}

/// The comment of what is made for an attachment.
pub(crate) fn of_attachment(attachment: Attachment<'_>) -> String {
    let Attachment {
        network,
        ifname,
        container_id,
    } = attachment;
    let hash = attachment.hash();
    shortened(&format!(
        "{hash}, net: {network}, if: {ifname}, id: {container_id}"
    ))
}

/// A comment as nft can read it back.
pub(crate) fn shortened(comment: &str) -> String {
    let mut comment = comment.replace('"', "");
    comment.truncate(comment.floor_char_boundary(COMMENT_LENGTH));
    comment
}

/// Tells comments about the network's attachments that are not in `valid`.
pub(crate) fn is_stale(network: &str, valid: &BTreeSet<AttachmentId>) -> impl Fn(&str) -> bool {
    let of_network = format!("{}-", network_hash(network));
    let valid: Vec<String> = valid.iter().map(|id| id.to(network).hash()).collect();
    move |comment| comment.starts_with(&of_network) && !valid.iter().any(|hash| comment.starts_with(hash))
}

/// Deletes the elements that `find` returns, each with its table and set, and makes the other changes that it adds. Calls
/// `find` again until one message was enough.
pub(crate) fn collect(
    socket: &mut Socket,
    mut find: impl FnMut(&mut Socket, &mut Transaction) -> linux::Result<Vec<(Table, String, Key)>>,
) -> linux::Result<()> {
    let mut more = true;
    while more {
        socket.update(|socket| {
            let mut changes = Transaction::new();
            let stale = find(socket, &mut changes)?;
            let room = COLLECT_AT_ONCE.saturating_sub(changes.len());
            more = stale.len() > room;
            for (table, set, key) in stale.iter().take(room) {
                changes.delete_element(*table, set, key);
            }
            Ok(changes)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_of_an_attachment_that_is_not_valid_is_stale() {
        let id = |container_id: &str| AttachmentId {
            container_id: container_id.into(),
            ifname: "net1".into(),
        };
        let (kept, lost) = (id("c1"), id("c2"));
        let valid = [kept.clone()].into();
        let is_stale = is_stale("net", &valid);
        assert!(is_stale(&of_attachment(lost.to("net"))));
        assert!(!is_stale(&of_attachment(kept.to("net"))));
        assert!(!is_stale(&of_attachment(lost.to("other"))));
        assert!(!is_stale(""));
    }
}
