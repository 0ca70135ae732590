//! Certificates of nodes for `IPsec`: decides the approval and signature of certificate signing requests (§17.4).
//!
//! ```text
//! request ──> decide ─┬─> Failed: not a node of this cluster
//!                     ├─> Approved ──> event ──> decide ──> certificate
//!                     └─> nothing: answered already, or another signer's
//! ```

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use webhook::certificates::standalone::{Refused, Usage};

use crate::messages;

pub mod controller;
#[cfg(test)]
mod tests;

/// Name of the signer.
pub const SIGNER: &str = "network.openshift.io/signer";
/// Prefix of the users of nodes.
const NODE: &str = "system:ovn-node:";

/// Action for a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// No action.
    Leave,
    /// Condition `Failed`.
    Fail {
        /// Reason of the condition, in one word.
        reason: &'static str,
        /// Message of the condition.
        message: String,
    },
    /// Condition `Approved`.
    Approve,
    /// Issue a certificate.
    Sign,
}

/// The node that a user claims to be. `None` for other users.
pub fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix(NODE).filter(|node| !node.is_empty())
}

/// Decides the action for a request. `exists` is true if the node of its [requester](node_of) exists.
pub fn decide(request: &CertificateSigningRequest, exists: bool) -> Decision {
    let status = request.status.as_ref();
    let has = |kind: &str| {
        let conditions = status.and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == kind && condition.status == "True")
    };
    let is_signed = status.is_some_and(|status| {
        status
            .certificate
            .as_ref()
            .is_some_and(|certificate| !certificate.0.is_empty())
    });
    if request.spec.signer_name != SIGNER || is_signed || has("Denied") || has("Failed") {
        return Decision::Leave;
    }
    let user = request.spec.username.as_deref().unwrap_or_default();
    // The check precedes the signature too: another client may have approved the request.
    if node_of(user).is_none() || !exists {
        return Decision::Fail {
            reason: reason::INVALID_USER,
            message: messages::signer::invalid_user(user),
        };
    }
    if has("Approved") {
        Decision::Sign
    } else {
        Decision::Approve
    }
}

/// Reasons of conditions and failures.
pub mod reason {
    /// The requester is not a node.
    pub const INVALID_USER: &str = "CSRInvalidUser";
    /// The operator approved the request.
    pub const APPROVED: &str = "AutoApproved";
    /// The signer has no certificate authority.
    pub const NO_AUTHORITY: &str = "CAFailure";
    /// The request is malformed.
    pub const DECODE: &str = "CSRDecodeFailure";
    /// The certificate of the authority is unusable.
    pub const CORRUPT_CERTIFICATE: &str = "CorruptCACert";
    /// The key of the authority is unusable.
    pub const CORRUPT_KEY: &str = "CorruptCAKey";
    /// Signing failed.
    pub const SIGNING: &str = "SigningFailure";
    /// The API server refused the new status of the request.
    pub const UPDATE: &str = "UpdateFailure";
}

/// The reason of a failed signature.
pub fn reason_of(refused: &Refused) -> &'static str {
    match refused {
        Refused::Certificate => reason::CORRUPT_CERTIFICATE,
        Refused::Key => reason::CORRUPT_KEY,
        Refused::Request(_) => reason::DECODE,
        Refused::Sign(_) => reason::SIGNING,
    }
}

/// The extended key usages of a certificate, from the usages in the request. The usages of the key itself are fixed.
pub fn usages(asked: &[String]) -> Vec<Usage> {
    /// Last parts of RFC 4945's three object identifiers for `IPsec`, below `1.3.6.1.5.5.7.3`.
    const IPSEC: [(&str, u64); 3] = [("ipsec end system", 5), ("ipsec tunnel", 6), ("ipsec user", 7)];
    let known = |usage: &String| match usage.as_str() {
        "client auth" => Some(Usage::ClientAuth),
        "server auth" => Some(Usage::ServerAuth),
        other => {
            let (_, end) = IPSEC.iter().find(|(name, _)| *name == other)?;
            Some(Usage::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, *end]))
        }
    };
    asked.iter().filter_map(known).collect()
}
