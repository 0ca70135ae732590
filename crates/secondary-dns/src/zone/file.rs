//! Parses zone files (RFC 1035 §5) with the types that a zone of addresses needs. A file with an error is refused as a
//! whole.

use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::rdata::{CNAME, MX, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData};

use super::{Data, FileRecord, Zone, sort};

/// Maximum length of a TXT record's string in bytes.
const STRING: usize = 255;

/// The error in a refused zone file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Invalid {
    /// Counted from 1.
    pub line: usize,
    /// Cause of the error.
    pub reason: Reason,
}

/// Cause of an error in a zone file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Reason {
    /// The file ends within parentheses or quotes.
    #[error("it ends within {0}")]
    Unclosed(&'static str),
    /// A closing parenthesis without an opening one.
    #[error("`)` without `(`")]
    Closing,
    /// An unknown control entry.
    #[error("unsupported directive {0:?}")]
    Directive(String),
    /// The first record begins with a blank.
    #[error("the first record has no name")]
    NoOwner,
    /// The record has no type.
    #[error("the record has no type")]
    NoType,
    /// The type is not supported.
    #[error("unsupported type or class {0:?}")]
    Type(String),
    /// The text is no name.
    #[error("{0:?} is not a name")]
    Name(String),
    /// The text is no value of the expected kind.
    #[error("expected {kind}, not {text:?}")]
    Value {
        /// The text.
        text: String,
        /// The expected kind.
        kind: &'static str,
    },
    /// A missing field.
    #[error("the {0} is missing")]
    Missing(&'static str),
    /// A superfluous field.
    #[error("unexpected field {0:?}")]
    TooMuch(String),
    /// The record has no TTL, and the file has no default.
    #[error("there is neither $TTL nor a TTL of the record")]
    NoTtl,
    /// The name is outside of the zone.
    #[error("{0} is not in the zone")]
    OutOfZone(String),
    /// The file has several SOA records.
    #[error("there is a second SOA record")]
    SecondSoa,
    /// The SOA record is not at the name of the zone.
    #[error("the SOA record is not that of the zone")]
    SoaElsewhere,
    /// The file has no SOA record.
    #[error("there is no SOA record")]
    NoSoa,
    /// The file delegates a part of the zone.
    #[error("{0} is delegated, which is not supported")]
    Delegation(String),
    /// A name has an alias and other data.
    #[error("{0} has a CNAME record and others")]
    Alias(String),
}

/// A word of an entry.
#[derive(Clone, Copy, Debug)]
struct Word<'t> {
    /// Text with its escapes.
    text: &'t str,
    quoted: bool,
}

/// Reads a zone of this name.
///
/// # Errors
/// If a part of the file is unsupported or invalid, or the SOA record is missing.
pub fn read(text: &str, origin: &Name) -> Result<Zone, Invalid> {
    let mut reader = Reader {
        zone: origin.clone(),
        origin: origin.clone(),
        owner: None,
        default_ttl: None,
        last_ttl: None,
        soa: None,
        records: Vec::new(),
    };
    let mut lines = Lines { rest: text, line: 0 };
    while let Some(entry) = lines.next_entry()? {
        let line = entry.line;
        let at = |reason| Invalid { line, reason };
        reader.take(&entry).map_err(at)?;
    }
    reader.finish(lines.line)
}

/// Splits text into entries.
struct Lines<'t> {
    rest: &'t str,
    /// The current line.
    line: usize,
}

struct Entry<'t> {
    line: usize,
    /// Whether the entry begins with a blank: then it has the name of the previous entry.
    indented: bool,
    words: Vec<Word<'t>>,
}

