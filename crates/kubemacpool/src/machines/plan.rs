//! The plan for the interfaces of a virtual machine (kubemacpool §10.3, §10.4).

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use cni::mac::{InvalidMac, Mac};
use serde_json::Value;
use serde_json::value::RawValue;
use webhook::admission::Change;

use super::wire::{Interface, Spec, Supported, addresses};
use crate::decide::{self, Context};
use crate::messages;
use crate::names;
use crate::pool::{Claimant, Draft, Holding, Pool, RangeIsFull};

/// The plan for the interfaces, which are identified by their index.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Plan {
    /// Known addresses of the object; empty if they are the same as before.
    held: Vec<Held>,
    /// Earlier addresses of interfaces that the request omits.
    restored: Vec<(usize, String)>,
    /// Interfaces that get an address, by name.
    unassigned: Vec<(usize, Arc<str>)>,
}

#[derive(Debug, Eq, PartialEq)]
struct Held {
    holding: Holding,
    /// Whether the request sets it newly.
    chosen: bool,
}

/// The interfaces cannot get addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("invalid MAC address format for interface {interface}: {text}: {cause}")]
    Invalid {
        interface: String,
        text: String,
        #[source]
        cause: InvalidMac,
    },
    #[error("duplicate MAC address {mac} found on interfaces: {first} and {second}")]
    Twice { mac: Mac, first: String, second: String },
    #[error("Failed to mutate virtual machine: every interface must have a unique name")]
    Names,
    #[error(transparent)]
    Full(#[from] RangeIsFull),
    #[error("{}", messages::refused_duplicate(.0))]
    Duplicate(String),
}

/// An interface with its address, as far as it is known.
struct Completed<'a> {
    index: usize,
    interface: &'a Interface,
    mac: Option<&'a str>,
    /// Whether the address is in the request.
    given: bool,
}

impl Plan {
    /// Takes addresses into the draft; returns the patch of the interfaces and the warnings.
    pub(super) fn apply(
        self,
        pool: &mut Pool,
        context: &Context<'_>,
        claimant: &Claimant,
        draft: &mut Draft,
    ) -> Result<(Vec<Change>, Vec<String>), Refusal> {
        let mut warnings = Vec::new();
        // Given addresses come first, so that none of them is allocated to another interface.
        for Held { holding, chosen } in self.held {
            let used = Some(holding.mac)
                .filter(|_| chosen)
                .and_then(|mac| decide::used_by_others(pool, context, claimant, mac));
            if let Some(used) = used {
                if context.reject_duplicates {
                    return Err(Refusal::Duplicate(used));
                }
                warnings.push(used);
            }
            draft.register(holding.mac, &holding.key);
        }
        let mut addresses = self.restored;
        for (index, key) in self.unassigned {
            addresses.push((index, pool.allocate(draft, &key)?.to_string()));
        }
        addresses.sort_unstable_by_key(|(index, _)| *index);
        let patch = addresses.into_iter().map(|(index, mac)| Change::Add {
            path: format!("{}/{index}/macAddress", names::INTERFACES_PATH),
            value: Value::String(mac),
        });
        Ok((patch.collect(), warnings))
    }
}

/// The relevant parts of a virtual machine with a template.
#[derive(Default)]
pub(super) struct State<'a> {
    /// `None` if unknown.
    spec: Option<Spec<&'a RawValue>>,
    interfaces: Vec<Option<Interface>>,
}

impl<'a> State<'a> {
    /// `None` if there is no template.
    pub(super) fn read(spec: Option<&'a RawValue>) -> Result<Option<Self>, serde_json::Error> {
        let Some(text) = spec else { return Ok(None) };
        let spec: Spec<&RawValue> = serde_json::from_str(text.get())?;
        if !spec.has_template() {
            return Ok(None);
        }
        let interfaces = spec
            .interfaces()
            .map_or(Ok(Vec::new()), |list| serde_json::from_str(list.get()))?;
        Ok(Some(Self {
            spec: Some(spec),
            interfaces,
        }))
    }

