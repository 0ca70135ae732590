//! Durations in Go's notation, such as `1h30m`: parsed from users' intervals, and printed in messages.

use std::fmt::{self, Display};

/// A duration of Go: signed nanoseconds in 64 bits.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct GoDuration(i64);

/// Units with their nanoseconds.
pub const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, the micro sign
    ("μs", 1_000), // U+03BC, the Greek letter
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// An invalid duration; the texts are those of Go.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The text is not a duration, or too long a one.
    #[error("{}", no_duration(quoted(.0)))]
    Invalid(String),
    /// A number without its unit.
    #[error("{}", no_unit(quoted(.0)))]
    MissingUnit(String),
    /// An unknown unit.
    #[error("{}", unknown_unit(quoted(unit), quoted(text)))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

/// Text of an invalid or too long duration; the argument is quoted.
pub fn no_duration(quoted: impl Display) -> String {
    format!("time: invalid duration {quoted}")
}

/// Text of a number without its unit; the argument is quoted.
pub fn no_unit(quoted: impl Display) -> String {
    format!("time: missing unit in duration {quoted}")
}

/// Text of an unknown unit; both arguments are quoted.
pub fn unknown_unit(unit: impl Display, quoted: impl Display) -> String {
    format!("time: unknown unit {unit} in duration {quoted}")
}

/// Quotes a text as Go's `time` package does: other characters than printable ASCII by their bytes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        if c < ' ' || !c.is_ascii() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                quoted += &format!("\\x{byte:02x}");
            }
        } else {
            if c == '"' || c == '\\' {
                quoted.push('\\');
            }
            quoted.push(c);
        }
    }
    quoted + "\""
}

impl GoDuration {
    /// Parses Go's notation: an optional sign, then numbers with optional fraction and unit, or `0`.
    ///
    /// # Errors
    /// If the text is not a duration, or exceeds 64 bits of nanoseconds.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let invalid = || Error::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let whole_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (whole, after) = rest.split_at(whole_end);
            let (fraction, after) = match after.strip_prefix('.') {
                Some(after) => {
                    after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()))
                }
                None => ("", after),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let unit_end = after
                .find(|c: char| c == '.' || c.is_ascii_digit())
                .unwrap_or(after.len());
            let (unit, after) = after.split_at(unit_end);
            if unit.is_empty() {
                return Err(Error::MissingUnit(text.to_owned()));
            }
            let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
                return Err(Error::UnknownUnit {
                    unit: unit.to_owned(),
                    text: text.to_owned(),
                });
            };
            let whole: u64 = if whole.is_empty() {
                0
            } else {
                whole.parse().map_err(|_| invalid())?
            };
            let part = whole
                .checked_mul(*scale)
                .and_then(|part| part.checked_add(fraction_of(fraction, *scale)));
            total = part
                .and_then(|part| total.checked_add(part))
                .ok_or_else(invalid)?;
            rest = after;
        }
        let magnitude = i64::try_from(total).map_err(|_| invalid())?;
        Ok(Self(if negative { -magnitude } else { magnitude }))
    }

    /// The duration; zero if it is negative.
    pub fn length(self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.0).unwrap_or_default())
    }

    /// Whether it is less than zero.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether it is greater than zero.
    pub fn is_positive(self) -> bool {
        self.0 > 0
    }
}

impl From<std::time::Duration> for GoDuration {
    /// A duration longer than Go's maximum (292 years) becomes that maximum.
    fn from(duration: std::time::Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// The part of `scale` nanoseconds of the digits after the point, rounded down. No unit resolves more than 15 digits.
fn fraction_of(digits: &str, scale: u64) -> u64 {
    let (value, divisor) = digits
        .bytes()
        .take(15)
        .fold((0_u128, 1_u128), |(value, divisor), digit| {
            (value * 10 + u128::from(digit - b'0'), divisor * 10)
        });
    // Less than `scale`, because the value is less than the divisor.
    u64::try_from(value * u128::from(scale) / divisor).unwrap_or(scale)
}

impl fmt::Display for GoDuration {
    /// Prints as Go does: `2h0m0s`, `1.5s`, `100ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return write!(f, "0s");
        }
        if nanos < 1_000_000_000 {
            let (scale, unit) = match nanos {
                0..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{sign}{}{unit}", decimal(nanos, scale));
        }
        let (seconds, below) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let seconds = decimal(seconds % 60 * 1_000_000_000 + below, 1_000_000_000);
        match (hours, minutes) {
            (0, 0) => write!(f, "{sign}{seconds}s"),
            (0, _) => write!(f, "{sign}{minutes}m{seconds}s"),
            _ => write!(f, "{sign}{hours}h{minutes}m{seconds}s"),
        }
    }
}

/// `value / scale` without trailing zeros; `scale` is a power of ten.
fn decimal(value: u64, scale: u64) -> String {
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let width = scale.ilog10() as usize;
    format!("{whole}.{}", format!("{rest:0width$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_equals_output_of_go() {
        for (text, printed) in [
            ("0", "0s"),
            ("2h", "2h0m0s"),
            ("1h30m", "1h30m0s"),
            ("200h20m2s", "200h20m2s"),
            ("90s", "1m30s"),
            ("1.5s", "1.5s"),
            (".5s", "500ms"),
            ("1500us", "1.5ms"),
            ("1µs", "1µs"),
            ("7ns", "7ns"),
            ("1h0m0.000000001s", "1h0m0.000000001s"),
            ("-1h", "-1h0m0s"),
            ("+1m", "1m0s"),
            ("48h0m0s", "48h0m0s"),
        ] {
            assert_eq!(
                GoDuration::parse(text).map(|d| d.to_string()),
                Ok(printed.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn parse_error_has_text_of_go() {
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("asdf", "time: invalid duration \"asdf\""),
            ("1", "time: missing unit in duration \"1\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1h 2m", "time: unknown unit \"h \" in duration \"1h 2m\""),
            (".s", "time: invalid duration \".s\""),
            ("-", "time: invalid duration \"-\""),
            ("9999999999h", "time: invalid duration \"9999999999h\""),
            (
                "1µx\"\\\n\u{7f}",
                "time: unknown unit \"\\xc2\\xb5x\\\"\\\\\\x0a\u{7f}\" in duration \"1\\xc2\\xb5x\\\"\\\\\\x0a\u{7f}\"",
            ),
        ] {
            assert_eq!(
                GoDuration::parse(text).map_err(|e| e.to_string()),
                Err(error.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn durations_compare_by_length() {
        let parse = |text| GoDuration::parse(text).expect("a duration");
        assert!(parse("60m") == parse("1h") && parse("2h") > parse("119m"));
        assert!(!parse("0").is_positive() && !parse("-1h").is_positive() && parse("1ns").is_positive());
    }
}
