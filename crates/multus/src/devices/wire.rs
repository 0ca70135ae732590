//! As much of protocol buffers as it takes to read texts and messages out of a message.

/// The bytes are no such message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed answer")]
pub struct Malformed;

/// The fields of a message that have a length: texts, bytes and messages. Numbers are passed over.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Those with this number, in their order. An error is the last of them.
    pub(super) fn numbered(
        message: &'a [u8],
        wanted: u64,
    ) -> impl Iterator<Item = Result<&'a [u8], Malformed>> {
        Self(message).filter_map(move |field| match field {
            Ok((number, content)) => (number == wanted).then_some(Ok(content)),
            Err(error) => Some(Err(error)),
        })
    }

    /// The next field; its content is `None` for a number.
    fn field(&mut self) -> Option<(u64, Option<&'a [u8]>)> {
        let key = self.number()?;
        let content = match key & 7 {
            0 => {
                self.number()?;
                None
            }
            1 => {
                self.take(8)?;
                None
            }
            2 => {
                let length = self.number()?;
                Some(self.take(usize::try_from(length).ok()?)?)
            }
            5 => {
                self.take(4)?;
                None
            }
            _ => return None,
        };
        Some((key >> 3, content))
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = *self.take(1)?.first()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            match self.field() {
                Some((number, Some(content))) => return Some(Ok((number, content))),
                Some((_, None)) => {}
                None => {
                    self.0 = &[];
                    return Some(Err(Malformed));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(message: &[u8], number: u64) -> Result<Vec<&[u8]>, Malformed> {
        Fields::numbered(message, number).collect()
    }

    #[test]
    fn texts_among_numbers() {
        // 1: "ab"; 2: 300 as a number; 3: 8 bytes; 1: ""; 4: 4 bytes; 16: "z"
        let message = b"\x0a\x02ab\x10\xac\x02\x19\0\0\0\0\0\0\0\0\x0a\x00\x25\0\0\0\0\x82\x01\x01z";
        assert_eq!(fields(message, 1), Ok(vec![&b"ab"[..], b""]));
        assert_eq!(fields(message, 16), Ok(vec![&b"z"[..]]));
        assert_eq!(fields(message, 2), Ok(vec![]));
        assert_eq!(fields(b"", 1), Ok(vec![]));
    }

    #[test]
    fn what_ends_early_or_never_is_malformed() {
        let broken: [&[u8]; 7] = [
            b"\x0a\x05ab",
            b"\x0a",
            b"\x80",
            b"\x0b",
            b"\x19\0",
            &[0xff; 11],
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        ];
        for message in broken {
            assert_eq!(fields(message, 1), Err(Malformed), "{message:?}");
        }
    }

    #[test]
    fn no_bytes_do_harm() {
        let message = b"\x0a\x02ab\x10\xac\x02\x19\0\0\0\0\0\0\0\0\x82\x01\x01z";
        for at in 0..message.len() {
            for byte in 0..=u8::MAX {
                let mut changed = message.to_vec();
                changed[at] = byte;
                // Whatever is found lies within the message.
                let found = fields(&changed, 1).unwrap_or_default();
                assert!(found.concat().len() < changed.len());
                let _ = fields(&changed[..at], 1);
            }
        }
    }
}
