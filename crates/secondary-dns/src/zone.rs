//! The records of a zone with lookup by name: existing names, empty non-terminals, and missing names (secondary-dns
//! §6).
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

/// Maximum length of a name in bytes.
const LONGEST: usize = 255;

/// A zone. One writer changes it, one instance at a time. Writer and answers hold the lock for short times.
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
    /// Content of the record.
    pub data: Data,
    /// TTL in seconds.
    pub ttl: u32,
    /// The key of the record's instance; `None` in a zone from a file.
    source: Option<Arc<str>>,
}

/// Content of a record; usually an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address. The box keeps all other variants small.
    V6(Box<Ipv6Addr>),
    /// Any other type.
    Other(Box<RData>),
}

/// Records at a name. Most names have one, which needs no allocation of its own.
#[derive(Debug)]
enum Entries {
    One(Entry),
    Several(Vec<Entry>),
}

/// A record from a file, with the key of its name.
#[derive(Debug)]
pub(crate) struct FileRecord {
    key: Box<[u8]>,
    /// Line in the file, counted from 1.
    pub(crate) line: usize,
    entry: Entry,
}

/// The result of a lookup.
#[derive(Debug)]
pub enum Found<'z> {
    /// Records, in the order of the zone file.
    Records(&'z [Entry]),
    /// Only names below exist.
    Between,
    /// Neither the name nor a name below exists.
    Missing,
}

impl Data {
    /// Type of the record.
    pub fn record_type(&self) -> RecordType {
        match self {
            Self::V4(_) => RecordType::A,
            Self::V6(_) => RecordType::AAAA,
            Self::Other(data) => data.record_type(),
        }
    }

    /// The record data of a message.
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

    /// `None` without records.
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

    /// The name of the record in lower case.
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

    pub(crate) fn data(&self) -> &Data {
        &self.entry.data
    }

    /// Whether the record is at the name of the zone itself.
    pub(crate) fn is_at_origin(&self) -> bool {
        self.key.is_empty()
    }

    /// Whether both records have the same name.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// Sorts records by their names. Records of one name stay in the order of the file.
pub(crate) fn sort(records: &mut [FileRecord]) {
    records.sort_by(|one, other| one.key.cmp(&other.key));
}

impl Zone {
    /// A zone with only an SOA record.
    pub fn new(origin: Name, soa: SOA, soa_ttl: u32) -> Self {
        Self {
            origin,
            soa,
            soa_ttl,
            names: BTreeMap::new(),
            records: 0,
        }
    }

    /// A zone of [sorted](sort) records. Its map has full nodes, unlike a map that grows.
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

    /// The SOA record.
    pub fn soa(&self) -> &SOA {
        &self.soa
    }

    /// TTL in seconds of the SOA record in a positive answer.
    pub fn soa_ttl(&self) -> u32 {
        self.soa_ttl
    }

    /// TTL in seconds of a negative answer (RFC 2308 §5).
    pub fn negative_ttl(&self) -> u32 {
        self.soa_ttl.min(self.soa.minimum)
    }

    /// The number of records except the SOA.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Sets the serial after a change of the content.
    pub fn set_serial(&mut self, serial: u32) {
        self.soa.serial = serial;
    }

    /// Looks a name up. `None` if the name is outside of the zone.
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

    /// Adds a record at a name of this zone. `false` if the name is outside of the zone.
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

    /// Replaces the old records of an instance with its new ones.
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

    /// Removes the records of an instance at these names.
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

    /// Instances with a common name are in the order of the zone file.
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

/// Labels of a name in reverse order, each in lower case after its length. All names below a name, and no others, begin
/// with its key. The last `below` labels are left out.
fn key<'r>(name: &Name, below: usize, room: &'r mut [u8; LONGEST]) -> &'r [u8] {
    let mut end = 0;
    for label in name.iter().rev().skip(below) {
        end = put(label, room, end);
    }
    &room[..end]
}

/// The key of a name below the zone in text form, such as `nic1.vmi1.ns1`. The key of the zone itself is empty.
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
    // A parsed or validated name always fits.
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

/// The zones of a server. A zone may not be loaded yet.
#[derive(Debug, Default)]
pub struct Zones {
    zones: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    origin: Name,
    zone: Option<Zone>,
}

/// The zone of a name.
#[derive(Debug)]
pub enum Owner<'z> {
    /// A loaded zone.
    Zone(&'z Zone),
    /// A zone that is not loaded yet, or the server has no zone at all.
    Unloaded,
    /// The name is outside of all zones of this server.
    Elsewhere,
}

impl Zones {
    /// Adds a zone to the server's zones. It is loaded later.
    pub fn expect(&mut self, origin: Name) {
        if !self.zones.iter().any(|slot| slot.origin == origin) {
            self.zones.push(Slot { origin, zone: None });
        }
    }

    /// Replaces the zone of the same name, and returns the former one.
    pub fn put(&mut self, zone: Zone) -> Option<Zone> {
        let origin = zone.origin.clone();
        self.expect(origin.clone());
        let slot = self.zones.iter_mut().find(|slot| slot.origin == origin)?;
        slot.zone.replace(zone)
    }

    /// Replaces all zones. Zones of `origins` that are not in `zones` are not loaded.
    pub(crate) fn put_only(&mut self, origins: &[Name], zones: Vec<Zone>) {
        self.zones.retain(|slot| origins.contains(&slot.origin));
        for origin in origins {
            self.expect(origin.clone());
        }
        for zone in zones {
            self.put(zone);
        }
    }

    /// Removes a zone and returns it.
    pub fn remove(&mut self, origin: &Name) -> Option<Zone> {
        let at = self.zones.iter().position(|slot| slot.origin == *origin)?;
        self.zones.swap_remove(at).zone
    }

    /// The closest zone that contains a name.
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

    /// The zone of this name, if it is loaded.
    pub fn get_mut(&mut self, origin: &Name) -> Option<&mut Zone> {
        let slot = self.zones.iter_mut().find(|slot| slot.origin == *origin)?;
        slot.zone.as_mut()
    }

    /// All loaded zones.
    pub fn loaded(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter().filter_map(|slot| slot.zone.as_ref())
    }
}

#[cfg(test)]
mod tests;
