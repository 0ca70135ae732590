//! What a zone holds, found by name: existing names, names between them, and what does not exist (secondary-dns §6).
//!
//! ```text
//! nic1.vmi1.ns1.vm. ──> key: 3ns1 4vmi1 4nic1 ──> records │ nothing but deeper names │ missing
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_proto::rr::rdata::SOA;
use hickory_proto::rr::{Name, RData, RecordType};

use crate::vmi::Record;

pub mod file;
pub mod reverse;
pub mod serial;

/// Octets of the longest name.
const LONGEST: usize = 255;

/// A zone. One writer changes it, for one instance at a time, under a lock that answers hold as shortly.
#[derive(Debug)]
pub struct Zone {
    origin: Name,
    soa: SOA,
    soa_ttl: u32,
    names: BTreeMap<Box<[u8]>, Entries>,
    records: usize,
}

/// One record at a name.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it says.
    pub data: Data,
    /// Seconds that it may be cached.
    pub ttl: u32,
    /// The instance that it is of; none in a zone that was read from a file.
    source: Option<Arc<str>>,
}

/// What a record says; most say an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address. It has a place of its own, so that all others stay small.
    V6(Box<Ipv6Addr>),
    /// Anything else.
    Other(Box<RData>),
}

/// Records at a name. Most names have one, which takes no allocation of its own.
#[derive(Debug)]
enum Entries {
    One(Entry),
    Several(Vec<Entry>),
}

/// A record that was read from a file, with the key of its name.
#[derive(Debug)]
pub(crate) struct FileRecord {
    key: Box<[u8]>,
    /// Where it stands in the file, counted from 1.
    pub(crate) line: usize,
    entry: Entry,
}

/// What there is at a name.
#[derive(Debug)]
pub enum Found<'z> {
    /// Records, in the order of the zone file.
    Records(&'z [Entry]),
    /// Nothing but names below it.
    Between,
    /// Nothing, and no name below it.
    Missing,
}

impl Data {
    /// Its type.
    pub fn record_type(&self) -> RecordType {
        match self {
            Self::V4(_) => RecordType::A,
            Self::V6(_) => RecordType::AAAA,
            Self::Other(data) => data.record_type(),
        }
    }

    /// In the form that messages are made of.
    pub fn to_rdata(&self) -> RData {
        match self {
            Self::V4(address) => RData::A((*address).into()),
            Self::V6(address) => RData::AAAA((**address).into()),
            Self::Other(data) => (**data).clone(),
        }
    }
}

impl From<IpAddr> for Data {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(Box::new(address)),
        }
    }
}

impl Entries {
    fn as_slice(&self) -> &[Entry] {
        match self {
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Several(entries) => entries,
        }
    }

    /// `None` where there is no record.
    fn of(mut entries: Vec<Entry>) -> Option<Self> {
        if entries.len() > 1 {
            entries.shrink_to_fit();
            return Some(Self::Several(entries));
        }
        entries.pop().map(Self::One)
    }

    fn into_vec(self) -> Vec<Entry> {
        match self {
            Self::One(entry) => vec![entry],
            Self::Several(entries) => entries,
        }
    }
}

impl FileRecord {
    /// A record at a name of the zone of this origin.
    pub(crate) fn new(origin: &Name, name: &Name, line: usize, ttl: u32, data: Data) -> Self {
        let mut room = [0; LONGEST];
        Self {
            key: key(name, usize::from(origin.num_labels()), &mut room).into(),
            line,
            entry: Entry {
                data,
                ttl,
                source: None,
            },
        }
    }

    /// The name that it is at, in lower case.
    pub(crate) fn name(&self, origin: &Name) -> Option<Name> {
        let mut labels = Vec::new();
        let mut rest = &*self.key;
        while let Some((length, behind)) = rest.split_first() {
            let (label, next) = behind.split_at_checked(usize::from(*length))?;
            labels.push(label);
            rest = next;
        }
        labels.reverse();
        Name::from_labels(labels).ok()?.append_domain(origin).ok()
    }

    /// What the record says.
    pub(crate) fn data(&self) -> &Data {
        &self.entry.data
    }

    /// Whether it is at the name of the zone itself.
    pub(crate) fn is_at_origin(&self) -> bool {
        self.key.is_empty()
    }

