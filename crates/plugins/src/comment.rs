//! Comments of rules and elements in nftables, by which they tell whose they are (cni-plugins §2.7).

use linux::nft::COMMENT_LENGTH;

use crate::{hash::hashed, record::Attachment};

/// Digits of the hashes in comments.
const HASH_LENGTH: usize = 16;

/// What comments about a network's attachments begin with, and a dash.
pub(crate) fn network_hash(network: &str) -> String {
    hashed(HASH_LENGTH, "", network)
}

impl Attachment<'_> {
    /// What comments about the attachment begin with.
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
