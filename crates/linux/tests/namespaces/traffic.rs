//! Rates of links.

use linux::{route::Socket, traffic::TokenBucket};

use crate::support::{alone, neighbourhood};

#[test]
fn link_is_shaped_and_its_received_packets_are_redirected() {
    alone("traffic control", || {
        let mut here = Socket::open().unwrap();
        let pod = neighbourhood(&mut here, "vethshape");
        let bucket = TokenBucket {
            rate: 1000,
            limit: 5000,
            buffer: 64_000,
        };
        assert_eq!(here.bucket(&pod.outer).unwrap(), None);
        here.unshape(&pod.outer).unwrap();
        here.keep_received(&pod.outer).unwrap();
        for rate in [1000, 10_000_000_000] {
            let bucket = TokenBucket { rate, ..bucket };
            here.shape(&pod.outer, &bucket).unwrap();
            assert_eq!(here.bucket(&pod.outer).unwrap(), Some(bucket));
        }

        here.create_ifb("ifb-test", 1400).unwrap();
        let ifb = here.link_by_name("ifb-test").unwrap();
        assert!(ifb.is_up() && ifb.is_kind("ifb"), "{ifb:?}");
        assert_eq!((ifb.mtu, ifb.tx_queue_len), (1400, 0));
        assert!(here.create_ifb("ifb-test", 1400).unwrap_err().is_exists());
        assert_eq!(here.redirected_to(&pod.outer).unwrap(), None);
        here.redirect_received(&pod.outer, ifb.index).unwrap();
        assert_eq!(here.redirected_to(&pod.outer).unwrap(), Some(ifb.index));
        assert!(
            here.redirect_received(&pod.outer, ifb.index)
                .unwrap_err()
                .is_exists()
        );

        here.delete_link(&ifb).unwrap();
        assert_eq!(here.redirected_to(&pod.outer).unwrap(), Some(0));
        for _ in 0..2 {
            here.unshape(&pod.outer).unwrap();
            here.keep_received(&pod.outer).unwrap();
            assert_eq!(here.bucket(&pod.outer).unwrap(), None);
            assert_eq!(here.redirected_to(&pod.outer).unwrap(), None);
        }
    });
}
