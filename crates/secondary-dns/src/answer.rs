//! The answer to a message (secondary-dns §6): bytes in, bytes out.
//!
//! ```text
//! octets ──> header ──> question, OPT ──> zone ──> answer, authority, additional ──> what fits
//! ```

use std::sync::{Arc, Mutex};

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable, BinEncoder};
use kube_kit::lock;

use crate::zone::{Entry, Found, Owner, Zone, Zones};

/// Bytes of a message's header.
const HEADER: usize = 12;
/// Bytes of a question after the labels of its name.
const ROOT_TYPE_CLASS: usize = 5;
/// Bytes of an OPT record without options.
const OPT: usize = 11;
/// Bytes that every client accepts over UDP (RFC 1035 §4.2.1).
const SMALLEST: u16 = 512;
/// Bytes that pass every network without fragmentation: the offered and sent maximum over UDP.
const OFFERED: u16 = 1232;
/// The maximum length of a chain of aliases.
const ALIASES: usize = 8;
/// The only version of EDNS.
const EDNS_VERSION: u8 = 0;

/// Bits of the header's second word.
mod flag {
    pub(super) const RESPONSE: u16 = 0x8000;
    pub(super) const OPCODE: u16 = 0x7800;
    pub(super) const AUTHORITATIVE: u16 = 0x0400;
    pub(super) const TRUNCATED: u16 = 0x0200;
    pub(super) const RECURSION_DESIRED: u16 = 0x0100;
    pub(super) const CHECKING_DISABLED: u16 = 0x0010;
}

/// Zones with several readers and one writer.
pub type SharedZones = Arc<Mutex<Zones>>;

/// The zones of one address. Each block of the Corefile has the zones below one name.
#[derive(Clone, Debug)]
pub struct Site(pub Vec<Block>);

/// One block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The block answers for this name and all names below it.
    pub below: Name,
    /// Zones of the block.
    pub zones: SharedZones,
    /// Whether queries of this block are logged.
    pub log: bool,
}

/// Transport of a message.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
}

/// The answer to a query.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The message for the client.
    pub octets: Vec<u8>,
    /// The response code, including its part in the OPT record.
    pub code: ResponseCode,
    /// The question, if it was readable.
    pub question: Option<Query>,
    /// The client's OPT record: whether it requests signatures, and the maximum size of an answer.
    pub edns: Option<(bool, u16)>,
    /// Whether the block of the answer logs its queries.
    pub log: bool,
}

/// Answers a message. `None` if no answer is allowed: the message is an answer itself, or too short.
pub fn respond(message: &[u8], transport: Transport, site: &Site) -> Option<Reply> {
    let word = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let (id, flags, questions) = (word(0)?, word(2)?, word(4)?);
    let counts = [word(6)?, word(8)?, word(10)?];
    if flags & flag::RESPONSE != 0 {
        return None;
    }
    let draft = Draft::new(id, flags);
    if flags & flag::OPCODE != 0 {
        return Some(draft.bare(ResponseCode::NotImp));
    }
    if questions != 1 {
        return Some(draft.bare(ResponseCode::FormErr));
    }
    let Some((query, edns)) = read(message, counts) else {
        return Some(draft.bare(ResponseCode::FormErr));
    };
    Some(draft.answer(query, edns.as_ref(), transport, site))
}

/// The question, and the OPT record if present.
fn read(message: &[u8], counts: [u16; 3]) -> Option<(Query, Option<Edns>)> {
    let mut decoder = BinDecoder::new(message);
    decoder.read_slice(HEADER).ok()?;
    let query = Query::read(&mut decoder).ok()?;
    // An answer cannot repeat a name with a pointer to itself or to the header byte for byte.
    let labels = query.name().iter().map(|label| label.len() + 1);
    if decoder.index() != HEADER + labels.sum::<usize>() + ROOT_TYPE_CLASS {
        return None;
    }
    let mut edns = None;
    for (section, count) in counts.into_iter().enumerate() {
        let is_additional = section == 2;
        let records = Message::read_records(&mut decoder, usize::from(count), is_additional, OpCode::Query);
        edns = records.ok()?.1;
    }
    Some((query, edns))
}

