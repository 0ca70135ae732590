//! The error that a CNI plugin prints and a runtime reads.

use serde::{Deserialize, Serialize};

/// Codes of the CNI specification; plugin-specific ones begin at 100.
pub mod code {
    /// The config's version is not supported.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field of the config is not supported.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is unknown or does not exist.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A `CNI_*` variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// The config could not be decoded.
    pub const DECODING: u32 = 6;
    /// The network config is invalid.
    pub const INVALID_NETWORK_CONFIG: u32 = 7;
    /// The network namespace is invalid.
    pub const INVALID_NETNS: u32 = 8;
    /// Transient: the runtime should retry with back-off.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: the plugin can not service ADD.
    pub const PLUGIN_NOT_AVAILABLE: u32 = 50;
    /// STATUS: the plugin can not service ADD, and existing containers may have limited connectivity.
    pub const PLUGIN_NOT_AVAILABLE_LIMITED: u32 = 51;
    /// Every other failure of a plugin.
    pub const INTERNAL: u32 = 999;
}

/// An error of the CNI protocol: `{"code": N, "msg": "...", "details": "..."}` (cni-plugins §1.2).
///
/// Displayed as `msg`, followed by `; details` where there are details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { "; " })]
pub struct Error {
    /// One of [`code`], or a plugin's own.
    #[serde(default)]
    pub code: u32,
    /// The error, in one line.
    #[serde(default)]
    pub msg: String,
    /// Details; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Error {
    /// An error with a code and a message.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// A plugin's own error, code 999.
    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, msg)
    }

    /// The same error with details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// This error with the caller's context: code 999, `prefix: msg[; details]` (cni-plugins §1.2).
    #[must_use]
    pub fn wrapped(&self, prefix: &str) -> Self {
        Self::internal(format!("{prefix}: {self}"))
    }

    /// The same, but keeps code and details, for callers that pass a typed error on.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Self {
        Self {
            code: self.code,
            msg: format!("{prefix}: {}", self.msg),
            details: self.details.clone(),
        }
    }
}

/// Converts any error to code 999, for `map_err`.
#[allow(clippy::needless_pass_by_value, reason = "map_err hands the error over")]
pub fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_follow_the_message() {
        let error = Error::new(code::TRY_AGAIN_LATER, "later");
        assert_eq!(error.to_string(), "later");
        let error = error.with_details("busy");
        assert_eq!(error.to_string(), "later; busy");
        assert_eq!(error.wrapped("ipam").to_string(), "ipam: later; busy");
        assert_eq!(error.prefixed("ipam").code, code::TRY_AGAIN_LATER);
    }

    #[test]
    fn empty_details_are_left_out() {
        let text = serde_json::to_string(&Error::internal("x")).unwrap();
        assert_eq!(text, r#"{"code":999,"msg":"x"}"#);
    }
}
