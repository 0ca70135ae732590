//! The owner of a lease, stored as the content of its file.

use std::fmt;

use cni::{
    config::ValidAttachment,
    env::{Request, is_identifier, validate_ifname},
};

/// Separates container and interface in a lease.
const SEPARATOR: &str = "\r\n";

/// The owner of a lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    container_id: String,
    /// `None` in leases by old upstream versions, which store only the container.
    ifname: Option<String>,
}

impl Owner {
    /// The attachment of a call.
    pub(super) fn of(request: &Request) -> Self {
        Self {
            container_id: request.container_id.clone(),
            ifname: Some(request.ifname.clone()),
        }
    }

    pub(crate) fn container_id(&self) -> &str {
        &self.container_id
    }

    pub(crate) fn ifname(&self) -> Option<&str> {
        self.ifname.as_deref()
    }

    /// The owner as in leases by old versions.
    pub(super) fn without_interface(&self) -> Self {
        Self {
            container_id: self.container_id.clone(),
            ifname: None,
        }
    }

    /// Parses a lease, ignoring surrounding white space. `None` for content that no plugin writes.
    pub(crate) fn parse(content: &str) -> Option<Self> {
        let content = content.trim();
        let (container_id, ifname) = match content.split_once(SEPARATOR) {
            Some((container_id, ifname)) => (container_id, Some(ifname)),
            None => (content, None),
        };
        let valid = is_identifier(container_id) && ifname.is_none_or(|name| validate_ifname(name).is_ok());
        valid.then(|| Self {
            container_id: container_id.to_owned(),
            ifname: ifname.map(str::to_owned),
        })
    }

    /// The content of the owner's lease file.
    pub(super) fn content(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}{SEPARATOR}{ifname}", self.container_id),
            None => self.container_id.clone(),
        }
    }

    /// Whether the owner is a valid attachment. An owner without interface matches every attachment of its
    /// container.
    pub(super) fn is_one_of(&self, valid: &[ValidAttachment]) -> bool {
        valid.iter().any(|attachment| {
            attachment.container_id == self.container_id
                && self
                    .ifname
                    .as_ref()
                    .is_none_or(|ifname| *ifname == attachment.ifname)
        })
    }
}

/// A unique name: neither part can contain a colon.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}",
            self.container_id,
            self.ifname.as_deref().unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(container_id: &str, ifname: Option<&str>) -> Owner {
        Owner {
            container_id: container_id.into(),
            ifname: ifname.map(str::to_owned),
        }
    }

    // cni-plugins#39
    #[test]
    fn leases_of_all_formats_are_parsed() {
        for (content, expected) in [
            ("abc\r\neth0", Some(owner("abc", Some("eth0")))),
            (" abc\r\neth0\r\n\n", Some(owner("abc", Some("eth0")))),
            ("abc", Some(owner("abc", None))),
            ("\tabc \n", Some(owner("abc", None))),
            ("", None),
            ("abc\neth0", None),
            ("taken by hand", None),
            ("abc\r\n../../eth0", None),
            ("../abc\r\neth0", None),
            ("abc\r\neth0\r\nmore", None),
        ] {
            assert_eq!(Owner::parse(content), expected, "{content:?}");
        }
        let both = owner("abc", Some("eth0"));
        assert_eq!(both.content(), "abc\r\neth0");
        assert_eq!(both.to_string(), "abc:eth0");
        assert_eq!(both.without_interface().content(), "abc");
        assert_eq!(both.without_interface().to_string(), "abc:");
    }

    #[test]
    fn lease_without_interface_is_valid_with_its_container() {
        let valid = [("abc", "eth0"), ("def", "net1")].map(|(container_id, ifname)| ValidAttachment {
            container_id: container_id.into(),
            ifname: ifname.into(),
        });
        for (lease, expected) in [
            (owner("abc", Some("eth0")), true),
            (owner("abc", Some("net1")), false),
            (owner("abc", None), true),
            (owner("ghi", None), false),
        ] {
            assert_eq!(lease.is_one_of(&valid), expected, "{lease}");
            assert!(!lease.is_one_of(&[]));
        }
    }
}
