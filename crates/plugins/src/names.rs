//! Names of plugins, and of their files and kernel objects on a node.

/// Plugin `bandwidth`.
pub const BANDWIDTH: &str = "bandwidth";
/// Plugin `bridge`.
pub const BRIDGE: &str = "bridge";
/// Plugin `dhcp`, an IPAM plugin.
pub const DHCP: &str = "dhcp";
/// Plugin `dummy`.
pub const DUMMY: &str = "dummy";
/// Plugin `egress-router`.
pub const EGRESS_ROUTER: &str = "egress-router";
/// Plugin `firewall`.
pub const FIREWALL: &str = "firewall";
/// Plugin `host-device`.
pub const HOST_DEVICE: &str = "host-device";
/// Plugin `host-local`, an IPAM plugin.
pub const HOST_LOCAL: &str = "host-local";
/// Plugin `loopback`.
pub const LOOPBACK: &str = "loopback";
/// Plugin `portmap`.
pub const PORTMAP: &str = "portmap";
/// Plugin `ipvlan`.
pub const IPVLAN: &str = "ipvlan";
/// Plugin `macvlan`.
pub const MACVLAN: &str = "macvlan";
/// Plugin `macvtap`.
pub const MACVTAP: &str = "macvtap";
/// Plugin `ovs`.
pub const OVS: &str = "ovs";
/// Plugin `ovs-mirror-consumer`.
pub const OVS_MIRROR_CONSUMER: &str = "ovs-mirror-consumer";
/// Plugin `ovs-mirror-producer`.
pub const OVS_MIRROR_PRODUCER: &str = "ovs-mirror-producer";
/// Plugin `ptp`.
pub const PTP: &str = "ptp";
/// Plugin `sbr`.
pub const SBR: &str = "sbr";
/// Plugin `static`, an IPAM plugin.
pub const STATIC: &str = "static";
/// Plugin `tap`.
pub const TAP: &str = "tap";
/// Plugin `tuning`.
pub const TUNING: &str = "tuning";
/// Plugin `vlan`.
pub const VLAN: &str = "vlan";
/// Plugin `vrf`.
pub const VRF: &str = "vrf";

/// The binary that contains all plugins.
pub const BINARY: &str = "weft-cni";
/// Prefix of our plugins' names in an installation beside a platform's own plugins.
pub const PREFIX: &str = "cnv-";

/// The kernel's link kinds.
pub(crate) mod kind {
    pub(crate) const VETH: &str = "veth";
    pub(crate) const TUN: &str = "tun";
    pub(crate) const VRF: &str = "vrf";
}

/// Prefix of host ends. Eight hexadecimal digits follow.
pub(crate) const VETH_PREFIX: &str = "veth";
/// Prefix of links that limit the pods' egress. A hash follows.
pub(crate) const IFB_PREFIX: &str = "bwp";
/// The default bridge.
pub(crate) const DEFAULT_BRIDGE: &str = "cni0";
/// The loopback interface.
pub(crate) const LO: &str = "lo";

/// Keys of `CNI_ARGS`.
pub(crate) mod arg {
    pub(crate) const MAC: &str = "MAC";
    pub(crate) const IP: &str = "IP";
    pub(crate) const GATEWAY: &str = "GATEWAY";
    pub(crate) const OVN_PORT: &str = "OvnPort";
    pub(crate) const POD_UID: &str = "K8S_POD_UID";
}

/// The pod's interface in the network of the cluster.
pub(crate) const PRIMARY: &str = "eth0";
/// Table with the former routes of [`PRIMARY`] in the pod of an egress router.
pub(crate) const EGRESS_ROUTER_TABLE: u32 = 5755;

/// Names of nftables objects in the pod of an egress router (cluster-network §17.5).
pub(crate) mod egress_router {
    pub(crate) const TABLE: &str = "egress_cni";
    pub(crate) const PREROUTING: &str = "prerouting";
    pub(crate) const POSTROUTING: &str = "postrouting";
    pub(crate) const PORTS: &str = "ports";
    pub(crate) const OTHERS: &str = "others";
}

/// Names in the database of Open vSwitch and of files beside it (cni-plugins §10).
pub(crate) mod ovs {
    /// The plugins' name in their `about` line.
    pub(crate) const TITLE: &str = "OVS bridge";
    pub(crate) const OWNER: &str = "ovs-cni.network.kubevirt.io";
    pub(crate) const DEFAULT_SOCKET: &str = "unix:/var/run/openvswitch/db.sock";
    /// The bridge of OVN's ports.
    pub(crate) const OVN_BRIDGE: &str = "br-int";
    pub(crate) const CACHE: &str = "/var/lib/cni/ovs-cni/cache";
    pub(crate) const OLD_CACHE: &str = "/tmp/ovscache";
    pub(crate) const FLAT_FILES: [&str; 2] = [
        "/etc/kubernetes/cni/net.d/ovs.d/ovs.conf",
        "/etc/cni/net.d/ovs.d/ovs.conf",
    ];
    /// Prefix of a MAC that is derived from an IP address.
    pub(crate) const MAC_PREFIX: [u8; 2] = [0x0a, 0x58];

