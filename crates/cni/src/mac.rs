//! Parses hardware addresses.

/// The text is not a hardware address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("address {0}: invalid MAC address")]
pub struct InvalidMac(pub String);

/// The 6, 8 or 20 octets of a hardware address, written `aa:bb:..`, `aa-bb-..` or `aabb.ccdd...` in either letter
/// case (`docs/behaviour/multus.md` §0).
pub fn parse(text: &str) -> Result<Vec<u8>, InvalidMac> {
    octets(text)
        .filter(|octets| matches!(octets.len(), 6 | 8 | 20))
        .ok_or_else(|| InvalidMac(text.to_owned()))
}

/// Any number of octets. All separators must equal the first.
fn octets(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let (separator, digits) = match (bytes.get(2), bytes.get(4)) {
        (Some(separator @ (b':' | b'-')), _) => (*separator, 2),
        (_, Some(b'.')) => (b'.', 4),
        _ => return None,
    };
    let mut octets = Vec::with_capacity(20);
    for group in bytes.split(|byte| *byte == separator) {
        if group.len() != digits || octets.len() >= 20 {
            return None;
        }
        for pair in group.chunks(2) {
            octets.push(
                pair.iter()
                    .try_fold(0, |value, digit| Some(value << 4 | nibble(*digit)?))?,
            );
        }
    }
    Some(octets)
}

fn nibble(digit: u8) -> Option<u8> {
    u8::try_from(char::from(digit).to_digit(16)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_spellings_and_three_lengths() {
        let six = vec![0xc2, 0xb0, 0x57, 0x49, 0x47, 0xf1];
        for text in [
            "c2:b0:57:49:47:f1",
            "C2:B0:57:49:47:F1",
            "c2-b0-57-49-47-f1",
            "c2b0.5749.47f1",
        ] {
            assert_eq!(parse(text), Ok(six.clone()), "{text}");
        }
        assert_eq!(
            parse("00:01:02:03:04:05:06:07").unwrap(),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
        assert_eq!(parse("0001.0203.0405.0607").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        let twenty: Vec<String> = (0..20).map(|octet| format!("{octet:02x}")).collect();
        assert_eq!(parse(&twenty.join(":")).unwrap(), (0..20).collect::<Vec<u8>>());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "foo",
            "c2:b0:57:49:47",
            "c2:b0:57:49:47:f1:00",
            "c2:b0:57-49:47:f1",
            "c2:b0:57:49:47:g1",
            "c2:b0:57:49:47:f1:",
            "c2:b0:57:49:47:+1",
            "c2b0.5749.47",
            "c2b05749.47f1",
            "c2b0574947f1",
            "éé:éé:é",
        ] {
            assert_eq!(
                parse(text).unwrap_err().to_string(),
                format!("address {text}: invalid MAC address")
            );
        }
        assert!(parse(&vec!["00"; 21].join(":")).is_err());
    }
}
