//! Serials of zones (RFC 1982), and their initial values.

use regex_lite::Regex;

/// The serial of a zone file, parsed by the rules of the upstream monitor. `None` without a serial.
pub fn of_file(text: &str) -> Option<u32> {
    let serial = Regex::new(r"SOA .*\(([0-9]+) ").ok()?;
    serial.captures(text)?.get(1)?.as_str().parse().ok()
}

/// The next serial, with wrap-around to 0.
pub fn next(serial: u32) -> u32 {
    serial.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_is_read_from_a_file() {
        // secondary-dns#3-4, where the count begins
        for (text, expected) in [
            (
                "$ORIGIN vm. \n@ IN SOA ns.vm. email.vm. (12345 3600 3600 1209600 3600)\n",
                Some(12345),
            ),
            ("@ IN SOA ns.vm. email.vm. (4294967295 3600 ", Some(u32::MAX)),
            ("@ IN SOA ns.vm. email.vm. (4294967296 3600 ", None),
            ("", None),
            ("garbage", None),
            ("@ IN SOA ns.vm. email.vm. (", None),
        ] {
            assert_eq!(of_file(text), expected, "{text}");
        }
    }

    #[test]
    fn serials_wrap() {
        assert_eq!(next(u32::MAX), 0);
    }
}
