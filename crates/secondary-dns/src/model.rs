//! All records of a cluster by instance, and their zone files (secondary-dns §4, §5).
//!
//! ```text
//! instance ──> set, remove ──> Model ──┬─> Update: what of the zones in memory changes
//!                                      └─> render ──> zone files
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::rdata::{NS, PTR, SOA};
use hickory_proto::rr::{Name, RData};

use crate::names;
use crate::vmi::Record;
use crate::zone::reverse::Reverse;
use crate::zone::{Data, Zone, Zones, serial, text_key};

/// Times of the SOA record in seconds.
const REFRESH: u32 = 3600;
const RETRY: u32 = 3600;
const EXPIRE: u32 = 1_209_600;

/// The common part of all zones of the cluster.
#[derive(Clone, Debug)]
pub struct Header {
    /// Name of the zone without a trailing dot, such as `vm.example.com`.
    pub zone: String,
    /// Addresses of the name server; if empty, the zones have no NS record.
    pub name_servers: Vec<IpAddr>,
    /// TTL of records and negative answers in seconds.
    pub ttl: u32,
    /// Zones of PTR records.
    pub reverse: Vec<Reverse>,
}

/// All records by instance. The key of an instance is its namespace, a zero byte, and its name: the order of keys is
/// the order of (namespace, name).
#[derive(Debug)]
pub struct Model {
    header: Header,
    instances: Instances,
    serial: u32,
}

/// Records by the key of their instance.
pub(crate) type Instances = BTreeMap<Arc<str>, Arc<[Record]>>;

/// A change of one instance.
#[derive(Debug)]
pub struct Update {
    instance: Arc<str>,
    old: Arc<[Record]>,
}

/// The key of an instance.
pub fn key(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}\0{name}").into()
}

impl Model {
    /// A model without instances, with this serial.
    pub fn new(header: Header, serial: u32) -> Self {
        Self {
            header,
            instances: Instances::new(),
            serial,
        }
    }

    /// The common part of all zones.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The serial of the present records.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Continues from another serial.
    pub fn set_serial(&mut self, serial: u32) {
        self.serial = serial;
    }

    /// The number of instances with records.
    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    /// All records with the namespace of their instance, in the order of the zone file.
    pub fn records(&self) -> impl Iterator<Item = (&str, &Record)> {
        self.instances.iter().flat_map(|(instance, records)| {
            let namespace = instance.split('\0').next().unwrap_or_default();
            records.iter().map(move |record| (namespace, record))
        })
    }

    /// Records of an instance; empty if it has none.
    pub(crate) fn records_of(&self, instance: &str) -> Arc<[Record]> {
        self.instances.get(instance).cloned().unwrap_or_default()
    }

    /// Takes the records of these instances, and the serial, from another model.
    pub(crate) fn merge(&mut self, changes: Instances, serial: u32) {
        for (instance, records) in changes {
            if records.is_empty() {
                self.instances.remove(&instance);
            } else {
                self.instances.insert(instance, records);
            }
        }
        self.serial = serial;
    }

    /// Replaces an instance's records; an empty list removes the instance. `None` if nothing changed.
    pub fn set(&mut self, instance: &Arc<str>, records: Vec<Record>) -> Option<Update> {
        let old = if records.is_empty() {
            self.instances.remove(instance)?
        } else {
            let known = self.instances.get(instance);
            if known.is_some_and(|known| **known == *records) {
                return None;
            }
            let old = self.instances.insert(Arc::clone(instance), records.into());
            old.unwrap_or_default()
        };
        self.serial = serial::next(self.serial);
        Some(Update {
            instance: Arc::clone(instance),
            old,
        })
    }

    /// Applies a change to the zones in memory.
    pub fn carry(&self, update: &Update, zones: &mut Zones) {
        let Update { instance, old } = update;
        let new = self
            .instances
            .get(instance)
            .map(AsRef::as_ref)
            .unwrap_or_default();
        let ttl = self.header.ttl;
        if let Some(zone) = self.origin().and_then(|origin| zones.get_mut(&origin)) {
            zone.replace(instance, old, new, ttl);
            zone.set_serial(self.serial);
        }
        for reverse in &self.header.reverse {
            if let Some(zone) = reverse.origin().and_then(|origin| zones.get_mut(&origin)) {
                let gone = pointers(reverse, old).map(|(owner, _)| text_key(&owner));
                zone.forget(instance, gone);
                for (owner, record) in pointers(reverse, new) {
                    if let Some(target) = self.target(record) {
                        let data = Data::Other(Box::new(RData::PTR(PTR(target))));
                        zone.add_of(instance, text_key(&owner), ttl, data);
                    }
                }
                zone.set_serial(self.serial);
            }
        }
    }

