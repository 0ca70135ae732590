//! Zone files and Corefiles: what is read is found again, and nothing else is served.

#![no_main]

use hickory_proto::rr::Name;
use libfuzzer_sys::fuzz_target;
use secondary_dns::corefile;
use secondary_dns::zone::file;

fuzz_target!(|octets: &[u8]| {
    let Ok(text) = str::from_utf8(octets) else { return };
    let name = Name::from_ascii("vm.").expect("a name");
    if let Ok(zone) = file::read(text, &name) {
        assert!(zone.find(&name).is_some());
        assert!(zone.negative_ttl() <= zone.soa_ttl());
    }
    if let Ok(read) = corefile::read(text) {
        assert!(!read.ports.is_empty());
    }
});
