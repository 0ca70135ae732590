//! The wire form of a review, in both versions: the used fields are the same.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::messages;
use super::{Change, Denial, Operation, Request, Verdict};

const KIND: &str = "AdmissionReview";
const V1: &str = "admission.k8s.io/v1";
const V1BETA1: &str = "admission.k8s.io/v1beta1";

/// Version and UID for the response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReplyTo {
    version: Version,
    uid: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Version {
    #[default]
    V1,
    V1Beta1,
}

impl Version {
    fn of(text: &str) -> Option<Self> {
        match text {
            V1 => Some(Self::V1),
            V1BETA1 => Some(Self::V1Beta1),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::V1 => V1,
            Self::V1Beta1 => V1BETA1,
        }
    }
}

/// A malformed review.
#[derive(Debug, PartialEq)]
pub(super) struct Malformed {
    pub(super) reply_to: ReplyTo,
    pub(super) denial: Denial,
}

impl From<Denial> for Malformed {
    fn from(denial: Denial) -> Self {
        Self {
            reply_to: ReplyTo::default(),
            denial,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<WireRequest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest {
    uid: String,
    operation: Operation,
    #[serde(default, deserialize_with = "or_default")]
    namespace: String,
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    dry_run: bool,
    object: Option<Box<RawValue>>,
    old_object: Option<Box<RawValue>>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a client's review in one pass.
pub(super) fn read(body: &[u8], client: IpAddr) -> Result<(ReplyTo, Request), Malformed> {
    let review: Review = serde_json::from_slice(body).map_err(|error| Malformed {
        reply_to: salvage(body),
        denial: Denial::of(400, error.to_string()),
    })?;
    let version = Version::of(&review.api_version).filter(|_| review.kind == KIND);
    let reply_to = |request: Option<&WireRequest>| ReplyTo {
        version: version.unwrap_or_default(),
        uid: request.map(|request| request.uid.clone()).unwrap_or_default(),
    };
    if version.is_none() {
        return Err(Malformed {
            reply_to: reply_to(review.request.as_ref()),
            denial: Denial::of(400, messages::not_a_review(&review.kind, &review.api_version)),
        });
    }
    let Some(request) = review.request else {
        return Err(Malformed {
            reply_to: reply_to(None),
            denial: Denial::of(400, messages::NO_REQUEST),
        });
    };
    let reply_to = reply_to(Some(&request));
    let request = Request {
        client,
        uid: request.uid,
        operation: request.operation,
        namespace: request.namespace,
        name: request.name,
        dry_run: request.dry_run,
        object: request.object,
        old_object: request.old_object,
    };
    Ok((reply_to, request))
}

/// Version and UID of a malformed review: the API server ignores a response without the UID.
fn salvage(body: &[u8]) -> ReplyTo {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Review {
        api_version: String,
        request: Request,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Request {
        uid: String,
    }
    let review: Review = serde_json::from_slice(body).unwrap_or_default();
    ReplyTo {
        version: Version::of(&review.api_version).unwrap_or_default(),
        uid: review.request.uid,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    status: Status<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'a str>,
    /// Both versions have them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Status<'a> {
    code: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

impl ReplyTo {
    /// UID of the request; empty if it could not be read.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// The response as JSON.
    pub(super) fn answer(&self, verdict: &Verdict) -> Result<Vec<u8>, serde_json::Error> {
        let status = match &verdict.denied {
            Some(denial) => Status {
                code: denial.code,
                reason: (denial.code == messages::FORBIDDEN.0).then_some(messages::FORBIDDEN.1),
                message: Some(&denial.message),
            },
            None => Status {
                code: 200,
                reason: None,
                message: verdict.message.as_deref(),
            },
        };
        let patch: &[Change] = if verdict.denied.is_some() {
            &[]
        } else {
            &verdict.patch
        };
        let patch = if patch.is_empty() {
            None
        } else {
            Some(STANDARD.encode(serde_json::to_vec(patch)?))
        };
        serde_json::to_vec(&Answer {
            api_version: self.version.as_str(),
            kind: KIND,
            response: Response {
                uid: &self.uid,
                allowed: verdict.denied.is_none(),
                status,
                patch_type: patch.as_ref().map(|_| "JSONPatch"),
                patch,
                warnings: &verdict.warnings,
            },
        })
    }
}
