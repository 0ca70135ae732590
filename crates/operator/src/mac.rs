//! Ranges of MAC addresses in a specification (operator §5.1, §5.2).

use cni::mac::Mac;

use crate::messages::specification;

/// Name of the first address in messages.
pub(crate) const RANGE_START: &str = "RangeStart";
/// Name of the last address in messages.
pub(crate) const RANGE_END: &str = "RangeEnd";

/// Parses an address of six octets.
fn ethernet(text: &str) -> Option<Mac> {
    Mac::parse(text).ok().filter(|mac| mac.number().is_some())
}

fn multicast_error(mac: Mac, end: &str) -> Option<String> {
    mac.is_multicast()
        .then(|| specification::multicast(end, format_args!("{:X}", mac.first_octet())))
}

/// The first error of a range; both ends may be empty.
pub(crate) fn check_range(start: &str, end: &str) -> Option<String> {
    if start.is_empty() && end.is_empty() {
        return None;
    }
    if start.is_empty() || end.is_empty() {
        return Some(specification::HALF_A_RANGE.into());
    }
    let Some(start) = ethernet(start) else {
        return Some(specification::INVALID_START.into());
    };
    let Some(end) = ethernet(end) else {
        return Some(specification::INVALID_END.into());
    };
    if end <= start {
        return Some(specification::range_order(start, end));
    }
    multicast_error(start, RANGE_START).or_else(|| multicast_error(end, RANGE_END))
}

/// The range with the given second and third bytes: locally administered, unicast, 2^24 addresses.
pub(crate) fn range_with_prefix([second, third]: [u8; 2]) -> (String, String) {
    let address =
        |rest| Mac::from_number(u64::from_be_bytes([0, 0, 2, second, third, rest, rest, rest])).to_string();
    (address(0), address(0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_six_octets_are_accepted() {
        for text in ["02:0A:00:ff:00:01", "02-0a-00-FF-00-01", "020A.00FF.0001"] {
            let mac = ethernet(text).map(|mac| mac.to_string());
            assert_eq!(mac.as_deref(), Some("02:0a:00:ff:00:01"));
        }
        for text in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02:00:00:00:00:00:00:00",
            "0200.0000.0000.0000",
        ] {
            assert_eq!(ethernet(text), None, "{text}");
        }
    }

    // operator#29-34
    #[test]
    fn check_range_reports_errors_of_specification() {
        let lesser = "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. ";
        let multicast = "invalid mac address. Multicast addressing is not supported. Unicast addressing must be \
                         used. The first octet is";
        for (start, end, error) in [
            ("", "", None),
            ("02:00:00:00:00:00", "02:00:00:00:00:02", None),
            (
                "02:00:00:00:00:00",
                "FD:FF:FF:FF:FF:FF",
                Some(format!("failed to set RangeEnd: {multicast} 0XFD")),
            ),
            (
                "02:00:00:00:00:00",
                "",
                Some("both or none of the KubeMacPool ranges needs to be configured".into()),
            ),
            (
                "",
                "02:00:00:00:00:00",
                Some("both or none of the KubeMacPool ranges needs to be configured".into()),
            ),
            (
                "02:00:00:00:00:00:00",
                "02:00:00:00:00:00",
                Some("failed to parse rangeStart because the mac address is invalid".into()),
            ),
            (
                "02:00:00:00:00:00",
                "02:00:00:00:00:00:00",
                Some("failed to parse rangeEnd because the mac address is invalid".into()),
            ),
            (
                "02:00:00:FF:00:00",
                "02:00:00:00:00:00",
                Some(format!("{lesser}start: 02:00:00:ff:00:00 end: 02:00:00:00:00:00")),
            ),
            (
                "02:00:00:00:00:00",
                "02:00:00:00:00:00",
                Some(format!("{lesser}start: 02:00:00:00:00:00 end: 02:00:00:00:00:00")),
            ),
            (
                "02:ff:00:00:00:00",
                "02:00:00:00:00:01",
                Some(format!("{lesser}start: 02:ff:00:00:00:00 end: 02:00:00:00:00:01")),
            ),
            (
                "01:00:00:00:00:00",
                "02:00:00:00:00:00",
                Some(format!("failed to set RangeStart: {multicast} 0X1")),
            ),
            (
                "02:00:00:00:00:00",
                "03:00:00:00:00:00",
                Some(format!("failed to set RangeEnd: {multicast} 0X3")),
            ),
        ] {
            assert_eq!(check_range(start, end), error, "{start} {end}");
        }
    }

    #[test]
    fn range_with_prefix_is_unicast_and_valid() {
        let (start, end) = range_with_prefix([0xab, 0x01]);
        assert_eq!(
            (start.as_str(), end.as_str()),
            ("02:ab:01:00:00:00", "02:ab:01:ff:ff:ff")
        );
        assert_eq!(check_range(&start, &end), None);
    }
}
