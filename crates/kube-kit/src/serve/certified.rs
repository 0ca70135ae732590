//! Servers over TLS whose certificate somebody else writes, and where flags and variables say that they listen.
//!
//! ```text
//! tls.crt, tls.key ──> Files ──> Tls <── Profile
//!                                 │
//! Bind ──> addresses ──> Server ──┘
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use axum::Router;
use tokio::task::JoinSet;

use super::{Error, Limits, Readiness, Server};
use crate::tls::files::Files;
use crate::tls::{self, Authorities, Identity, Profile, Tls};

/// Where a server listens, as Go's programs write it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bind {
    /// Nowhere: `0`.
    Off,
    /// On a port of all addresses: `:8443`.
    Everywhere(u16),
    /// On an address: `127.0.0.1:8443`, `[::1]:8443`, `localhost:8443`.
    At(String, u16),
}

/// What is said is no address. The words are those of flags about metrics, which are all that say so today.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid metrics address {0:?}, expected host:port or :port")]
pub struct InvalidBind(String);

impl FromStr for Bind {
    type Err = InvalidBind;

    fn from_str(text: &str) -> Result<Self, InvalidBind> {
        let invalid = || InvalidBind(text.to_owned());
        if text == "0" {
            return Ok(Self::Off);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        let bracketed = host.strip_prefix('[').map(|host| host.strip_suffix(']'));
        match bracketed {
            Some(Some(host)) if !host.is_empty() => Ok(Self::At(host.to_owned(), port)),
            Some(_) => Err(invalid()),
            None if host.is_empty() => Ok(Self::Everywhere(port)),
            // Without brackets it would be guessed which colon is the last.
            None if host.contains(':') => Err(invalid()),
            None => Ok(Self::At(host.to_owned(), port)),
        }
    }
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Self {
        Self::At(address.ip().to_string(), address.port())
    }
}

/// There is no server.
#[derive(Debug, thiserror::Error)]
pub enum NoServer {
    /// TLS can't be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] tls::Error),
    /// It can't listen.
    #[error(transparent)]
    Listen(#[from] Error),
    /// It is to listen nowhere.
    #[error("there is no address to listen on")]
    Nowhere,
    /// A host of that name has no address.
    #[error("cannot find an address of {host:?}")]
    Host {
        /// Its name.
        host: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// As whom a server over TLS is known, and what its clients may take.
#[derive(Clone, Debug)]
pub struct Certified {
    /// Directory with `tls.crt` and `tls.key`, which is followed; `None`: nobody writes them.
    pub certificates: Option<PathBuf>,
    /// Names in the certificate of its own that it shows as long as there is no other.
    pub names: Vec<String>,
    /// Versions, ciphers and groups.
    pub profile: Profile,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// Authorities of clients that are known by their certificates, if any are.
    pub authorities: Option<Authorities>,
    /// What clients may take.
    pub limits: Limits,
}

impl Certified {
    /// Serves `router` where `bind` says; `None` when that is nowhere. `loaded` gets ready when the certificate of the
    /// directory is used: at once, if it is there already.
    ///
    /// # Errors
    /// When it can't listen there, or TLS can't be set up. A certificate that is missing or wrong is waited for.
    pub async fn serve(
        self,
        bind: &Bind,
        router: Router,
        loaded: &Readiness,
    ) -> Result<Option<Serving>, NoServer> {
        let Self {
            certificates,
            names,
            profile,
            http2,
            authorities,
            limits,
        } = self;
        let mut files = certificates.map(Files::new);
        // What is missing or wrong is told by what follows the files.
        let found = files.as_mut().and_then(|files| files.read().ok().flatten());
        let identity = match found {
            Some(identity) => {
                loaded.set(true);
                identity
            }
            None => Identity::self_signed(&names)?,
        };
        let tls = if http2 {
            Tls::with_http2(identity)?
        } else {
            Tls::new(identity)?
        };
        tls.set_profile(profile)?;
        if let Some(authorities) = authorities {
            tls.set_authorities(authorities)?;
        }
        let server = match bind {
            Bind::Off => return Ok(None),
            Bind::Everywhere(port) => Server::on_port_tls_within(*port, router, &tls, limits).await?,
            Bind::At(host, port) => {
                let address = resolve(host, *port).await?;
                Server::start_tls_within(address, router, &tls, limits).await?
            }
        };
        let mut follower = JoinSet::new();
        if let Some(files) = files {
            let loaded = loaded.clone();
            follower.spawn(async move { files.follow(&tls, || loaded.set(true)).await });
        }
        Ok(Some(Serving { server, follower }))
    }
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, NoServer> {
    let failed = |source| NoServer::Host {
        host: host.to_owned(),
        source,
    };
    let mut addresses = tokio::net::lookup_host((host, port)).await.map_err(failed)?;
    addresses
        .next()
        .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
}

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Serving {
    server: Server,
    /// Keeps to the files of the certificate; ends when it is dropped.
    follower: JoinSet<()>,
}

impl Serving {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Takes no more connections, and ends when the requests under way are answered.
    pub async fn stop(self) {
        let Self { server, follower } = self;
        drop(follower);
        server.stop().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on_are_read_as_go_does() {
        let at = |host: &str, port| Ok(Bind::At(host.to_owned(), port));
        for (text, expected) in [
            (":8443", Ok(Bind::Everywhere(8443))),
            ("0", Ok(Bind::Off)),
            ("127.0.0.1:8443", at("127.0.0.1", 8443)),
            ("localhost:1", at("localhost", 1)),
            ("[::1]:8443", at("::1", 8443)),
        ] {
            assert_eq!(text.parse::<Bind>(), expected, "{text}");
        }
        for text in ["", "8443", ":", ":x", ":65536", "::1:8443", "[::1:8443", "[]:1"] {
            let error = text.parse::<Bind>().expect_err(text);
            assert_eq!(
                error.to_string(),
                format!("invalid metrics address {text:?}, expected host:port or :port")
            );
        }
    }
}
