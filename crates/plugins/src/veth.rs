//! Pairs of virtual Ethernet devices: one end in the container, the other on the host (cni-plugins §2.3).

use std::os::fd::AsFd as _;

use cni::Error;
use linux::{
    link::{Link, LinkRef, Mac, VethSpec},
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

/// How often a name that is taken is replaced by another.
const ATTEMPTS: usize = 10;

/// What the ends are to be like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    /// Name of the container's end.
    pub(crate) ifname: &'a str,
    /// Address of the container's end.
    pub(crate) mac: Option<Mac>,
    /// MTU of both ends, bytes.
    pub(crate) mtu: Option<u32>,
}

/// A pair that was made.
#[derive(Debug)]
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

/// Makes a pair, both ends down. On failure nothing stays.
pub(crate) fn create(pod: &mut Pod, host: &mut Socket, home: &NetNs, wish: Wish<'_>) -> Result<Pair, Error> {
    let outer_name = make(pod, host, home, wish)?;
    match describe(pod, host, wish.ifname, outer_name) {
        Ok(pair) => {
            // The host must not take addresses from routers that pods pretend to be. Without IPv6 it cannot.
            let _ = Key::ipv6(&pair.outer_name, "accept_ra").and_then(|key| key.write("0"));
            Ok(pair)
        }
        Err(error) => {
            // The first error is the one that counts; a pair that stays goes with the namespace.
            let _ = pod.socket.delete_link_by_name(wish.ifname);
            Err(kernel(MAKE_VETH, &error))
        }
    }
}

fn make(pod: &mut Pod, host: &mut Socket, home: &NetNs, wish: Wish<'_>) -> Result<String, Error> {
    for _ in 0..ATTEMPTS {
        let peer_name = random_name().explain(|| MAKE_VETH.to_owned())?;
        let made = pod.socket.create_veth(&VethSpec {
            name: wish.ifname,
            mac: wish.mac,
            mtu: wish.mtu,
            peer_name: &peer_name,
            peer_ns: Some(home.as_fd()),
        });
        match made {
            Ok(()) => return Ok(peer_name),
            Err(error) if error.is_exists() => {
                let peer_taken = host
                    .find_link(&peer_name)
                    .explain(|| MAKE_VETH.to_owned())?
                    .is_some();
                if !peer_taken {
                    return Err(Error::internal(format!(
                        "container veth name (\"{}\") peer provided (\"{peer_name}\") already exists",
                        wish.ifname
                    )));
                }
            }
            Err(error) => return Err(kernel(MAKE_VETH, &error)),
        }
    }
    Err(Error::internal(format!(
        "{MAKE_VETH}: failed to find a unique veth name"
    )))
}

fn describe(pod: &mut Pod, host: &mut Socket, ifname: &str, outer_name: String) -> linux::Result<Pair> {
    let inner = pod.socket.link_by_name(ifname)?;
    let outer_index = match inner.peer {
        Some(index) => index,
        None => host.link_by_name(&outer_name)?.index,
    };
    Ok(Pair {
        inner,
        outer_index,
        outer_name,
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
