//! The parent link of a macvlan, ipvlan or VLAN: `master`, `mtu` and `linkInContainer` of a config (cni-plugins §9,
//! §15).

use cni::{Error, error::code, plugin::Call};
use linux::{
    address::Family,
    link::Link,
    route::Socket,
    routes::{MAIN_TABLE, Route},
};
use serde::Deserialize;

use crate::{
    config::read_config,
    messages::{Explain as _, NO_DEFAULT_INTERFACE},
    pod::Pod,
};

/// The configured parent link.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Parent {
    /// The link's name. Empty: the link of the default route.
    pub(crate) master: String,
    /// The parent is in the pod's namespace instead of the host's.
    pub(crate) in_container: bool,
    /// MTU of the child in bytes. 0: the parent's MTU.
    pub(crate) mtu: i64,
}

/// An existing parent.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) link: Link,
    /// The parent is in the pod's namespace.
    pub(crate) in_container: bool,
    /// MTU of the child in bytes.
    pub(crate) mtu: Option<u32>,
}

impl Parent {
    /// Looks up the parent and validates the MTU.
    pub(crate) fn find(&self, host: &mut Socket, pod: &mut Pod) -> Result<Found, Error> {
        let socket = if self.in_container { &mut pod.socket } else { host };
        let link = if self.master.is_empty() {
            let index = default_index(|family| {
                socket
                    .routes(family)
                    .explain(|| "failed to list routes".to_owned())
            })?;
            let found = socket.link_by_index(index);
            found.explain(|| "failed to lookup the default route's interface".to_owned())?
        } else {
            look_up(socket, &self.master)?
        };
        Ok(Found {
            mtu: self.mtu_above(&link)?,
            link,
            in_container: self.in_container,
        })
    }

    fn mtu_above(&self, link: &Link) -> Result<Option<u32>, Error> {
        let mtu = u32::try_from(self.mtu).ok().filter(|mtu| *mtu <= link.mtu);
        let mtu = mtu.ok_or_else(|| {
            Error::internal(format!(
                "invalid MTU {}, must be [0, master MTU({})]",
                self.mtu, link.mtu
            ))
        })?;
        Ok(Some(mtu).filter(|mtu| *mtu != 0))
    }
}

/// STATUS: error 50 if the configured host parent does not exist.
pub(crate) fn status(call: &Call) -> Result<(), Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Wire {
        master: String,
        link_in_container: bool,
    }
    let wire: Wire = read_config(call)?;
    if wire.master.is_empty() || wire.link_in_container {
        return Ok(());
    }
    let mut host = Socket::open().map_err(cni::error::internal)?;
    look_up(&mut host, &wire.master).map(drop).map_err(|error| Error {
        code: code::PLUGIN_NOT_AVAILABLE,
        ..error
    })
}

fn look_up(socket: &mut Socket, master: &str) -> Result<Link, Error> {
    socket
        .link_by_name(master)
        .explain(|| format!("failed to lookup master \"{master}\""))
}

/// The link of the default route. IPv4 comes before IPv6.
fn default_index(mut list: impl FnMut(Family) -> Result<Vec<Route>, Error>) -> Result<u32, Error> {
    for family in [Family::V4, Family::V6] {
        if let Some(index) = default_link(&list(family)?) {
            return Ok(index);
        }
    }
    Err(Error::internal(NO_DEFAULT_INTERFACE))
}

/// The link of the first default route.
fn default_link(routes: &[Route]) -> Option<u32> {
    let first = routes
        .iter()
        .find(|route| route.dst.prefix_len() == 0 && route.table == Some(MAIN_TABLE) && route.link.is_some());
    first.and_then(|route| route.link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, link: Option<u32>, table: u32) -> Route {
        Route {
            link,
            table: Some(table),
            ..Route::to(dst.parse().unwrap())
        }
    }

    #[test]
    fn the_first_default_route_of_the_main_table_decides() {
        let routes = [
            route("10.0.0.0/8", Some(2), MAIN_TABLE),
            route("0.0.0.0/0", Some(3), 100),
            route("0.0.0.0/0", None, MAIN_TABLE),
            route("0.0.0.0/0", Some(4), MAIN_TABLE),
            route("0.0.0.0/0", Some(5), MAIN_TABLE),
        ];
        assert_eq!(default_link(&routes), Some(4));
        assert_eq!(default_link(&routes[..3]), None);
    }

    #[test]
    fn default_route_of_ipv6_decides_without_one_of_ipv4() {
        // cni-plugins#88
        let v4 = [route("0.0.0.0/0", Some(4), MAIN_TABLE)];
        let v6 = [
            route("fd00::/64", Some(2), MAIN_TABLE),
            route("::/0", Some(6), MAIN_TABLE),
        ];
        let of = |v4: &[Route], v6: &[Route]| {
            default_index(|family| {
                Ok(match family {
                    Family::V4 => v4.to_vec(),
                    Family::V6 => v6.to_vec(),
                })
            })
            .map_err(|error| error.msg)
        };
        assert_eq!(of(&v4, &v6), Ok(4));
        assert_eq!(of(&[], &v6), Ok(6));
        assert_eq!(of(&[], &v6[..1]), Err(NO_DEFAULT_INTERFACE.to_owned()));
    }

    #[test]
    fn mtu_above_the_parents_is_rejected() {
        // cni-plugins#46
        let mut link = Link::default();
        link.mtu = 1500;
        let of = |mtu| {
            let parent = Parent {
                mtu,
                ..Parent::default()
            };
            parent.mtu_above(&link).map_err(|error| error.msg)
        };
        assert_eq!(of(0), Ok(None));
        assert_eq!(of(1500), Ok(Some(1500)));
        for bad in [-1, 1501, 1 << 40] {
            let text = format!("invalid MTU {bad}, must be [0, master MTU(1500)]");
            assert_eq!(of(bad), Err(text));
        }
    }
}
