//! Comments that mark the owner of nftables rules and elements (cni-plugins §2.7).

use std::collections::BTreeSet;

use linux::nft::{COMMENT_LENGTH, Key, Socket, Table, Transaction};

use crate::{
    hash::hashed,
    record::{Attachment, AttachmentId},
};

/// Number of hash digits in comments.
const HASH_LENGTH: usize = 16;
/// Limit of deleted elements per message to the kernel.
const COLLECT_AT_ONCE: usize = 500;

/// Prefix of the comments of a network's attachments. A dash follows.
pub(crate) fn network_hash(network: &str) -> String {
    hashed(HASH_LENGTH, "", network)
}

impl Attachment<'_> {
    /// Prefix of the attachment's comments.
    pub(crate) fn hash(&self) -> String {
        let instance = hashed(HASH_LENGTH, "", &format!("{}:{}", self.ifname, self.container_id));
        format!("{}-{instance}", network_hash(self.network))
    }
}

/// The comment of an attachment's rules and elements.
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

/// Shortens a comment to a length that nft can parse.
pub(crate) fn shortened(comment: &str) -> String {
    let mut comment = comment.replace('"', "");
    comment.truncate(comment.floor_char_boundary(COMMENT_LENGTH));
    comment
}

/// Returns a predicate for comments of the network's attachments that are not in `valid`.
pub(crate) fn is_stale(network: &str, valid: &BTreeSet<AttachmentId>) -> impl Fn(&str) -> bool {
    let of_network = format!("{}-", network_hash(network));
    let valid: Vec<String> = valid.iter().map(|id| id.to(network).hash()).collect();
    move |comment| comment.starts_with(&of_network) && !valid.iter().any(|hash| comment.starts_with(hash))
}

/// Whether a set has this element, with a comment that starts with this hash of an attachment.
pub(crate) fn has_element(
    socket: &mut Socket,
    hash: &str,
    table: Table,
    set: &str,
    key: &Key,
) -> linux::Result<bool> {
    let element = socket.element(table, set, key)?;
    Ok(element.is_some_and(|element| element.comment.starts_with(hash)))
}

/// The keys of the elements whose comment satisfies `which`.
pub(crate) fn keys(
    socket: &mut Socket,
    table: Table,
    set: &str,
    which: impl Fn(&str) -> bool,
) -> linux::Result<Vec<Key>> {
    let elements = socket.elements(table, set)?.into_iter();
    let found = elements.filter(|element| which(&element.comment));
    Ok(found.map(|element| element.key).collect())
}

/// Deletes the elements that `find` returns, each with its table and set, and commits its other changes. Repeats
/// until one message is enough.
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
