//! `host-local`: an IPAM plugin that leases addresses from ranges, separately on each node (cni-plugins §6).
//!
//! ```text
//! config ──> ranges ──> search: the next free address         pure
//!               │
//!               └──> store: leases, one file each, locked     upstream's format
//!                       └──> index: addresses by owner        ours, can be rebuilt
//! ```
//!
//! ADD and DEL only read the lease files of their own attachment, independent of the total number: the index and the
//! file names provide all data about other leases.

mod config;
mod index;
mod owner;
mod range;
mod resolv_conf;
mod search;
mod store;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use cni::{
    Error,
    error::code,
    note::Level,
    plugin::{Call, Plugin},
    result::{CniResult, Dns, IpConfig},
};
use ipnet::IpNet;

pub(crate) use owner::Owner;

use self::{config::Config, range::RangeSet, search::Search, store::Store};
use crate::{
    names::{HOST_LOCAL, STATE},
    record::gc::valid_attachments,
};

/// Number of attempts before all lease names are read. The first address is usually free, and reading the names costs
/// as much as several attempts.
const TRIES: usize = 8;

/// The keys of `ipam`.
pub(crate) fn ipam_keys() -> &'static [&'static str] {
    config::ipam_keys()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        HOST_LOCAL
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call)?;
        let dns = match &config.resolv_conf {
            Some(path) => resolv_conf::read(path)
                .map_err(|error| Error::internal(format!("failed to read {}: {error}", path.display())))?,
            None => Dns::default(),
        };
        let mut store = Store::open(&config.data_dir, call.config.name(), &index())?;
        let outcome = allocate(call, &mut store, &config);
        store.finish();
        Ok(CniResult {
            ips: outcome?,
            routes: config.routes,
            dns,
            interfaces: Vec::new(),
        })
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let Some(mut store) = existing(call, &config::data_dir(call))? else {
            return Ok(());
        };
        let outcome = release(&mut store, &Owner::of(&call.request));
        store.finish();
        outcome
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call)?;
        if let Some(mut store) = existing(call, &config.data_dir)? {
            let found = find(&mut store, &Owner::of(&call.request));
            store.finish();
            if found?.is_some() {
                return Ok(());
            }
        }
        Err(Error::internal(format!(
            "host-local: Failed to find address added by container {}",
            call.request.container_id
        )))
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        // Does not check for free addresses: a node without a ready network evicts its pods.
        let config = Config::read(call)?;
        store::probe(&config.data_dir, call.config.name()).map_err(|error| {
            Error::new(
                code::PLUGIN_NOT_AVAILABLE,
                format!(
                    "host-local: cannot keep leases in {}: {error}",
                    config.data_dir.display()
                ),
            )
        })
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = valid_attachments(call)? else {
            return Ok(());
        };
        let Some(mut store) = existing(call, &config::data_dir(call))? else {
            return Ok(());
        };
        let outcome = store.collect(&valid);
        store.finish();
        outcome
    }
}

/// The directory of the indexes.
fn index() -> PathBuf {
    Path::new(STATE).join(HOST_LOCAL)
}

fn existing(call: &Call, data_dir: &Path) -> Result<Option<Store>, Error> {
    Store::open_existing(data_dir, call.config.name(), &index())
}

/// Leases one address of each set, or none on failure.
fn allocate(call: &Call, store: &mut Store, config: &Config) -> Result<Vec<IpConfig>, Error> {
    let owner = Owner::of(&call.request);
    let mut leased = Vec::new();
    let outcome = allocate_all(store, config, &owner, &mut leased);
    if outcome.is_err() {
        // ADD reports its own error.
        if let Err(error) = store.release(&leased, &owner) {
            call.note(Level::Error, error);
        }
        return outcome;
    }
    for (index, ip) in leased.iter().enumerate() {
        // Best effort: only affects the start of the next search.
        if let Err(error) = store.set_last_reserved(index, *ip) {
            call.note(Level::Warn, error);
        }
    }
    outcome
}

/// Leases one address of each set. Adds each to `leased`, also before an error.
fn allocate_all(
    store: &mut Store,
    config: &Config,
    owner: &Owner,
    leased: &mut Vec<IpAddr>,
) -> Result<Vec<IpConfig>, Error> {
    let mut requested = config.requested.clone();
    let mut assigned = Vec::new();
    for (index, set) in config.sets.iter().enumerate() {
        let wanted = requested
            .iter()
            .position(|ip| set.range_of(*ip).is_some())
            .map(|position| requested.remove(position));
        let ip = match wanted {
            Some(ip) => lease_requested(store, set, owner, ip).map(|()| ip),
            None => lease_next(store, set, owner, index),
        }
        .map_err(|error| error.prefixed(&format!("failed to allocate for range {index}")))?;
        leased.push(ip);
        assigned.extend(described(set, ip));
    }
    if requested.is_empty() {
        return Ok(assigned);
    }
    let left: Vec<String> = requested.iter().map(ToString::to_string).collect();
    Err(Error::internal(format!(
        "failed to allocate all requested IPs: {}",
        left.join(" ")
    )))
}

fn lease_requested(store: &mut Store, set: &RangeSet, owner: &Owner, ip: IpAddr) -> Result<(), Error> {
    if set.is_gateway(ip) {
        return Err(Error::internal(format!("requested ip {ip} is subnet's gateway")));
    }
    if !set.is_reserved(ip) && store.lease(ip, owner)? {
        return Ok(());
    }
    Err(Error::internal(format!(
        "requested IP address {ip} is not available in range set {set}"
    )))
}

/// Leases the next free address of a set.
fn lease_next(store: &mut Store, set: &RangeSet, owner: &Owner, index: usize) -> Result<IpAddr, Error> {
    for owner in [owner, &owner.without_interface()] {
        let leases = store.leases_of(owner)?;
        if let Some(ip) = leases.into_iter().find(|ip| set.range_of(*ip).is_some()) {
            return Err(Error::internal(format!(
                "{ip} has been allocated to {}, duplicate allocation is not allowed",
                owner.container_id()
            )));
        }
    }
    let mut search = Search::new(set, store.last_reserved(index));
    let mut tries = 0;
    while let Some(ip) = search.next() {
        if store.lease(ip, owner)? {
            return Ok(ip);
        }
        search.exclude([ip]);
        tries += 1;
        if tries == TRIES {
            search.exclude(store.taken()?);
        }
    }
    Err(Error::internal(format!(
        "no IP addresses available in range set: {set}"
    )))
}

/// An address of a set with its prefix length and gateway.
fn described(set: &RangeSet, ip: IpAddr) -> Option<IpConfig> {
    let range = set.range_of(ip)?;
    Some(IpConfig {
        address: IpNet::new(ip, range.subnet().prefix_len()).ok()?,
        gateway: Some(range.gateway()),
        interface: None,
    })
}

/// The leases of an attachment, else those of its container without an interface. If the index has none, reads all
/// leases.
fn find(store: &mut Store, owner: &Owner) -> Result<Option<(Owner, Vec<IpAddr>)>, Error> {
    let owners = [owner.clone(), owner.without_interface()];
    for certain in [false, true] {
        if certain {
            store.verify(&owners)?;
        }
        for owner in &owners {
            let leases = store.leases_of(owner)?;
            if !leases.is_empty() {
                return Ok(Some((owner.clone(), leases)));
            }
        }
    }
    Ok(None)
}

fn release(store: &mut Store, owner: &Owner) -> Result<(), Error> {
    match find(store, owner)? {
        Some((owner, leases)) => store.release(&leases, &owner),
        None => Ok(()),
    }
}
