//! The data that nft stores with objects for its own use, in the format of libnftnl: a byte of type, a byte of length,
//! the value. The kernel returns the data unchanged.

/// Longest comment that nft reads, bytes.
pub const COMMENT_LENGTH: usize = 128;

/// `NFTNL_UDATA_{TABLE,CHAIN,RULE,SET_ELEM}_COMMENT`: the same number in all of them.
const COMMENT: u8 = 0;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`.
const SET_KEY_ORDER: u8 = 0;
/// `NFTNL_UDATA_SET_DATABYTEORDER`.
const SET_DATA_ORDER: u8 = 1;
/// `NFTNL_UDATA_SET_COMMENT`.
const SET_COMMENT: u8 = 7;

/// Encodes the userdata of objects other than sets.
pub(super) fn comment(comment: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    text(&mut bytes, COMMENT, comment);
    bytes
}

/// Encodes the userdata of a set. `order` is nft's number of the byte order of keys, and `data_order` that of a map's
/// values.
pub(super) fn of_set(order: u32, data_order: Option<u32>, comment: &str) -> Vec<u8> {
    let mut bytes = vec![SET_KEY_ORDER, 4];
    bytes.extend_from_slice(&order.to_ne_bytes());
    if let Some(order) = data_order {
        bytes.extend_from_slice(&[SET_DATA_ORDER, 4]);
        bytes.extend_from_slice(&order.to_ne_bytes());
    }
    text(&mut bytes, SET_COMMENT, comment);
    bytes
}

/// Reads the comment in the userdata of objects other than sets.
pub(super) fn read_comment(mut bytes: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            return Some(super::wire::text(value));
        }
        bytes = &rest[value.len()..];
    }
    None
}

/// Encodes a zero-terminated string, truncated to nft's limit.
fn text(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    let text = &text[..text.floor_char_boundary(COMMENT_LENGTH)];
    bytes.push(kind);
    // At most 129, see the line above the last.
    bytes.push(u8::try_from(text.len() + 1).unwrap_or(u8::MAX));
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_is_encoded_like_nft() {
        assert_eq!(comment("hello"), *b"\x00\x06hello\x00");
        assert_eq!(
            of_set(1, None, "x"),
            [&[0, 4], &1_u32.to_ne_bytes()[..], b"\x07\x02x\x00"].concat()
        );
        assert_eq!(read_comment(&comment("hello")).unwrap(), "hello");
    }

    #[test]
    fn comment_is_found_after_other_data_and_truncated_like_nft() {
        assert_eq!(read_comment(b"\x05\x02ab\x00\x02x\x00").unwrap(), "x");
        for broken in [&b""[..], b"\x00", b"\x00\x09ab", b"\x05\x02ab"] {
            assert_eq!(read_comment(broken), None);
        }
        let long = "ä".repeat(100);
        assert_eq!(read_comment(&comment(&long)).unwrap(), "ä".repeat(64));
    }
}