impl<'t> Lines<'t> {
    /// The next non-empty entry: a line, or several within parentheses.
    fn next_entry(&mut self) -> Result<Option<Entry<'t>>, Invalid> {
        while !self.rest.is_empty() {
            let entry = self.entry()?;
            if !entry.words.is_empty() {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn entry(&mut self) -> Result<Entry<'t>, Invalid> {
        self.line += 1;
        let line = self.line;
        let at = |reason| Invalid { line, reason };
        let indented = self.rest.starts_with([' ', '\t']);
        let (mut words, mut depth) = (Vec::new(), 0_usize);
        loop {
            let Some(c) = self.rest.chars().next() else {
                return match depth {
                    0 => Ok(Entry {
                        line,
                        indented,
                        words,
                    }),
                    _ => Err(at(Reason::Unclosed("parentheses"))),
                };
            };
            match c {
                '\n' => {
                    self.skip(1);
                    if depth == 0 {
                        return Ok(Entry {
                            line,
                            indented,
                            words,
                        });
                    }
                    self.line += 1;
                }
                ' ' | '\t' | '\r' | '\x0c' => self.skip(1),
                ';' => self.skip(self.rest.find('\n').unwrap_or(self.rest.len())),
                '(' => {
                    depth += 1;
                    self.skip(1);
                }
                ')' => {
                    depth = depth.checked_sub(1).ok_or_else(|| at(Reason::Closing))?;
                    self.skip(1);
                }
                '"' => {
                    self.skip(1);
                    let end = end(self.rest, |c| c == '"' || c == '\n');
                    let text = self.cut(end);
                    if !self.rest.starts_with('"') {
                        return Err(at(Reason::Unclosed("quotes")));
                    }
                    self.skip(1);
                    words.push(Word { text, quoted: true });
                }
                _ => {
                    let end = end(self.rest, |c| c.is_ascii_whitespace() || "();\"".contains(c));
                    let text = self.cut(end);
                    words.push(Word { text, quoted: false });
                }
            }
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.cut(bytes);
    }

    fn cut(&mut self, bytes: usize) -> &'t str {
        let (text, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.rest = rest;
        text
    }
}

/// Position of the first unescaped character that ends a word.
fn end(text: &str, ends: impl Fn(char) -> bool) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if !escaped && ends(c) {
            return at;
        }
        escaped = !escaped && c == '\\';
    }
    text.len()
}

/// The result of the entries so far.
struct Reader {
    zone: Name,
    origin: Name,
    owner: Option<Name>,
    default_ttl: Option<u32>,
    last_ttl: Option<u32>,
    /// The SOA record with its TTL.
    soa: Option<(SOA, u32)>,
    /// All other records.
    records: Vec<FileRecord>,
}

impl Reader {
    fn take(&mut self, entry: &Entry<'_>) -> Result<(), Reason> {
        let mut words = Words(entry.words.iter());
        if !entry.indented {
            let first = words.next("name")?;
            match first.text {
                "$ORIGIN" => {
                    self.origin = self.name(words.next("origin")?)?;
                    return words.end();
                }
                "$TTL" => {
                    self.default_ttl = Some(seconds(words.next("TTL")?)?);
                    return words.end();
                }
                directive if directive.starts_with('$') => {
                    return Err(Reason::Directive(directive.to_owned()));
                }
                _ => self.owner = Some(self.name(first)?),
            }
        }
        let owner = self.owner.clone().ok_or(Reason::NoOwner)?;
        if !self.zone.zone_of(&owner) {
            return Err(Reason::OutOfZone(owner.to_ascii()));
        }
        let (mut ttl, mut class) = (None, None);
        let kind = loop {
            let word = words.0.next().ok_or(Reason::NoType)?;
            if class.is_none() && word.text.eq_ignore_ascii_case("IN") {
                class = Some(());
            } else if ttl.is_none() && word.text.starts_with(|c: char| c.is_ascii_digit()) {
                ttl = Some(seconds(*word)?);
            } else {
                break word.text.to_ascii_uppercase();
            }
        };
        let data = self.data(&kind, &mut words)?;
        words.end()?;
        let ttl = match (ttl, self.default_ttl, self.last_ttl, &data) {
            (Some(ttl), ..) | (None, Some(ttl), ..) | (None, None, Some(ttl), _) => ttl,
            // The rule of RFC 1035. RFC 2308 gave the field another meaning, but files without $TTL remained.
            (None, None, None, Data::Other(data)) if let RData::SOA(soa) = &**data => soa.minimum,
            _ => return Err(Reason::NoTtl),
        };
        self.last_ttl = Some(ttl);
        self.put(&owner, entry.line, ttl, data)
    }

