//! The address of a database server, in the notation of Open vSwitch.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

const UNIX: &str = "unix:";
const TCP: &str = "tcp:";
const SSL: &str = "ssl:";

/// Address of a database server: `unix:<path>`, a plain path, or `tcp:<ip>:<port>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Path of a unix socket.
    Unix(PathBuf),
    /// Address and port of a TCP socket.
    Tcp(SocketAddr),
}

/// The text is not a usable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// The path is missing.
    #[error("the OVSDB address \"{0}\" has no path; use unix:<path>, or tcp:<ip>:<port>")]
    NoPath(String),
    /// The part after `tcp:` is not an address.
    #[error("the OVSDB address \"{0}\" is not tcp:<ip>:<port>")]
    Tcp(String),
    /// TLS is not supported.
    #[error(
        "the OVSDB address \"{0}\" is not supported: connect by unix:<path> or tcp:<ip>:<port>, not by ssl"
    )]
    Ssl(String),
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Some(address) = text.strip_prefix(TCP) {
            let address = address
                .parse()
                .map_err(|_| InvalidAddress::Tcp(text.to_owned()))?;
            return Ok(Self::Tcp(address));
        }
        if text.starts_with(SSL) {
            return Err(InvalidAddress::Ssl(text.to_owned()));
        }
        let path = text.strip_prefix(UNIX).unwrap_or(text);
        if path.is_empty() {
            return Err(InvalidAddress::NoPath(text.to_owned()));
        }
        Ok(Self::Unix(path.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Tcp(address) => write!(f, "{TCP}{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_form_is_parsed_and_printed() {
        for (text, shown) in [
            ("unix:/run/db.sock", "unix:/run/db.sock"),
            ("/run/db.sock", "unix:/run/db.sock"),
            ("tcp:127.0.0.1:6640", "tcp:127.0.0.1:6640"),
            ("tcp:[::1]:6640", "tcp:[::1]:6640"),
        ] {
            assert_eq!(
                text.parse::<Address>().map(|it| it.to_string()).as_deref(),
                Ok(shown)
            );
        }
    }

    #[test]
    fn unusable_address_is_refused_and_named() {
        for text in [
            "",
            "unix:",
            "tcp:",
            "tcp:127.0.0.1",
            "tcp:host:6640",
            "ssl:127.0.0.1:6640",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }
}