    fn supported(&self) -> Supported<'_> {
        self.spec.as_ref().map(Spec::supported).unwrap_or_default()
    }

    /// The list of interfaces as written.
    fn list(&self) -> &str {
        let list = self.spec.as_ref().and_then(|spec| spec.interfaces().copied());
        list.map_or("[]", RawValue::get)
    }

    /// The plan for a new virtual machine.
    pub(super) fn create(&self) -> Result<Plan, Refusal> {
        self.update(&State::default())
    }

    /// The plan for a change from `before`.
    pub(super) fn update(&self, before: &State<'_>) -> Result<Plan, Refusal> {
        let supported = self.supported();
        let known = before.by_name();
        let completed = self.completed(&supported, &known);
        let list_differs = self.list() != before.list();
        if list_differs {
            check(&completed)?;
        }
        let mut plan = Plan::default();
        for completed in completed {
            let name = completed.interface.name();
            if !supported.contains(completed.interface) {
                tracing::debug!(interface = name, "{}", messages::UNSUPPORTED_INTERFACE);
                continue;
            }
            let known = known.get(name);
            let Some(text) = completed.mac else {
                if list_differs && known.is_none() {
                    plan.unassigned.push((completed.index, name.into()));
                }
                continue;
            };
            if !completed.given {
                plan.restored.push((completed.index, text.to_owned()));
            }
            // A malformed address existed before the webhook was installed; it is not held.
            let Ok(mac) = Mac::parse(text) else { continue };
            let key = name.into();
            let had = known.and_then(|known| Mac::parse(known.mac()?).ok());
            plan.held.push(Held {
                holding: Holding { mac, key },
                chosen: completed.given && had != Some(mac),
            });
        }
        let (held_before, _) = addresses(&before.supported(), &before.interfaces);
        let held = plan.held.iter().map(|held| &held.holding);
        if plan.unassigned.is_empty() && held.eq(&held_before) {
            plan.held.clear();
        }
        Ok(plan)
    }

    /// The interfaces by name; the first one if several share a name.
    fn by_name(&self) -> HashMap<&str, &Interface> {
        let mut known = HashMap::new();
        for interface in self.interfaces.iter().flatten() {
            known.entry(interface.name()).or_insert(interface);
        }
        known
    }

    /// The interfaces, where supported ones without an address have their earlier one.
    fn completed<'b>(
        &'b self,
        supported: &Supported<'_>,
        known: &HashMap<&str, &'b Interface>,
    ) -> Vec<Completed<'b>> {
        let interfaces = self.interfaces.iter().enumerate();
        interfaces
            .filter_map(|(index, interface)| Some((index, interface.as_ref()?)))
            .map(|(index, interface)| {
                let known = known
                    .get(interface.name())
                    .filter(|_| supported.contains(interface));
                Completed {
                    index,
                    interface,
                    mac: interface.mac().or_else(|| known.and_then(|known| known.mac())),
                    given: interface.mac().is_some(),
                }
            })
            .collect()
    }
}

/// Checks that each given address, supported or not, and each name occurs once. Two interfaces that both keep their
/// addresses do not prevent the change of a third one.
fn check(interfaces: &[Completed<'_>]) -> Result<(), Refusal> {
    let mut given: HashMap<Mac, &Completed<'_>> = HashMap::new();
    for completed in interfaces.iter().filter(|completed| completed.given) {
        let text = completed.mac.unwrap_or_default();
        let mac = Mac::parse(text).map_err(|cause| Refusal::Invalid {
            interface: completed.interface.name().to_owned(),
            text: text.to_owned(),
            cause,
        })?;
        match given.entry(mac) {
            Entry::Vacant(entry) => entry.insert(completed),
            Entry::Occupied(first) => return Err(twice(mac, first.get(), completed)),
        };
    }
    let mut names = HashSet::new();
    if !interfaces
        .iter()
        .all(|completed| names.insert(completed.interface.name()))
    {
        return Err(Refusal::Names);
    }
    for completed in interfaces.iter().filter(|completed| !completed.given) {
        let had = completed.mac.and_then(|text| Mac::parse(text).ok());
        if let Some((mac, other)) = had.and_then(|mac| given.get_key_value(&mac)) {
            return Err(twice(*mac, other, completed));
        }
    }
    Ok(())
}

/// The refusal of two interfaces with one address, in the order of the list.
fn twice(mac: Mac, one: &Completed<'_>, other: &Completed<'_>) -> Refusal {
    let (first, second) = if one.index < other.index {
        (one, other)
    } else {
        (other, one)
    };
    Refusal::Twice {
        mac,
        first: first.interface.name().to_owned(),
        second: second.interface.name().to_owned(),
    }
}