    pub(crate) mod table {
        pub(crate) const BRIDGE: &str = "Bridge";
        pub(crate) const PORT: &str = "Port";
        pub(crate) const INTERFACE: &str = "Interface";
        pub(crate) const MIRROR: &str = "Mirror";
    }

    pub(crate) mod column {
        pub(crate) const UUID: &str = "_uuid";
        pub(crate) const NAME: &str = "name";
        pub(crate) const EXTERNAL_IDS: &str = "external_ids";
        pub(crate) const PORTS: &str = "ports";
        pub(crate) const MIRRORS: &str = "mirrors";
        pub(crate) const INTERFACES: &str = "interfaces";
        pub(crate) const VLAN_MODE: &str = "vlan_mode";
        pub(crate) const TAG: &str = "tag";
        pub(crate) const TRUNKS: &str = "trunks";
        pub(crate) const TYPE: &str = "type";
        pub(crate) const OFPORT_REQUEST: &str = "ofport_request";
        pub(crate) const LINK_STATE: &str = "link_state";
        pub(crate) const ERROR: &str = "error";
        pub(crate) const SOURCES: &str = "select_src_port";
        pub(crate) const DESTINATIONS: &str = "select_dst_port";
        pub(crate) const OUTPUT: &str = "output_port";
    }

    /// Keys of `external_ids`.
    pub(crate) mod external_id {
        pub(crate) const OWNER: &str = "owner";
        pub(crate) const NETNS: &str = "contNetns";
        pub(crate) const IFNAME: &str = "contIface";
        pub(crate) const POD_UID: &str = "contPodUid";
        pub(crate) const OVN_PORT: &str = "iface-id";
    }
}

/// Names that macvtap shares with its device plugin and with kubelet (cni-plugins §11).
pub(crate) mod macvtap {
    /// Prefix of the device plugin's links. Twelve hexadecimal digits follow.
    pub(crate) const LINK_PREFIX: &str = "mvt";
    /// Prefix of the resources. The network's name follows.
    pub(crate) const RESOURCE_PREFIX: &str = "macvtap.network.kubevirt.io/";
    /// Prefix of device nodes. The link's index follows.
    pub(crate) const NODE_PREFIX: &str = "/dev/tap";
    /// Exists while the kernel's driver is loaded.
    pub(crate) const DRIVER: &str = "/sys/class/macvtap";
    /// Default user and group of the device: those of `KubeVirt`'s virtual machines.
    pub(crate) const QEMU: u32 = 107;
    /// kubelet's record of its pods' devices.
    pub(crate) const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
}

/// Default directory of `host-local`'s leases.
pub(crate) const HOST_LOCAL_DATA: &str = "/var/lib/cni/networks";

/// Default socket of the `dhcp` daemon.
pub const DHCP_SOCKET: &str = "/run/cni/dhcp.sock";

/// Default directory of `tuning`'s backups.
pub(crate) const TUNING_DATA: &str = "/run/cni/tuning";
/// The node's list of permitted sysctls.
pub(crate) const TUNING_ALLOW_LIST: &str = "/etc/cni/tuning/allowlist.conf";

/// Directory of our plugins' own files, in memory, because attachments do not survive a reboot either.
pub const STATE: &str = "/run/cni/weft";
/// Separates container ID and interface in a record's name. Neither can contain it.
pub(crate) const RECORD_SEPARATOR: char = ':';

/// Names of the MAC spoof check in nftables (cni-plugins §4).
pub(crate) mod spoof_check {
    pub(crate) const TABLE_NAME: &str = "nat";
    pub(crate) const CHAIN: &str = "PREROUTING";
    pub(crate) const PORTS: &str = "macspoofchk-ports";
    pub(crate) const PORTS_COMMENT: &str = "Ports that may send from the MAC of their container only";
    pub(crate) const ALLOWED: &str = "macspoofchk-allowed";
    pub(crate) const ALLOWED_COMMENT: &str = "What these ports may send from";
    pub(crate) const RULE_COMMENT: &str = "macspoofchk";
    /// Prefix of comments. The attachment follows.
    pub(crate) const COMMENT_PREFIX: &str = "macspoofchk-";
    /// Prefix of upstream's chains. The attachment follows.
    pub(crate) const OLD_CHAIN_PREFIX: &str = "cni-br-iface-";
    pub(crate) const OLD_CHAIN_SUFFIX: &str = "-mac";
}