    fn put(&mut self, owner: &Name, line: usize, ttl: u32, data: Data) -> Result<(), Reason> {
        match &data {
            Data::Other(other) => match &**other {
                RData::SOA(_) if self.soa.is_some() => return Err(Reason::SecondSoa),
                RData::SOA(_) if *owner != self.zone => return Err(Reason::SoaElsewhere),
                RData::SOA(soa) => {
                    self.soa = Some((soa.clone(), ttl));
                    return Ok(());
                }
                RData::NS(_) if *owner != self.zone => return Err(Reason::Delegation(owner.to_ascii())),
                _ => {}
            },
            Data::V4(_) | Data::V6(_) => {}
        }
        self.records
            .push(FileRecord::new(&self.zone, owner, line, ttl, data));
        Ok(())
    }

    /// `end` is the last line.
    fn finish(self, end: usize) -> Result<Zone, Invalid> {
        let Self {
            zone,
            soa,
            mut records,
            ..
        } = self;
        let (soa, ttl) = soa.ok_or(Invalid {
            line: end,
            reason: Reason::NoSoa,
        })?;
        sort(&mut records);
        if let Some(second) = second_beside_alias(&records) {
            return Err(Invalid {
                line: second.line,
                reason: Reason::Alias(second.name(&zone).unwrap_or_default().to_ascii()),
            });
        }
        Ok(Zone::of(zone, soa, ttl, records))
    }

    fn data(&self, kind: &str, words: &mut Words<'_, '_>) -> Result<Data, Reason> {
        let data = match kind {
            "A" => {
                return Ok(Data::V4(value::<Ipv4Addr>(
                    words.next("address")?,
                    "IPv4 address",
                )?));
            }
            "AAAA" => {
                let address = value::<Ipv6Addr>(words.next("address")?, "IPv6 address")?;
                return Ok(Data::V6(Box::new(address)));
            }
            "NS" => RData::NS(NS(self.name(words.next("name server")?)?)),
            "CNAME" => RData::CNAME(CNAME(self.name(words.next("name")?)?)),
            "PTR" => RData::PTR(PTR(self.name(words.next("name")?)?)),
            "MX" => {
                let preference = value(words.next("preference")?, "preference")?;
                RData::MX(MX::new(preference, self.name(words.next("mail server")?)?))
            }
            "SRV" => {
                let priority = value(words.next("priority")?, "priority")?;
                let weight = value(words.next("weight")?, "weight")?;
                let port = value(words.next("port")?, "port")?;
                RData::SRV(SRV::new(
                    priority,
                    weight,
                    port,
                    self.name(words.next("target")?)?,
                ))
            }
            "TXT" => {
                let first = string(words.next("text")?)?;
                let rest = words.0.by_ref().map(|word| string(*word));
                let texts: Vec<Vec<u8>> = std::iter::once(Ok(first)).chain(rest).collect::<Result<_, _>>()?;
                let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
                RData::TXT(TXT::from_bytes(texts))
            }
            "SOA" => {
                let server = self.name(words.next("name server")?)?;
                let mailbox = self.name(words.next("mailbox")?)?;
                let serial = value(words.next("serial")?, "serial")?;
                let mut time = |what| {
                    let word = words.next(what)?;
                    let time = i32::try_from(seconds(word)?);
                    time.map_err(|_| invalid(word, "time"))
                };
                let (refresh, retry, expire) = (time("refresh")?, time("retry")?, time("expire")?);
                let minimum = seconds(words.next("minimum")?)?;
                RData::SOA(SOA::new(server, mailbox, serial, refresh, retry, expire, minimum))
            }
            other => return Err(Reason::Type(other.to_owned())),
        };
        Ok(Data::Other(Box::new(data)))
    }

