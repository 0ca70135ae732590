//! Plugins with links that this kernel may lack. The virtual machine's kernel has them all.

use linux::link::{LinkKind, LinkSpec};
use serde_json::json;

use crate::stage::on_a_host;

#[test]
fn unsupported_link_kind_names_the_kernel_feature() {
    on_a_host("kinds of links", |host| {
        let kind = LinkKind::Veth {
            peer_name: "eth1",
            peer_ns: None,
        };
        host.socket.create_link(&LinkSpec::new("eth0", kind)).unwrap();
        for (plugin, feature) in [
            ("macvlan", "CONFIG_MACVLAN"),
            ("ipvlan", "CONFIG_IPVLAN"),
            ("vlan", "CONFIG_VLAN_8021Q"),
            ("dummy", "CONFIG_DUMMY"),
        ] {
            let pod = host.pod();
            let config = json!({
                "cniVersion": "1.0.0", "name": "test-net", "type": plugin, "master": "eth0", "vlanId": 5,
                "ipam": { "type": "static", "addresses": [{ "address": "10.1.2.3/24" }] }
            });
            let outcome = host.call("ADD", &pod, &config);
            if outcome.code == 0 {
                assert!(pod.net1().is_kind(plugin));
                host.del(&pod, &config);
            } else {
                let begin = format!("failed to create {plugin}: ");
                assert!(outcome.message().starts_with(&begin), "{outcome:?}");
                assert_eq!(outcome.json()["details"], format!("the kernel lacks {feature}"));
            }
            assert!(pod.link("net1").is_none());
            assert!(host.records().is_empty(), "{:?}", host.records());
        }
    });
}
