//! Texts that users, scripts and other programs depend on (cni-plugins §1 to §7, §9, §11, §13 to §15).

use cni::Error;
use linux::Error as KernelError;

pub(crate) const IPAM_WITHOUT_INTERFACE: &str = "cannot use IPAM when DisableContainerInterface flag is set";
pub(crate) const HAIRPIN_AND_PROMISC: &str = "cannot set hairpin mode and promiscuous mode at the same time";
pub(crate) const TRUNK_MIN: &str = "incorrect trunk minID parameter";
pub(crate) const TRUNK_MAX: &str = "incorrect trunk maxID parameter";
pub(crate) const TRUNK_ORDER: &str = "minID is greater than maxID in trunk parameter";
pub(crate) const TRUNK_MIN_MISSING: &str =
    "minID and maxID should be configured simultaneously, minID is missing";
pub(crate) const TRUNK_MAX_MISSING: &str =
    "minID and maxID should be configured simultaneously, maxID is missing";
pub(crate) const TRUNK_ID: &str = "incorrect trunk id parameter";
pub(crate) const NO_IPS: &str = "IPAM plugin returned missing IP config";
pub(crate) const NO_PLUGIN_NAME: &str = "no plugin name provided";
pub(crate) const NO_DEFAULT_INTERFACE: &str = "no default route interface found";
pub(crate) const NO_SINGLE_INTERFACE: &str =
    "chained master failure. PrevResult lacks a single named interface";
pub(crate) const NO_MASTER: &str =
    "\"master\" field is required. It specifies the host interface name to create the VLAN for";
pub(crate) const IPAM_DELEGATE: &str = "failed to execute IPAM delegate";
pub(crate) const DUMMY_WITHOUT_IPAM: &str = "dummy interface requires an IPAM configuration";
pub(crate) const NO_DEVICE: &str = "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"";
pub(crate) const NO_PHYSICAL_INTERFACE: &str = "failed to find physical interface";
pub(crate) const NO_DEVICE_ID: &str = "deviceID is required";
pub(crate) const NO_MACVTAP_DRIVER: &str =
    "the kernel module macvtap is not loaded: the device plugin has made no macvtap on this host";
pub(crate) const NO_VRF_NAME: &str = "configuration is expected to have a valid vrf name";
pub(crate) const NO_EARLIER_RESULT: &str = "missing prevResult from earlier plugin";
pub(crate) const NO_INTERFACES: &str = "no interfaces to configure";
pub(crate) const NO_PREV_RESULT: &str = "Required prevResult missing";
pub(crate) const NO_IPAM: &str = "IPAM config missing 'ipam' key";
pub(crate) const NO_RANGES: &str = "no IP ranges specified";
pub(crate) const NO_VALID_ATTACHMENTS: &str =
    "removed nothing: the config does not list cni.dev/valid-attachments";
pub(crate) const LOOPBACK_DOWN: &str = "loopback interface is down";
pub(crate) const NOT_CHAINED: &str = "must be called as chained plugin";
pub(crate) const BANDWIDTH_RATE_ALONE: &str = "if rate is set, burst must also be set";
pub(crate) const BANDWIDTH_BURST_ALONE: &str = "if burst is set, rate must also be set";
pub(crate) const BANDWIDTH_LARGE_BURST: &str = "burst cannot be more than 4GB";
pub(crate) const BANDWIDTH_NO_INTERFACES: &str = "no interfaces provided";
pub(crate) const BANDWIDTH_NO_PEER: &str = "no veth peer of container interface found in host ns";
pub(crate) const BANDWIDTH_SUBNETS: &str = "shapedSubnets and unshapedSubnets have no effect";
pub(crate) const FIREWALL_NOT_CHAINED: &str = "missing prevResult from earlier plugin";
pub(crate) const FIREWALL_NO_BRIDGE: &str = "prevResult has no interface for the ingress policy";
pub(crate) const FIREWALL_SET_UP: &str = "failed to set up firewall";
pub(crate) const FIREWALL_TEAR_DOWN: &str = "failed to tear down firewall";
pub(crate) const FIREWALL_CHECK: &str = "failed to read firewall";
pub(crate) const FIREWALL_COLLECT: &str = "failed to clean up firewall";
pub(crate) const OVS_NO_BRIDGE_NAME: &str = "failed to get bridge name";
pub(crate) const OVS_TRUNK_EMPTY: &str = "trunk parameter is misconfigured";
pub(crate) const OVS_NO_PORT: &str = "cannot get existing portUuid from db cannot find port in db";
pub(crate) const OVS_MIRROR_IDLE: &str = "a mirror producer must have either a ingress or an egress or both";
pub(crate) const PORTMAP_MARK: &str = "MasqMarkBit must be between 0 and 31";
pub(crate) const PORTMAP_TWO_MARKS: &str = "Cannot specify externalSetMarkChain and markMasqBit";
pub(crate) const PORTMAP_SET_UP: &str = "failed to set up ports";
pub(crate) const PORTMAP_TEAR_DOWN: &str = "failed to tear down ports";
pub(crate) const PORTMAP_CHECK: &str = "failed to read ports";
pub(crate) const PORTMAP_COLLECT: &str = "failed to clean up ports";
pub(crate) const SBR_NOT_CHAINED: &str = "This plugin must be called as chained plugin";
pub(crate) const SBR_GATEWAYS: &str = "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)";
pub(crate) const DUPLICATE_SYSCTLS: &str = "duplicated sysctl keys are not allowed";
pub(crate) const MAKE_VETH: &str = "failed to make veth pair";
pub(crate) const MASQUERADE_SET_UP: &str = "failed to set up masquerading";
pub(crate) const MASQUERADE_TEAR_DOWN: &str = "failed to tear down masquerading";
pub(crate) const MASQUERADE_CHECK: &str = "failed to read masquerading";
pub(crate) const MASQUERADE_COLLECT: &str = "failed to clean up masquerading";
pub(crate) const SPOOF_CHECK_SET_UP: &str = "failed to setup spoof-check";
pub(crate) const SPOOF_CHECK_TEAR_DOWN: &str = "failed to teardown spoof-check";

/// Converts a kernel error into a plugin error: `what: <error>`, code 999, with a probably missing kernel feature in
/// the details.
pub(crate) trait Explain<T> {
    fn explain(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Explain<T> for linux::Result<T> {
    fn explain(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| kernel(&what(), &error))
    }
}

/// [`Explain::explain`] for an error.
pub(crate) fn kernel(what: &str, error: &KernelError) -> Error {
    let explained = Error::internal(format!("{what}: {error}"));
    match error.missing_feature() {
        Some(feature) => explained.with_details(feature.to_string()),
        None => explained,
    }
}
