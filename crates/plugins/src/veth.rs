//! Pairs of virtual Ethernet devices: one end in the container, the other on the host (cni-plugins §2.3).

use std::os::fd::AsFd as _;

use cni::{Error, plugin::Call};
use linux::{
    link::{Link, LinkRef, Mac, VethSpec, delete_link_and_leave},
    netns::NetNs,
    random,
    route::Socket,
    sysctl::Key,
};

use crate::{
    attach::Step,
    messages::{Explain, MAKE_VETH, kernel},
    names::VETH_PREFIX,
    pod::Pod,
};

/// The wanted properties of the two ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    /// Name of the container's end.
    pub(crate) ifname: &'a str,
    /// Name of the host's end.
    pub(crate) outer_name: &'a str,
    /// Address of the container's end.
    pub(crate) mac: Option<Mac>,
    /// MTU of both ends, bytes.
    pub(crate) mtu: Option<u32>,
}

/// A pair that was made.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// The container's end, still down.
    pub(crate) inner: Link,
    /// Index of the host's end.
    pub(crate) outer_index: u32,
    /// Name of the host's end.
    pub(crate) outer_name: String,
}

impl Pair {
    /// The host's end, for changes.
    pub(crate) fn outer(&self) -> LinkRef<'_> {
        LinkRef {
            index: self.outer_index,
            name: &self.outer_name,
        }
    }
}

/// Makes a pair, both ends down; `None` if the host has a link with the name of the host's end. On failure nothing
/// stays.
pub(crate) fn create(
    pod: &mut Pod,
    host: &mut Socket,
    home: &NetNs,
    wish: Wish<'_>,
) -> Result<Option<Pair>, Error> {
    let made = pod.socket.create_veth(&VethSpec {
        name: wish.ifname,
        mac: wish.mac,
        mtu: wish.mtu,
        peer_name: wish.outer_name,
        peer_ns: Some(home.as_fd()),
    });
    match made {
        Ok(()) => {}
        Err(error) if error.is_exists() => {
            let outer = host.find_link(wish.outer_name).explain(|| MAKE_VETH.to_owned())?;
            return match outer {
                Some(_) => Ok(None),
                None => Err(already_exists(wish.ifname, wish.outer_name)),
            };
        }
        Err(error) => return Err(kernel(MAKE_VETH, &error)),
    }
    match describe(pod, host, wish) {
        Ok(pair) => {
            ignore_routers(&pair.outer_name);
            Ok(Some(pair))
        }
        Err(error) => {
            // The first error is the one that counts; a pair that stays goes with the namespace.
            let _ = pod.socket.delete_link_by_name(wish.ifname);
            Err(kernel(MAKE_VETH, &error))
        }
    }
}

/// Keeps the host from taking addresses from routers that pods pretend to be on a link of its own. Without IPv6 it
/// cannot.
pub(crate) fn ignore_routers(name: &str) {
    let _ = Key::ipv6(name, "accept_ra").and_then(|key| key.write("0"));
}

/// Removes one end of a pair, and the other with it; fine if it is gone already. To be called in the namespace of
/// `socket`.
pub(crate) fn delete(call: &Call, socket: &mut Socket, name: &str) -> Result<(), Error> {
    let deleted = if call.resident.is_some() {
        delete_link_and_leave(name)
    } else {
        socket.delete_link_by_name(name)
    };
    match deleted {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.explain(|| format!("failed to delete \"{name}\"")),
    }
}

/// The container has a link called `ifname` already.
fn already_exists(ifname: &str, outer_name: &str) -> Error {
    Error::internal(format!(
        "container veth name (\"{ifname}\") peer provided (\"{outer_name}\") already exists"
    ))
}

/// The same, of an attachment that has a record.
pub(crate) fn occupied(ifname: &str, left: &[Step]) -> Error {
    already_exists(ifname, left.iter().find_map(Step::pair).unwrap_or_default())
}

fn describe(pod: &mut Pod, host: &mut Socket, wish: Wish<'_>) -> linux::Result<Pair> {
    let inner = pod.socket.link_by_name(wish.ifname)?;
    let outer_index = match inner.peer {
        Some(index) => index,
        None => host.link_by_name(wish.outer_name)?.index,
    };
    Ok(Pair {
        inner,
        outer_index,
        outer_name: wish.outer_name.to_owned(),
    })
}

/// `veth` and eight random hexadecimal digits.
pub(crate) fn random_name() -> linux::Result<String> {
    let digits = u32::from_ne_bytes(random::bytes()?);
    Ok(format!("{VETH_PREFIX}{digits:08x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_veth_and_eight_digits() {
        let name = random_name().unwrap();
        let digits = name.strip_prefix("veth").unwrap();
        assert_eq!(digits.len(), 8);
        assert!(
            digits
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
            "{name}"
        );
        assert_ne!(name, random_name().unwrap());
    }
}
