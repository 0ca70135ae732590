//! The link name, shared by the device plugin and the CNI plugin (cni-plugins §11.1).

use crate::names::macvtap::LINK_PREFIX;

/// Mask of the hash bits in the name.
const BITS: u64 = 0xffff_ffff_ffff;

/// The link name for a device ID, such as `mvtcc7b47d9091b` for `dataplaneMvp0`: 15 characters, the maximum length of
/// a link name.
pub fn link_name(device_id: &str) -> String {
    format!("{LINK_PREFIX}{:012x}", xx_hash_64(device_id.as_bytes()) & BITS)
}

/// Whether a name has the format of [`link_name`].
pub(super) fn is_link_name(name: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(LINK_PREFIX)
        .is_some_and(|digits| digits.len() == 12 && digits.bytes().all(digit))
}

const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME_5: u64 = 0x27d4_eb2f_1656_67c5;

/// XXH64 with seed 0.
fn xx_hash_64(bytes: &[u8]) -> u64 {
    let mut lanes = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, PRIME_1.wrapping_neg()];
    let (stripes, rest) = bytes.as_chunks::<32>();
    for stripe in stripes {
        for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<8>().0) {
            *lane = round(*lane, u64::from_le_bytes(*word));
        }
    }
    let mut hash = PRIME_5;
    if !stripes.is_empty() {
        let rotated = lanes.iter().zip([1, 7, 12, 18]);
        hash = rotated.fold(0, |sum: u64, (lane, by)| sum.wrapping_add(lane.rotate_left(by)));
        for lane in lanes {
            hash = add(hash ^ round(0, lane), 0, PRIME_1, PRIME_4);
        }
    }
    hash = hash.wrapping_add(bytes.len() as u64);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        hash = add(hash ^ round(0, u64::from_le_bytes(*word)), 27, PRIME_1, PRIME_4);
    }
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        let half = u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIME_1);
        hash = add(hash ^ half, 23, PRIME_2, PRIME_3);
    }
    for byte in rest {
        hash = add(hash ^ u64::from(*byte).wrapping_mul(PRIME_5), 11, PRIME_1, 0);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME_2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME_3);
    hash ^ (hash >> 32)
}

fn round(lane: u64, word: u64) -> u64 {
    add(lane.wrapping_add(word.wrapping_mul(PRIME_2)), 31, PRIME_1, 0)
}

fn add(value: u64, rotation: u32, factor: u64, summand: u64) -> u64 {
    value
        .rotate_left(rotation)
        .wrapping_mul(factor)
        .wrapping_add(summand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_name_matches_upstream() {
        // cni-plugins#66 (the name)
        assert_eq!(link_name("dataplaneMvp0"), "mvtcc7b47d9091b");
        assert_eq!(link_name("eth0Mvp99"), "mvt20074e9ae08d");
    }

    #[test]
    fn hash_matches_the_specification() {
        for (text, hash) in [
            ("", 0xef46_db37_51d8_e999),
            ("as", 0x1c33_0fb2_d66b_e179),
            ("asd", 0x631c_37ce_72a9_7393),
            ("asdf", 0x4158_72f5_99ce_a71e),
            (
                "Call me Ishmael. Some years ago--never mind how long precisely-",
                0x02a2_e854_70d6_fd96,
            ),
        ] {
            assert_eq!(xx_hash_64(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn names_of_other_programs_are_not_link_names() {
        assert!(is_link_name(&link_name("")));
        for other in [
            "",
            "mvt",
            "mvt0123456789a",
            "mvt0123456789abc",
            "mvt0123456789aB",
            "mvp0123456789ab",
        ] {
            assert!(!is_link_name(other), "{other}");
        }
    }
}
