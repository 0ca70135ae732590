//! `loopback`: sets `lo` up in the pod (cni-plugins §15).

use cni::{
    Error,
    plugin::{Call, Plugin},
    result::{CniResult, Interface, IpConfig},
};
use linux::address::Address;

use crate::{
    messages::{Explain, LOOPBACK_DOWN},
    names::{LO, LOOPBACK},
    pod::Pod,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Loopback;

/// The reported addresses: the first of each family. A non-loopback address is an error.
fn addresses(found: &[Address]) -> Result<Vec<IpConfig>, Error> {
    if let Some(foreign) = found.iter().find(|address| !address.net.addr().is_loopback()) {
        return Err(Error::internal(format!(
            "loopback interface found with non-loopback address \"{}\"",
            foreign.net.addr()
        )));
    }
    let first = |v4: bool| {
        found
            .iter()
            .find(move |address| address.net.addr().is_ipv4() == v4)
    };
    let ips = [first(true), first(false)].into_iter().flatten();
    Ok(ips
        .map(|ip| IpConfig {
            address: ip.net,
            gateway: None,
            interface: Some(0),
        })
        .collect())
}

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        LOOPBACK
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let mut pod = Pod::open(call)?;
        let lo = pod
            .socket
            .link_by_name(LO)
            .explain(|| format!("failed to lookup \"{LO}\""))?;
        pod.socket
            .set_up(&lo)
            .explain(|| format!("failed to set \"{LO}\" UP"))?;
        let found = pod
            .socket
            .addresses(&lo, None)
            .explain(|| format!("failed to list addresses of \"{LO}\""))?;
        let ips = addresses(&found)?;
        if let Some(previous) = call.config.prev_result()? {
            return Ok(previous);
        }
        let interface = Interface {
            name: LO.into(),
            mac: Some("00:00:00:00:00:00".into()),
            sandbox: Some(pod.path),
            ..Interface::default()
        };
        Ok(CniResult {
            interfaces: vec![interface],
            ips,
            ..CniResult::default()
        })
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let Some(mut pod) = Pod::find_remaining(call)? else {
            return Ok(());
        };
        let lo = pod
            .socket
            .link_by_name(LO)
            .explain(|| format!("failed to lookup \"{LO}\""))?;
        pod.socket
            .set_down(&lo)
            .explain(|| format!("failed to set \"{LO}\" down"))
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let mut pod = Pod::open(call)?;
        let lo = pod
            .socket
            .link_by_name(LO)
            .explain(|| format!("failed to lookup \"{LO}\""))?;
        if lo.is_up() {
            Ok(())
        } else {
            Err(Error::internal(LOOPBACK_DOWN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_lo(nets: &[&str]) -> Vec<Address> {
        let address = |net: &&str| Address {
            link: 1,
            net: net.parse().unwrap(),
            tentative: false,
            duplicate: false,
            global: false,
        };
        nets.iter().map(address).collect()
    }

    #[test]
    fn the_first_address_of_each_family_is_reported() {
        let ips = addresses(&on_lo(&["127.0.0.1/8", "127.0.0.2/8", "::1/128"])).unwrap();
        let nets: Vec<_> = ips.iter().map(|ip| ip.address.to_string()).collect();
        assert_eq!(nets, ["127.0.0.1/8", "::1/128"]);
    }

    #[test]
    fn non_loopback_address_is_rejected() {
        let error = addresses(&on_lo(&["127.0.0.1/8", "10.1.2.3/32"])).unwrap_err();
        assert_eq!(
            error.msg,
            "loopback interface found with non-loopback address \"10.1.2.3\""
        );
    }
}