/// An unfinished answer.
struct Draft {
    id: u16,
    flags: u16,
}

/// Records that are sent together or not at all.
type Set = Vec<Record>;

/// The records of an answer.
#[derive(Default)]
struct Content {
    answer: Vec<Set>,
    authority: Vec<Set>,
    additional: Vec<Set>,
    authoritative: bool,
}

impl Draft {
    fn new(id: u16, flags: u16) -> Self {
        let kept = flag::OPCODE | flag::RECURSION_DESIRED | flag::CHECKING_DISABLED;
        Self {
            id,
            flags: flag::RESPONSE | flags & kept,
        }
    }

    /// An answer with a header only.
    fn bare(self, code: ResponseCode) -> Reply {
        let mut octets = vec![0; HEADER];
        self.head(&mut octets, code, [0; 4]);
        Reply {
            octets,
            code,
            question: None,
            edns: None,
            log: false,
        }
    }

    fn answer(self, query: Query, edns: Option<&Edns>, transport: Transport, site: &Site) -> Reply {
        let asked = edns.map(|edns| (edns.flags().dnssec_ok, edns.max_payload()));
        let block = site.block(query.name());
        let (code, content) = match block {
            _ if edns.is_some_and(|edns| edns.version() > EDNS_VERSION) => {
                (ResponseCode::BADVERS, Content::default())
            }
            _ if query.query_class() != DNSClass::IN => (ResponseCode::Refused, Content::default()),
            _ if matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR) => {
                (ResponseCode::Refused, Content::default())
            }
            None => (ResponseCode::Refused, Content::default()),
            Some(block) => match lock(&block.zones).owner(query.name()) {
                Owner::Elsewhere => (ResponseCode::Refused, Content::default()),
                Owner::Unloaded => (ResponseCode::ServFail, Content::default()),
                Owner::Zone(zone) => look_up(zone, &query),
            },
        };
        let limit = match (transport, asked) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, Some((_, size))) => size.clamp(SMALLEST, OFFERED),
            (Transport::Udp, None) => SMALLEST,
        };
        let octets = self.write(&query, asked, code, &content, usize::from(limit));
        Reply {
            octets,
            code,
            question: Some(query),
            edns: asked,
            log: block.is_some_and(|block| block.log),
        }
    }

    fn write(
        mut self,
        query: &Query,
        edns: Option<(bool, u16)>,
        code: ResponseCode,
        content: &Content,
        limit: usize,
    ) -> Vec<u8> {
        let limit = limit - if edns.is_some() { OPT } else { 0 };
        let mut octets = Vec::with_capacity(usize::from(SMALLEST));
        let mut counts = [0_u16; 4];
        let mut encoder = BinEncoder::new(&mut octets);
        // These steps cannot fail: names were read from a message or validated, and the buffer grows.
        let fits = encoder.emit_vec(&[0; HEADER]).is_ok() && query.emit(&mut encoder).is_ok();
        counts[0] = u16::from(fits);
        let sections = [&content.answer, &content.authority, &content.additional];
        let mut complete = fits;
        for (section, sets) in (1..).zip(sections) {
            for set in sets {
                let before = encoder.offset();
                complete = complete
                    && set.iter().all(|record| record.emit(&mut encoder).is_ok())
                    && encoder.offset() <= limit;
                if !complete {
                    encoder.set_offset(before);
                    encoder.trim();
                    break;
                }
                counts[section] += u16::try_from(set.len()).unwrap_or(u16::MAX);
            }
        }
        if let Some((dnssec_ok, _)) = edns {
            let mut opt = Edns::new();
            opt.set_version(EDNS_VERSION)
                .set_dnssec_ok(dnssec_ok)
                .set_max_payload(OFFERED)
                .set_rcode_high(code.high());
            counts[3] += u16::from(Record::from(&opt).emit(&mut encoder).is_ok());
        }
        if content.authoritative {
            self.flags |= flag::AUTHORITATIVE;
        }
        if !complete {
            self.flags |= flag::TRUNCATED;
        }
        self.head(&mut octets, code, counts);
        octets
    }

    fn head(&self, octets: &mut [u8], code: ResponseCode, counts: [u16; 4]) {
        let words = [self.id, self.flags | u16::from(code.low())];
        let words = words.into_iter().chain(counts);
        for (place, word) in octets.chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }
}

