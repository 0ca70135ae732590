//! What a zone holds, found by name: existing names, names between them, and what does not exist (secondary-dns §6).
//!
//! ```text
//! nic1.vmi1.ns1.vm. ──> key: 3ns1 4vmi1 4nic1 ──> records │ nothing but deeper names │ missing
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
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
    names: BTreeMap<Box<[u8]>, Vec<Entry>>,
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
    /// An address.
    Address(IpAddr),
    /// Anything else.
    Other(Box<RData>),
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
            Self::Address(IpAddr::V4(_)) => RecordType::A,
            Self::Address(IpAddr::V6(_)) => RecordType::AAAA,
            Self::Other(data) => data.record_type(),
        }
    }

    /// In the form that messages are made of.
    pub fn to_rdata(&self) -> RData {
        match self {
            Self::Address(IpAddr::V4(address)) => RData::A((*address).into()),
            Self::Address(IpAddr::V6(address)) => RData::AAAA((*address).into()),
            Self::Other(data) => (**data).clone(),
        }
    }
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
            return Some(Found::Records(entries));
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
                data: Data::Address(record.address),
                ttl,
                source: Some(Arc::clone(source)),
            };
            self.insert(text_key(&record.owner), entry);
        }
    }

    /// Removes the records that an instance has at some names.
    pub(crate) fn forget(&mut self, source: &Arc<str>, keys: impl Iterator<Item = Box<[u8]>>) {
        for key in keys {
            let Some(entries) = self.names.get_mut(&key) else {
                continue;
            };
            let before = entries.len();
            entries.retain(|entry| entry.source.as_ref() != Some(source));
            self.records -= before - entries.len();
            if entries.is_empty() {
                self.names.remove(&key);
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
        let entries = self.names.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let at = entries.partition_point(|other| other.source <= entry.source);
        entries.insert(at, entry);
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
