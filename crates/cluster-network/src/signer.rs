//! Certificates of nodes for `IPsec`: which signing requests are approved and signed (§17.4).
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
/// First part of the names of users that are nodes.
const NODE: &str = "system:ovn-node:";

/// What to do about a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// Nothing.
    Leave,
    /// It can't be answered: the condition `Failed`.
    Fail {
        /// In one word.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// The condition `Approved`.
    Approve,
    /// A certificate.
    Sign,
}

/// The node that a user claims to be.
pub fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix(NODE).filter(|node| !node.is_empty())
}

/// What to do about a request; `exists` says whether the node is there that its [requester](node_of) claims to be.
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
    // Also before it is signed: somebody else may have approved it.
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
    /// The requester is no node.
    pub const INVALID_USER: &str = "CSRInvalidUser";
    /// Approved without a person.
    pub const APPROVED: &str = "AutoApproved";
    /// There is no authority to sign with.
    pub const NO_AUTHORITY: &str = "CAFailure";
    /// The request can't be read.
    pub const DECODE: &str = "CSRDecodeFailure";
    /// The authority's certificate is unusable.
    pub const CORRUPT_CERTIFICATE: &str = "CorruptCACert";
    /// The authority's key is unusable.
    pub const CORRUPT_KEY: &str = "CorruptCAKey";
    /// Signing failed.
    pub const SIGNING: &str = "SigningFailure";
    /// The answer was not accepted.
    pub const UPDATE: &str = "UpdateFailure";
}

/// The reason for which something was not signed.
pub fn reason_of(refused: &Refused) -> &'static str {
    match refused {
        Refused::Certificate => reason::CORRUPT_CERTIFICATE,
        Refused::Key => reason::CORRUPT_KEY,
        Refused::Request(_) => reason::DECODE,
        Refused::Sign(_) => reason::SIGNING,
    }
}

/// What a certificate may be used for, of all that a request asks for. Other usages are those of the key, and always the
/// same.
pub fn usages(asked: &[String]) -> Vec<Usage> {
    /// Ends of RFC 4945's three object identifiers for `IPsec`, below `1.3.6.1.5.5.7.3`.
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
