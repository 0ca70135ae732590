//! The CNI plugins that Weft brings, one module each, and the binary `weft-cni` that is all of them.
//!
//! ```text
//! weft-cni, called as bridge | cnv-bridge | static | ... ──> cni::plugin::main ──> one of these
//!
//!   bridge, ptp, macvlan, macvtap, ipvlan, vlan, dummy, tap, host-device, ovs ──> attach: the driver of all plugins that give a container a link
//!                         ├──> ipam ──> dhcp, host_local, static_ipam in process, others exec'ed
//!                         ├──> veth        a pair, one end in the container
//!                         ├──> record      what is about to be made, for DEL and GC
//!                         ├──> interface   addresses, routes, duplicate address detection
//!                         ├──> check       what CHECK compares
//!                         ├──> spoof_check rules of nftables for ports
//!                         └──> masquerade  rules of nftables or iptables for addresses
//!   tuning, vrf, loopback, passthru, multus_shim
//!   bandwidth, firewall, ovs_mirror, portmap, sbr ──> chained: the result of the plugins before, records
//! ```
//!
//! Every plugin is a [`cni::plugin::Plugin`]: it keeps nothing between calls and never looks at the process'
//! own environment, so that a daemon can run it on a thread as well.

mod attach;
mod bandwidth;
mod bridge;
mod chained;
mod check;
mod comment;
mod config;
pub mod dhcp;
mod dummy;
mod firewall;
mod forwarding;
mod hash;
mod host_device;
pub mod host_local;
mod interface;
mod ipam;
mod iptables;
mod ipvlan;
pub mod lint;
mod lock;
pub mod loopback;
mod macvlan;
pub mod macvtap;
pub mod mark;
mod masquerade;
mod messages;
pub mod multus_shim;
pub mod names;
mod ovs;
mod ovs_mirror;
pub mod passthru;
mod pod;
mod portmap;
mod program;
mod ptp;
mod record;
mod ruleset;
mod sbr;
mod spoof_check;
pub mod static_ipam;
mod tap;
#[cfg(test)]
mod testing;
mod timed;
pub mod traces;
pub mod tuning;
mod veth;
mod vlan;
mod vrf;

use cni::plugin::Plugin;
use linux::nft::matches;

use attach::{Driven, LinkPlugin};
use bandwidth::Bandwidth;
use bridge::Bridge;
use dummy::Dummy;
use firewall::Firewall;
use host_device::HostDevice;
use ipvlan::IpVlan;
use macvlan::MacVlan;
use macvtap::MacVtap;
use ovs::Ovs;
use ovs_mirror::OvsMirror;
use portmap::Portmap;
use ptp::Ptp;
use sbr::Sbr;
use tap::Tap;
use vlan::Vlan;
use vrf::Vrf;

pub use dhcp::Dhcp;
pub use host_local::HostLocal;
pub use loopback::Loopback;
pub use multus_shim::MultusShim;
pub use passthru::Passthru;
pub use static_ipam::StaticIpam;
pub use tuning::Tuning;

/// The plugins that give a container a link.
const LINK_PLUGINS: &[&dyn LinkPlugin] = &[
    &Bridge,
    &Dummy,
    &HostDevice,
    &IpVlan,
    &MacVlan,
    &MacVtap,
    &Ovs,
    &Ptp,
    &Tap,
    &Vlan,
];

/// All plugins, by name.
pub const PLUGINS: &[&dyn Plugin] = &[
    &Bandwidth,
    &Driven(&Bridge),
    &Dhcp,
    &Driven(&Dummy),
    &Firewall,
    &Driven(&HostDevice),
    &HostLocal,
    &Driven(&IpVlan),
    &Loopback,
    &Driven(&MacVlan),
    &Driven(&MacVtap),
    &MultusShim::new(),
    &Driven(&Ovs),
    &OvsMirror::CONSUMER,
    &OvsMirror::PRODUCER,
    &Passthru,
    &Driven(&Ptp),
    &Portmap,
    &Sbr,
    &StaticIpam,
    &Driven(&Tap),
    &Tuning,
    &Driven(&Vlan),
    &Vrf,
];

/// The plugin called `name`; a leading `cnv-` does not count.
pub fn plugin_by_name(name: &str) -> Option<&'static dyn Plugin> {
    let name = name.strip_prefix(names::PREFIX).unwrap_or(name);
    PLUGINS.iter().copied().find(|plugin| plugin.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_found_with_and_without_the_prefix() {
        for name in [
            "bridge",
            "tuning",
            "static",
            "host-local",
            "dhcp",
            "loopback",
            "portmap",
            "bandwidth",
            "firewall",
            "macvtap",
            "sbr",
        ] {
            assert_eq!(plugin_by_name(name).unwrap().name(), name);
            assert_eq!(plugin_by_name(&format!("cnv-{name}")).unwrap().name(), name);
        }
        for plugin in LINK_PLUGINS {
            assert!(plugin_by_name(plugin.name()).is_some(), "{}", plugin.name());
        }
        assert!(plugin_by_name("weft-cni").is_none());
        assert!(plugin_by_name("cnv-cnv-bridge").is_none());
    }
}
