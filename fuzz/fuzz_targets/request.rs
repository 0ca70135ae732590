//! Bodies that a shim, or another client of the daemon's socket, sends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multus::request::Request;

fuzz_target!(|body: &[u8]| {
    let _ = Request::decode(body);
    let _ = Request::decode_network(body);
});
