//! Versions of the CNI specification.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, code};

/// A version of the CNI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0, also the version of a config without `cniVersion`.
    V0_1_0,
    /// 0.2.0
    V0_2_0,
    /// 0.3.0: lists of interfaces and addresses.
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0: CHECK.
    V0_4_0,
    /// 1.0.0: no `version` in addresses.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The newest version.
    pub const LATEST: Self = Self::V1_1_0;

    /// This version and all later ones.
    pub fn and_later(self) -> &'static [Self] {
        let earlier = Self::ALL.iter().filter(|version| **version < self).count();
        &Self::ALL[earlier..]
    }

    /// The version's text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Whether this version has CHECK (0.4.0 and later).
    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// Whether this version has GC and STATUS (1.1.0 and later).
    pub fn has_gc_and_status(self) -> bool {
        self >= Self::V1_1_0
    }

    /// The error with code 1 for an unsupported config version (cni-plugins §1.3).
    pub fn unsupported(config: &str, supported: &[Self]) -> Error {
        let list: Vec<String> = supported.iter().map(|version| format!("\"{version}\"")).collect();
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with_details(format!(
            "config is \"{config}\", plugin supports [{}]",
            list.join(" ")
        ))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not a version of the specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a CNI version")]
pub struct UnknownVersion(pub String);

impl FromStr for Version {
    type Err = UnknownVersion;

    /// Parses a version. The empty text means 0.1.0, like a missing `cniVersion`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::V0_1_0);
        }
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        for version in Version::ALL {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert!(Version::ALL.is_sorted());
        assert_eq!(Version::V0_1_0.and_later(), Version::ALL);
        assert_eq!(Version::V1_0_0.and_later(), [Version::V1_0_0, Version::LATEST]);
        assert_eq!("".parse(), Ok(Version::V0_1_0));
        assert!("9.9.9".parse::<Version>().is_err());
    }
}