    /// The zones with all present records.
    pub fn zones(&self) -> Vec<Zone> {
        let mut all = Zones::default();
        let origins: Vec<Name> = self.origins().collect();
        for origin in &origins {
            if let Some(zone) = self.empty_zone(origin) {
                all.put(zone);
            }
        }
        for instance in self.instances.keys() {
            let update = Update {
                instance: Arc::clone(instance),
                old: Arc::default(),
            };
            self.carry(&update, &mut all);
        }
        origins.iter().filter_map(|origin| all.remove(origin)).collect()
    }

    /// Names of the zones, the zone of instances first.
    pub fn origins(&self) -> impl Iterator<Item = Name> {
        let reverse = self.header.reverse.iter().filter_map(Reverse::origin);
        self.origin().into_iter().chain(reverse)
    }

    fn origin(&self) -> Option<Name> {
        Name::from_ascii(format!("{}.", self.header.zone)).ok()
    }

    fn empty_zone(&self, origin: &Name) -> Option<Zone> {
        let Header {
            zone,
            name_servers,
            ttl,
            reverse: _,
        } = &self.header;
        let server = Name::from_ascii(format!("{}.{zone}.", names::NAME_SERVER)).ok()?;
        let mailbox = Name::from_ascii(format!("{}.{zone}.", names::MAILBOX)).ok()?;
        let seconds = |seconds: u32| i32::try_from(seconds).unwrap_or(i32::MAX);
        let soa = SOA::new(
            server.clone(),
            mailbox,
            self.serial,
            seconds(REFRESH),
            seconds(RETRY),
            seconds(EXPIRE),
            *ttl,
        );
        let mut made = Zone::new(origin.clone(), soa, *ttl);
        if !name_servers.is_empty() {
            made.add(origin, *ttl, Data::Other(Box::new(RData::NS(NS(server.clone())))));
            for address in name_servers {
                made.add(&server, *ttl, (*address).into());
            }
        }
        Some(made)
    }

    /// The target of a PTR record.
    fn target(&self, record: &Record) -> Option<Name> {
        Name::from_ascii(format!("{}.{}.", record.owner, self.header.zone)).ok()
    }

    /// The zone file of instances, to the byte.
    pub fn render(&self) -> String {
        let zone = &self.header.zone;
        let mut text = self.head(zone, self.serial);
        for address in &self.header.name_servers {
            let kind = kind(*address);
            text.push_str(&format!("{} IN {kind} {address}\n", names::NAME_SERVER));
        }
        for record in self.instances.values().flat_map(|records| records.iter()) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{record}");
        }
        text
    }

    /// The zone file of a reverse zone.
    pub fn render_reverse(&self, reverse: &Reverse) -> String {
        let mut text = self.head(&reverse.origin, self.serial);
        for records in self.instances.values() {
            for (owner, record) in pointers(reverse, records) {
                let owner = if owner.is_empty() { "@" } else { &owner };
                let target = &record.owner;
                let _ = writeln!(text, "{owner} IN PTR {target}.{}.", self.header.zone);
            }
        }
        text
    }

    /// The first lines of a zone file. Two of them have a trailing space, which users' tools expect.
    fn head(&self, origin: &str, serial: u32) -> String {
        let Header {
            zone,
            name_servers,
            ttl,
            reverse: _,
        } = &self.header;
        let (server, mailbox) = (names::NAME_SERVER, names::MAILBOX);
        let mut head = format!(
            "$ORIGIN {origin}. \n$TTL {ttl} \n@ IN SOA {server}.{zone}. {mailbox}.{zone}. ({serial} {REFRESH} {RETRY} \
             {EXPIRE} {ttl})\n"
        );
        if !name_servers.is_empty() {
            head.push_str(&format!("@ IN NS {server}.{zone}.\n"));
        }
        head
    }
}

/// Whether a text begins like the zone file of instances in this zone.
pub(crate) fn is_file_of(zone: &str, text: &str) -> bool {
    let (server, mailbox) = (names::NAME_SERVER, names::MAILBOX);
    let expected = [
        format!("$ORIGIN {zone}. "),
        "$TTL ".to_owned(),
        format!("@ IN SOA {server}.{zone}. {mailbox}.{zone}. ("),
    ];
    let mut lines = text.lines();
    let is_head = expected
        .iter()
        .all(|start| lines.next().is_some_and(|line| line.starts_with(start)));
    is_head && zone.split('.').next() == Some(names::ZONE)
}

/// The PTR records of an instance's interfaces in a zone.
fn pointers<'a>(
    reverse: &'a Reverse,
    records: &'a [Record],
) -> impl Iterator<Item = (String, &'a Record)> + 'a {
    let interfaces = records.iter().filter(|record| !record.is_default);
    interfaces.filter_map(|record| Some((reverse.owner(record.address)?, record)))
}

fn kind(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "A",
        IpAddr::V6(_) => "AAAA",
    }
}

#[cfg(test)]
mod tests;
