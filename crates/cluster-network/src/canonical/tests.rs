use api::cluster_network::operator::NetworkSpec;

use super::canonicalise;
use crate::base::spec;

// cluster-network#21
#[test]
fn spelling_is_corrected_where_the_type_was_right() {
    let mut given: NetworkSpec = spec(
        "defaultNetwork: {type: ovnkubernetes}
additionalNetworks:
- {name: a, type: SimpleMacvlan, simpleMacvlanConfig: {mode: bridge, ipamConfig: {type: dhcp}}}
- {name: b, type: SimpleMacvlan, simpleMacvlanConfig: {mode: vepa, ipamConfig: {type: sTATIC}}}
- {name: c, type: simplemacvlan, simpleMacvlanConfig: {mode: bridge, ipamConfig: {type: dhcp}}}
- {name: d, type: RAW, rawCNIConfig: '{}'}
- {name: e, type: other}",
    );
    assert!(canonicalise(&mut given));
    let corrected: NetworkSpec = spec(
        "defaultNetwork: {type: OVNKubernetes}
additionalNetworks:
- {name: a, type: SimpleMacvlan, simpleMacvlanConfig: {mode: Bridge, ipamConfig: {type: DHCP}}}
- {name: b, type: SimpleMacvlan, simpleMacvlanConfig: {mode: VEPA, ipamConfig: {type: Static}}}
- {name: c, type: SimpleMacvlan, simpleMacvlanConfig: {mode: bridge, ipamConfig: {type: dhcp}}}
- {name: d, type: Raw, rawCNIConfig: '{}'}
- {name: e, type: other}",
    );
    assert_eq!(given, corrected);
    // The next call corrects the network whose type had another spelling.
    assert!(canonicalise(&mut given));
    assert!(!canonicalise(&mut given));
}