/// Predefined tables and chains of iptables.
pub(crate) const IPTABLES_NAT: &str = "nat";
pub(crate) const IPTABLES_POSTROUTING: &str = "POSTROUTING";
pub(crate) const IPTABLES_FILTER: &str = "filter";
pub(crate) const IPTABLES_FORWARD: &str = "FORWARD";
/// Maximum length of a chain name.
pub(crate) const IPTABLES_CHAIN_LENGTH: usize = 28;
/// Search path for programs of the host. Replaces `PATH`.
pub(crate) const PROGRAM_DIRECTORIES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Names of firewall in nftables and iptables (cni-plugins §15.2).
pub(crate) mod firewall {
    pub(crate) const TABLE_NAME: &str = "cni_firewall";
    pub(crate) const TABLE_COMMENT: &str = "CNI firewall plugin";
    pub(crate) const ISOLATION: &str = "isolation";
    pub(crate) const FORWARD: &str = "forward";
    pub(crate) const UNMARK: &str = "unmark";
    pub(crate) const ADDRESSES_IPV4: &str = "addresses";
    pub(crate) const ADDRESSES_IPV6: &str = "addresses6";
    pub(crate) const ADMITTED_COMMENT: &str = "Addresses of containers";
    pub(crate) const BRIDGES: &str = "bridges";
    pub(crate) const BRIDGES_COMMENT: &str = "Bridges that are kept apart";
    pub(crate) const SAME: &str = "same-bridge";
    pub(crate) const ISOLATED: &str = "isolated";
    pub(crate) const PAIRS_COMMENT: &str = "Each bridge with itself";
    /// The mark bit that passes a decision between tables. Set and cleared within one hook.
    pub(crate) const MARK: u32 = 0x1000;

    pub(crate) const CNI_FORWARD: &str = "CNI-FORWARD";
    pub(crate) const COMMENT: &str = "CNI firewall plugin rules";
    /// Default name of the administrator's chain.
    pub(crate) const ADMIN: &str = "CNI-ADMIN";
    pub(crate) const ADMIN_COMMENT: &str = "CNI firewall plugin admin overrides";
    pub(crate) const ISOLATION_STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
    pub(crate) const ISOLATION_STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
    pub(crate) const ISOLATION_COMMENT: &str =
        "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";

    /// firewalld: the default zone.
    pub(crate) const ZONE: &str = "trusted";
}

/// Names of portmap in nftables and iptables (cni-plugins §13). All chain and set names are distinct.
pub(crate) mod portmap {
    pub(crate) const TABLE_NAME: &str = "cni_hostport";
    pub(crate) const TABLE_COMMENT: &str = "CNI portmap plugin";
    pub(crate) const HOSTPORTS: &str = "hostports";
    /// Of older upstream versions.
    pub(crate) const HOSTIP_HOSTPORTS: &str = "hostip_hostports";
    pub(crate) const ALL_HOSTPORTS: &str = "hostports_all";
    pub(crate) const PREROUTING: &str = "prerouting";
    pub(crate) const OUTPUT: &str = "output";
    pub(crate) const MASQUERADING: &str = "masquerading";
    /// Comment of shared rules. Contains a space, so that upstream does not mistake it for a container ID.
    pub(crate) const COMMENT: &str = "ports of all containers";
    pub(crate) const PORTS: &str = "ports";
    pub(crate) const HOSTIP_PORTS: &str = "hostip-ports";
    pub(crate) const PORTS_COMMENT: &str = "Where ports of the host lead";
    pub(crate) const MASQUERADED: &str = "masqueraded";
    pub(crate) const MASQUERADED_FROM: &str = "masqueraded-from";
    pub(crate) const MASQUERADED_COMMENT: &str = "What gets the host's address on its way to a container";

    pub(crate) const IPTABLES_ALL: &str = "CNI-HOSTPORT-DNAT";
    pub(crate) const IPTABLES_ENTRIES: [&str; 2] = ["PREROUTING", "OUTPUT"];
    pub(crate) const IPTABLES_CHAIN_PREFIX: &str = "CNI-DN-";
    pub(crate) const IPTABLES_OLD_CHAIN_PREFIX: &str = "CNI-SN-";
    pub(crate) const IPTABLES_SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
    pub(crate) const IPTABLES_SET_MARK_COMMENT: &str = "CNI portfwd masquerade mark";
    pub(crate) const IPTABLES_MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
    pub(crate) const IPTABLES_MASQUERADE_COMMENT: &str = "CNI portfwd requiring masquerade";
}

/// Names of masquerading in nftables and iptables (cni-plugins §2.8).
pub(crate) mod masquerade {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ipnet::{IpNet, Ipv4Net, Ipv6Net};

    pub(crate) const TABLE_NAME: &str = "cni_plugins_masquerade";
    pub(crate) const TABLE_COMMENT: &str =
        "Masquerading for plugins from github.com/containernetworking/plugins";
    pub(crate) const CHECKS: &str = "masq_checks";
    pub(crate) const CHECKS_COMMENT: &str =
        "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet";
    pub(crate) const POSTROUTING: &str = "postrouting";
    /// Prefix of address sets. The network's hash and the subnet follow.
    pub(crate) const SET_PREFIX: &str = "masq-";
    pub(crate) const MULTICAST_IPV4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4));
    pub(crate) const MULTICAST_IPV6: IpNet =
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8));

    pub(crate) const IPTABLES_CHAIN_PREFIX: &str = "CNI-";
}