    /// Whether both are at one name.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// Sorts records by their names; those of one name stay in the order of the file.
pub(crate) fn sort(records: &mut [FileRecord]) {
    records.sort_by(|one, other| one.key.cmp(&other.key));
}

impl Zone {
    /// A zone with nothing but its SOA record.
    pub fn new(origin: Name, soa: SOA, soa_ttl: u32) -> Self {
        Self {
            origin,
            soa,
            soa_ttl,
            names: BTreeMap::new(),
            records: 0,
        }
    }

    /// A zone of records that are [sorted](sort). Its map is filled to the last place, which one that grows is not.
    pub(crate) fn of(origin: Name, soa: SOA, soa_ttl: u32, sorted: Vec<FileRecord>) -> Self {
        let records = sorted.len();
        let mut sorted = sorted.into_iter().peekable();
        let names = std::iter::from_fn(|| {
            let first = sorted.next()?;
            let mut entries = vec![first.entry];
            while let Some(next) = sorted.next_if(|next| next.key == first.key) {
                entries.push(next.entry);
            }
            Some((first.key, Entries::of(entries)?))
        });
        Self {
            origin,
            soa,
            soa_ttl,
            names: names.collect(),
            records,
        }
    }

    /// Name of the zone.
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// Its SOA record.
    pub fn soa(&self) -> &SOA {
        &self.soa
    }

    /// Seconds that the SOA record may be cached in a positive answer.
    pub fn soa_ttl(&self) -> u32 {
        self.soa_ttl
    }

    /// Seconds that a negative answer may be cached (RFC 2308 §5).
    pub fn negative_ttl(&self) -> u32 {
        self.soa_ttl.min(self.soa.minimum)
    }

    /// How many records there are, the SOA apart.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Says that the content has changed.
    pub fn set_serial(&mut self, serial: u32) {
        self.soa.serial = serial;
    }

    /// What there is at a name. `None` when the name is not in this zone.
    pub fn find(&self, name: &Name) -> Option<Found<'_>> {
        if !self.origin.zone_of(name) {
            return None;
        }
        let mut room = [0; LONGEST];
        let key = key(name, usize::from(self.origin.num_labels()), &mut room);
        if let Some(entries) = self.names.get(key) {
            return Some(Found::Records(entries.as_slice()));
        }
        if key.is_empty() {
            return Some(Found::Records(&[]));
        }
        let from = std::ops::Bound::Excluded(key);
        let mut behind = self.names.range::<[u8], _>((from, std::ops::Bound::Unbounded));
        let is_between = behind.next().is_some_and(|(next, _)| next.starts_with(key));
        Some(if is_between {
            Found::Between
        } else {
            Found::Missing
        })
    }

    /// Adds a record at a name of this zone. `false` when the name is not in it.
    pub fn add(&mut self, name: &Name, ttl: u32, data: Data) -> bool {
        if !self.origin.zone_of(name) {
            return false;
        }
        let mut room = [0; LONGEST];
        let key = key(name, usize::from(self.origin.num_labels()), &mut room);
        let entry = Entry {
            data,
            ttl,
            source: None,
        };
        self.insert(key.into(), entry);
        true
    }

    /// Puts the new records of an instance in the place of its old ones.
    pub fn replace(&mut self, source: &Arc<str>, old: &[Record], new: &[Record], ttl: u32) {
        self.forget(source, old.iter().map(|record| text_key(&record.owner)));
        for record in new {
            let entry = Entry {
                data: record.address.into(),
                ttl,
                source: Some(Arc::clone(source)),
            };
            self.insert(text_key(&record.owner), entry);
        }
    }

    /// Removes the records that an instance has at some names.
    pub(crate) fn forget(&mut self, source: &Arc<str>, keys: impl Iterator<Item = Box<[u8]>>) {
        for key in keys {
            let Some(entries) = self.names.remove(&key) else {
                continue;
            };
            let mut entries = entries.into_vec();
            let before = entries.len();
            entries.retain(|entry| entry.source.as_ref() != Some(source));
            self.records -= before - entries.len();
            if let Some(left) = Entries::of(entries) {
                self.names.insert(key, left);
            }
        }
    }

    /// Adds a record of an instance.
    pub(crate) fn add_of(&mut self, source: &Arc<str>, key: Box<[u8]>, ttl: u32, data: Data) {
        let entry = Entry {
            data,
            ttl,
            source: Some(Arc::clone(source)),
        };
        self.insert(key, entry);
    }

