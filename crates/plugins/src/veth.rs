//! Veth pairs with one end in the pod and the other on the host (cni-plugins §2.3).

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
    messages::{Explain, MAKE_VETH, kernel},
    names::VETH_PREFIX,
    pod::Pod,
};

/// Properties of a new pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairSpec<'a> {
    /// Name of the pod's end.
    pub(crate) ifname: &'a str,
    /// Name of the host's end.
    pub(crate) outer_name: &'a str,
    /// MAC of the pod's end.
    pub(crate) mac: Option<Mac>,
    /// MTU of both ends, in bytes.
    pub(crate) mtu: Option<u32>,
}

/// A created pair.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// The pod's end, still down.
    pub(crate) inner: Link,
    /// Index of the host end.
    pub(crate) outer_index: u32,
    /// Name of the host's end.
    pub(crate) outer_name: String,
}

impl Pair {
    /// The host end, for changes.
    pub(crate) fn outer(&self) -> LinkRef<'_> {
        LinkRef {
            index: self.outer_index,
            name: &self.outer_name,
        }
    }
}

/// Creates a pair, both ends down. `None` if the host has a link with the name of the host end. Removes the pair on
/// failure.
pub(crate) fn create(
    pod: &mut Pod,
    host: &mut Socket,
    home: &NetNs,
    spec: PairSpec<'_>,
) -> Result<Option<Pair>, Error> {
    let made = pod.socket.create_veth(&VethSpec {
        name: spec.ifname,
        mac: spec.mac,
        mtu: spec.mtu,
        peer_name: spec.outer_name,
        peer_ns: Some(home.as_fd()),
    });
    let inner = match made {
        Ok(inner) => inner,
        Err(error) if error.is_exists() => {
            let outer = host.find_link(spec.outer_name).explain(|| MAKE_VETH.to_owned())?;
            return match outer {
                Some(_) => Ok(None),
                None => Err(already_exists(spec.ifname, spec.outer_name)),
            };
        }
        Err(error) => return Err(kernel(MAKE_VETH, &error)),
    };
    match describe(inner, host, spec) {
        Ok(pair) => {
            ignore_routers(&pair.outer_name);
            Ok(Some(pair))
        }
        Err(error) => {
            // Best effort, to report the first error: a remaining pair ends with the namespace.
            let _ = pod.socket.delete_link_by_name(spec.ifname);
            Err(kernel(MAKE_VETH, &error))
        }
    }
}

/// Disables the acceptance of router advertisements, which pods could forge, on a host link. No-op without IPv6.
pub(crate) fn ignore_routers(name: &str) {
    let _ = Key::ipv6(name, "accept_ra").and_then(|key| key.write("0"));
}

/// Deletes a pair by one end. A missing pair is no error. Call it in the namespace of `socket`.
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

/// The error for an existing link `ifname` in the pod.
pub(crate) fn already_exists(ifname: &str, outer_name: &str) -> Error {
    Error::internal(format!(
        "container veth name (\"{ifname}\") peer provided (\"{outer_name}\") already exists"
    ))
}

fn describe(inner: Link, host: &mut Socket, spec: PairSpec<'_>) -> linux::Result<Pair> {
    let outer_index = match inner.peer {
        Some(index) => index,
        None => host.link_by_name(spec.outer_name)?.index,
    };
    Ok(Pair {
        inner,
        outer_index,
        outer_name: spec.outer_name.to_owned(),
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