impl Site {
    /// The closest block that contains a name.
    fn block(&self, name: &Name) -> Option<&Block> {
        let matching = self.0.iter().filter(|block| block.below.zone_of(name));
        matching.max_by_key(|block| block.below.num_labels())
    }
}

/// A zone's answer to a question.
fn look_up(zone: &Zone, query: &Query) -> (ResponseCode, Content) {
    let (mut owner, wanted) = (query.name().clone(), query.query_type());
    let mut content = Content {
        authoritative: true,
        ..Content::default()
    };
    if wanted == RecordType::SOA && owner == *zone.origin() {
        content.answer.push(vec![soa(zone, zone.soa_ttl(), &owner)]);
        content.authority.extend(name_servers(zone));
        return (ResponseCode::NoError, content);
    }
    for _ in 0..ALIASES {
        let entries = match zone.find(&owner) {
            // The alias points out of the zone.
            None => return (ResponseCode::NoError, content),
            Some(Found::Records(entries)) => entries,
            Some(Found::Between) => &[],
            Some(Found::Missing) => {
                content.authority.push(denial(zone));
                return (ResponseCode::NXDomain, content);
            }
        };
        let records = of_type(entries, &owner, wanted);
        if !records.is_empty() {
            if wanted == RecordType::NS && owner == *zone.origin() {
                content.additional = glue(zone, &records);
            } else {
                content.authority.extend(name_servers(zone));
            }
            content.answer.push(records);
            return (ResponseCode::NoError, content);
        }
        let alias = of_type(entries, &owner, RecordType::CNAME);
        let target = alias.first().and_then(|record| match &record.data {
            RData::CNAME(target) => Some(target.0.clone()),
            _ => None,
        });
        let Some(target) = target else {
            content.authority.push(denial(zone));
            return (ResponseCode::NoError, content);
        };
        content.answer.push(alias);
        owner = target;
    }
    // The aliases form a loop.
    (ResponseCode::ServFail, Content::default())
}

/// Records of one type without duplicates.
fn of_type(entries: &[Entry], owner: &Name, wanted: RecordType) -> Set {
    let mut set: Set = Vec::new();
    for entry in entries.iter().filter(|entry| entry.data.record_type() == wanted) {
        let data = entry.data.to_rdata();
        if set.iter().all(|other| other.data != data) {
            set.push(Record::from_rdata(owner.clone(), entry.ttl, data));
        }
    }
    set
}

fn soa(zone: &Zone, ttl: u32, owner: &Name) -> Record {
    Record::from_rdata(owner.clone(), ttl, RData::SOA(zone.soa().clone()))
}

/// The SOA record that denies the existence of a record, with the TTL of the denial (RFC 2308 §3).
fn denial(zone: &Zone) -> Set {
    vec![soa(zone, zone.negative_ttl(), zone.origin())]
}

fn name_servers(zone: &Zone) -> Option<Set> {
    let Some(Found::Records(entries)) = zone.find(zone.origin()) else {
        return None;
    };
    let servers = of_type(entries, zone.origin(), RecordType::NS);
    (!servers.is_empty()).then_some(servers)
}

/// Addresses of the name servers inside of the zone.
fn glue(zone: &Zone, servers: &[Record]) -> Vec<Set> {
    let mut sets = Vec::new();
    for server in servers {
        let RData::NS(name) = &server.data else { continue };
        if let Some(Found::Records(entries)) = zone.find(&name.0) {
            for kind in [RecordType::A, RecordType::AAAA] {
                let set = of_type(entries, &name.0, kind);
                sets.extend((!set.is_empty()).then_some(set));
            }
        }
    }
    sets
}
