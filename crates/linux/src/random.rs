//! Randomness for names.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::{Error, Result};

/// Returns `N` random bytes. `N` must not exceed 256.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // Up to 256 bytes, the kernel never returns fewer.
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(length) if length == N => Ok(bytes),
        Ok(_) => Err(Error::request(
            "read random bytes",
            N.to_string(),
            "the kernel returned fewer bytes",
        )),
        Err(errno) => Err(Error::kernel("read random bytes", "", errno)),
    }
}