    /// Instances that share a name stand in the order of the zone file.
    fn insert(&mut self, key: Box<[u8]>, entry: Entry) {
        self.records += 1;
        let Some(present) = self.names.remove(&key) else {
            self.names.insert(key, Entries::One(entry));
            return;
        };
        let mut entries = present.into_vec();
        let at = entries.partition_point(|other| other.source <= entry.source);
        entries.insert(at, entry);
        self.names.insert(key, Entries::Several(entries));
    }
}

/// Labels of a name from the last one on, each behind its length and in lower case: all names below another one begin
/// with its key, and none else does. The last `below` labels are left out.
fn key<'r>(name: &Name, below: usize, room: &'r mut [u8; LONGEST]) -> &'r [u8] {
    let mut end = 0;
    for label in name.iter().rev().skip(below) {
        end = put(label, room, end);
    }
    &room[..end]
}

/// The key of a name below the zone that is text, such as `nic1.vmi1.ns1`; that of the zone itself is empty.
pub(crate) fn text_key(owner: &str) -> Box<[u8]> {
    let mut room = [0; LONGEST];
    let mut end = 0;
    for label in owner.rsplit('.').filter(|label| !label.is_empty()) {
        end = put(label.as_bytes(), &mut room, end);
    }
    room[..end].into()
}

fn put(label: &[u8], room: &mut [u8; LONGEST], at: usize) -> usize {
    let end = at + 1 + label.len();
    // A name that was read or checked is never longer than the room.
    let Some(place) = room.get_mut(at..end) else {
        return at;
    };
    if let [length, text @ ..] = place {
        *length = u8::try_from(label.len()).unwrap_or(u8::MAX);
        text.copy_from_slice(label);
        text.make_ascii_lowercase();
    }
    end
}

/// The zones that a server answers for, each loaded or not yet.
#[derive(Debug, Default)]
pub struct Zones {
    zones: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    origin: Name,
    zone: Option<Zone>,
}

/// Whose a name is.
#[derive(Debug)]
pub enum Owner<'z> {
    /// Of this zone.
    Zone(&'z Zone),
    /// Of a zone that is not loaded yet, or there is no zone at all.
    Unloaded,
    /// Of no zone of this server.
    Elsewhere,
}

impl Zones {
    /// Answers for a zone from now on: not yet, where it is none.
    pub fn expect(&mut self, origin: Name) {
        if !self.zones.iter().any(|slot| slot.origin == origin) {
            self.zones.push(Slot { origin, zone: None });
        }
    }

    /// Puts a zone in the place of the former one of its name, which is returned.
    pub fn put(&mut self, zone: Zone) -> Option<Zone> {
        let origin = zone.origin.clone();
        self.expect(origin.clone());
        let slot = self.zones.iter_mut().find(|slot| slot.origin == origin)?;
        slot.zone.replace(zone)
    }

    /// Puts zones in the place of all others; those of `origins` that are not among them are not loaded.
    pub(crate) fn put_only(&mut self, origins: &[Name], zones: Vec<Zone>) {
        self.zones.retain(|slot| origins.contains(&slot.origin));
        for origin in origins {
            self.expect(origin.clone());
        }
        for zone in zones {
            self.put(zone);
        }
    }

    /// Takes a zone out, which is returned.
    pub fn remove(&mut self, origin: &Name) -> Option<Zone> {
        let at = self.zones.iter().position(|slot| slot.origin == *origin)?;
        self.zones.swap_remove(at).zone
    }

    /// The closest zone that a name is in.
    pub fn owner(&self, name: &Name) -> Owner<'_> {
        if self.zones.is_empty() {
            return Owner::Unloaded;
        }
        let matching = self.zones.iter().filter(|slot| slot.origin.zone_of(name));
        match matching.max_by_key(|slot| slot.origin.num_labels()) {
            None => Owner::Elsewhere,
            Some(Slot { zone: None, .. }) => Owner::Unloaded,
            Some(Slot { zone: Some(zone), .. }) => Owner::Zone(zone),
        }
    }

    /// The zone of this name, once it is loaded.
    pub fn get_mut(&mut self, origin: &Name) -> Option<&mut Zone> {
        let slot = self.zones.iter_mut().find(|slot| slot.origin == *origin)?;
        slot.zone.as_mut()
    }

    /// All zones that are loaded.
    pub fn loaded(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter().filter_map(|slot| slot.zone.as_ref())
    }
}

#[cfg(test)]
mod tests;
