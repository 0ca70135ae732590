//! Servers over TLS whose certificate another program writes, and their listen addresses in flags and variables.
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
use crate::address;
use crate::tls::files::Files;
use crate::tls::{self, Authorities, Identity, Profile, Tls};

/// A listen address in the form of Go's programs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bind {
    /// No server: `0`.
    Off,
    /// A port of all addresses: `:8443`.
    Everywhere(u16),
    /// One address: `127.0.0.1:8443`, `[::1]:8443`, `localhost:8443`.
    At(String, u16),
}

/// An invalid listen address. The text mentions metrics, because only flags of metrics report it.
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
        Ok(match address::split(text).ok_or_else(invalid)? {
            ("", port) => Self::Everywhere(port),
            (host, port) => Self::At(host.to_owned(), port),
        })
    }
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Self {
        Self::At(address.ip().to_string(), address.port())
    }
}

/// A server that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NoServer {
    /// The TLS settings are invalid.
    #[error("cannot set up TLS")]
    Tls(#[from] tls::Error),
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] Error),
    /// The address means no server.
    #[error("no listen address is configured")]
    Nowhere,
    /// The host name has no address.
    #[error("cannot find an address of {host:?}")]
    Host {
        /// The host name.
        host: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Identity and limits of a server over TLS.
#[derive(Clone, Debug)]
pub struct Certified {
    /// Directory with `tls.crt` and `tls.key`, whose changes take effect; `None` for a self-signed certificate alone.
    pub certificates: Option<PathBuf>,
    /// Names in the self-signed certificate that is used until there is another one.
    pub names: Vec<String>,
    /// Versions, ciphers and groups.
    pub profile: Profile,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// Certificate authorities of clients, if client certificates are accepted.
    pub authorities: Option<Authorities>,
    /// Limits of the clients.
    pub limits: Limits,
}

impl Certified {
    /// Serves `router` at `bind`; `None` if that means no server. `loaded` becomes ready when the certificate in the
    /// directory is used: at once, if it exists already.
    ///
    /// # Errors
    /// If it cannot listen there, or the TLS settings are invalid. A missing or invalid certificate is not an error:
    /// the server waits for a valid one.
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
        // The task that follows the files logs a missing or invalid certificate.
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

impl Server {
    /// Serves `router` at `bind` without TLS; `None` if that means no server.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub async fn at(bind: &Bind, router: Router) -> Result<Option<Self>, NoServer> {
        let server = match bind {
            Bind::Off => return Ok(None),
            Bind::Everywhere(port) => Self::on_port(*port, router).await?,
            Bind::At(host, port) => Self::start(resolve(host, *port).await?, router).await?,
        };
        Ok(Some(server))
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
    /// Follows the files of the certificate; ends when it is dropped.
    follower: JoinSet<()>,
}

impl Serving {
    /// The local address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Accepts no more connections, and ends when the running requests are answered, or after the grace time.
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
    fn bind_is_parsed_as_by_go() {
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
