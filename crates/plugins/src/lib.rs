//! The CNI plugins of Weft, one module each. The binary `weft-cni` contains all of them.
//!
//! ```text
//! weft-cni, called as bridge | cnv-bridge | static | ... ──> cni::plugin::main ──> one of these
//!
//!   bridge, ptp, macvlan, macvtap, ipvlan, vlan, dummy, tap, host-device, ovs, egress-router ──> attach: the shared driver of the link plugins
//!                         ├──> ipam ──> dhcp, host_local, static_ipam in process, others as programs
//!                         ├──> veth        pairs with one end in the pod
//!                         ├──> record      the steps of ADD, for DEL and GC
//!                         ├──> interface   addresses, routes, duplicate address detection
//!                         ├──> check       comparisons of CHECK in the pod
//!                         ├──> spoof_check nftables rules for ports
//!                         └──> masquerade  nftables or iptables rules for addresses
//!   tuning, vrf, loopback, passthru, multus_shim
//!   bandwidth, firewall, ovs_mirror, portmap, sbr ──> chained: prevResult, records
//! ```
//!
//! Every plugin is a [`cni::plugin::Plugin`]: it has no state between calls and does not read the process
//! environment, so a daemon can also run it on a thread.

mod attach;
mod bandwidth;
mod bridge;
mod chained;
mod check;
mod comment;
mod config;
pub mod dhcp;
mod dummy;
mod egress_router;
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
mod vlan_ids;
mod vrf;

use cni::plugin::Plugin;
use linux::nft::matches;

use attach::{LinkDriver, LinkPlugin};
use bandwidth::Bandwidth;
use bridge::Bridge;
use dummy::Dummy;
use egress_router::EgressRouter;
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

/// The link plugins.
const LINK_PLUGINS: &[&dyn LinkPlugin] = &[
    &Bridge,
    &Dummy,
    &EgressRouter,
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
    &LinkDriver(&Bridge),
    &Dhcp,
    &LinkDriver(&Dummy),
    &LinkDriver(&EgressRouter),
    &Firewall,
    &LinkDriver(&HostDevice),
    &HostLocal,
    &LinkDriver(&IpVlan),
    &Loopback,
    &LinkDriver(&MacVlan),
    &LinkDriver(&MacVtap),
    &MultusShim::new(),
    &LinkDriver(&Ovs),
    &OvsMirror::CONSUMER,
    &OvsMirror::PRODUCER,
    &Passthru,
    &LinkDriver(&Ptp),
    &Portmap,
    &Sbr,
    &StaticIpam,
    &LinkDriver(&Tap),
    &Tuning,
    &LinkDriver(&Vlan),
    &Vrf,
];

/// The plugin with this name, with or without the prefix `cnv-`.
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
