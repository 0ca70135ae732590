//! DNS queries: the answers of the secondary DNS to any client.

#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use hickory_proto::op::Message;
use hickory_proto::rr::Name;
use libfuzzer_sys::fuzz_target;
use secondary_dns::answer::{Site, Transport, respond};
use secondary_dns::everything;
use secondary_dns::zone::{Zones, file};

const ZONE: &str = "$TTL 60\n@ IN SOA ns.vm. email.vm. (1 2 3 4 5)\n@ IN NS ns\nns IN A 192.0.2.1\nnic1.vmi1.ns1 IN A 10.0.0.1\n\
                    nic1.vmi1.ns1 IN AAAA fd00::1\nvmi1.ns1 IN A 10.0.0.1\na CNAME b\nb CNAME a\nt TXT \"text\"\n";

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let mut zones = Zones::default();
    let name = Name::from_ascii("vm.").expect("a name");
    zones.put(file::read(ZONE, &name).expect("a zone"));
    everything(Arc::new(Mutex::new(zones)))
});

fuzz_target!(|query: &[u8]| {
    let is_response = query.get(2).is_some_and(|flags| flags & 0x80 != 0);
    for (transport, limit) in [(Transport::Udp, 1232), (Transport::Tcp, 65535)] {
        let Some(reply) = respond(query, transport, &SITE) else {
            assert!(is_response || query.len() < 12);
            continue;
        };
        assert!(!is_response && reply.octets.len() <= limit);
        assert_eq!(reply.octets[..2], query[..2]);
        let answer = Message::from_vec(&reply.octets).expect("a message");
        assert!(!answer.recursion_available && !answer.authentic_data);
        if reply.question.is_some() {
            // Octet for octet, whatever its case.
            let end = 12 + answer.queries[0].name().iter().map(|label| label.len() + 1).sum::<usize>() + 5;
            assert_eq!(reply.octets[12..end], query[12..end]);
        }
    }
});
