//! Hashes as short names (cni-plugins §2.7).

use sha2::{Digest as _, Sha512};

/// The first `length` characters of `prefix` and the SHA-512 of `text` in lower-case hexadecimal digits.
pub(crate) fn hashed(length: usize, prefix: &str, text: &str) -> String {
    let mut name = prefix.to_owned();
    for byte in Sha512::digest(text) {
        if name.len() >= length {
            break;
        }
        name.push_str(&format!("{byte:02x}"));
    }
    name.truncate(length);
    name
}

#[cfg(test)]
mod tests {
    use super::hashed;

    #[test]
    fn hashes_match_upstream() {
        assert_eq!(hashed(28, "CNI-", "test1234"), "CNI-2bbe0c48b91a7d1b8a6753a8");
        assert_eq!(hashed(28, "CNI-DN-", "mynetabc"), "CNI-DN-e88f49d94512ff752ebe6");
        assert_eq!(hashed(16, "", "unit-test"), "6fd94d501e58f0aa");
    }
}