    fn name(&self, word: Word<'_>) -> Result<Name, Reason> {
        if word.text == "@" && !word.quoted {
            return Ok(self.origin.clone());
        }
        let no_name = || Reason::Name(word.text.to_owned());
        let mut name = Name::from_ascii(word.text).map_err(|_| no_name())?;
        if word.text.is_empty() {
            return Err(no_name());
        }
        if !name.is_fqdn() {
            name = name.append_domain(&self.origin).map_err(|_| no_name())?;
        }
        name.set_fqdn(true);
        Ok(name)
    }
}

/// The first line of the file that gives a name an alias and other data. `records` are sorted.
fn second_beside_alias(records: &[FileRecord]) -> Option<&FileRecord> {
    let is_alias =
        |record: &FileRecord| matches!(record.data(), Data::Other(it) if matches!(**it, RData::CNAME(_)));
    let groups = records.chunk_by(FileRecord::is_beside);
    let wrong = groups.filter_map(|group| {
        let (first, rest) = group.split_first()?;
        if is_alias(first) && first.is_at_origin() {
            return Some(first);
        }
        // Neither an alias after another record nor a record after an alias is valid.
        rest.iter().find(|record| is_alias(first) || is_alias(record))
    });
    wrong.min_by_key(|record| record.line)
}

/// The remaining words of an entry.
struct Words<'w, 't>(std::slice::Iter<'w, Word<'t>>);

impl<'t> Words<'_, 't> {
    fn next(&mut self, what: &'static str) -> Result<Word<'t>, Reason> {
        self.0.next().copied().ok_or(Reason::Missing(what))
    }

    fn end(&mut self) -> Result<(), Reason> {
        match self.0.next() {
            Some(word) => Err(Reason::TooMuch(word.text.to_owned())),
            None => Ok(()),
        }
    }
}

fn invalid(word: Word<'_>, kind: &'static str) -> Reason {
    let text = word.text.to_owned();
    Reason::Value { text, kind }
}

fn value<T: std::str::FromStr>(word: Word<'_>, kind: &'static str) -> Result<T, Reason> {
    word.text.parse().map_err(|_| invalid(word, kind))
}

/// A number of seconds, or the sum of numbers with units, such as `1h30m`.
fn seconds(word: Word<'_>) -> Result<u32, Reason> {
    let no_time = || invalid(word, "time");
    let (mut sum, mut number) = (0_u32, None::<u32>);
    for c in word.text.chars() {
        if let Some(digit) = c.to_digit(10) {
            let ten = number.unwrap_or(0).checked_mul(10);
            number = Some(ten.and_then(|it| it.checked_add(digit)).ok_or_else(no_time)?);
            continue;
        }
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return Err(no_time()),
        };
        let part = number.take().and_then(|number| number.checked_mul(unit));
        let total = part.and_then(|part| sum.checked_add(part));
        sum = total.ok_or_else(no_time)?;
    }
    match number {
        Some(number) if sum == 0 => Ok(number),
        None if !word.text.is_empty() => Ok(sum),
        _ => Err(no_time()),
    }
}

/// A string of a TXT record without escapes.
fn string(word: Word<'_>) -> Result<Vec<u8>, Reason> {
    let mut bytes = word.text.bytes();
    let mut text = Vec::with_capacity(word.text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        let no_escape = || invalid(word, "string");
        let first = bytes.next().ok_or_else(no_escape)?;
        if !first.is_ascii_digit() {
            text.push(first);
            continue;
        }
        let digits = [Some(first), bytes.next(), bytes.next()];
        let mut number = 0_u16;
        for digit in digits {
            let digit = digit.filter(u8::is_ascii_digit).ok_or_else(no_escape)?;
            number = number * 10 + u16::from(digit - b'0');
        }
        text.push(u8::try_from(number).map_err(|_| no_escape())?);
    }
    if text.len() > STRING {
        return Err(invalid(word, "string"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
