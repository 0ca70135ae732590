//! `sbr`: routes what a container sends by the address that it sends from (cni-plugins §15).
//!
//! ```text
//! from 10.1.2.3 ──> table 100: the interface's routes of that address, its gateway
//! from 10.7.0.2 ──> table 101: ...
//! main table: nothing of the interface, or its subnets alone (addSourceHints)
//! ```
//!
//! A chained plugin: the interface is another one's, as are its addresses and routes. All of it is in the container and
//! goes with it.

mod config;
mod plan;

use std::{net::IpAddr, path::PathBuf, time::Duration};

use cni::{
    Error,
    note::Level,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::{
    address::Family,
    link::Link,
    netns::NetNs,
    route::Socket,
    routes::{MAIN_TABLE, Route},
    rules::Rule,
};
use serde::{Deserialize, Serialize};

use self::{
    config::Config,
    plan::{Host, Plan},
};
use crate::{
    chained, check,
    lock::{self, PATIENCE},
    messages::{Explain, SBR_NOT_CHAINED},
    names::SBR,
    pod::Pod,
    record::{AttachmentId, Records, Taken, gc},
};

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Whether an ADD would take the config.
pub(crate) fn examine(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sbr;

/// A step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// Sources are routed by tables.
    Rules {
        /// Path of the container's namespace.
        netns: PathBuf,
        /// Its number, which no other has.
        cookie: Option<u64>,
        /// The sources, each with its table.
        tables: Vec<(IpAddr, u32)>,
    },
}

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        SBR
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, SBR_NOT_CHAINED)?;
        // A result that the config's version cannot express fails before anything is changed.
        result.to_json(call.version)?;
        let ifname = &call.request.ifname;
        let ips: Vec<_> = chained::addresses(&result, ifname).collect();
        if ips.is_empty() {
            return Err(Error::internal(format!(
                "No IP addresses supplied on interface: {ifname}"
            )));
        }
        let mut pod = Pod::open(call)?;
        lock(&pod.ns, &pod.path, PATIENCE)?;
        let (records, key) = (Records::of(SBR, call), AttachmentId::of(call));
        let mut journal = chained::begin(&records, &key, |taken| {
            let socket = &mut pod.socket;
            let link = socket
                .find_link(ifname)
                .explain(|| format!("failed to lookup \"{ifname}\""))?;
            take_back(socket, link.as_ref(), &taken.steps)
        })?;
        let link = check::container_link(&mut pod.socket, ifname)?;
        let plan = plan::plan(&config, &ips, &observe(&mut pod.socket, &link)?);
        journal.note(&[Step::Rules {
            netns: PathBuf::from(&pod.path),
            cookie: pod.ns.cookie(),
            tables: plan.tables.clone(),
        }])?;
        let mut done = Vec::new();
        if let Err(error) = carry_out(&mut pod.socket, &plan, &mut done) {
            // The error of ADD stays the one that counts.
            roll_back(call, &mut pod.socket, &done);
            let _ = chained::forget(call, &records, &key);
            return Err(error);
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(SBR, call), AttachmentId::of(call));
        let taken: Option<Taken<Step>> = records.taken(&key)?;
        // Rules and routes are in the namespace, and gone with it.
        if let Some(mut pod) = Pod::find_remaining(call)? {
            lock(&pod.ns, &pod.path, PATIENCE)?;
            let ifname = &call.request.ifname;
            let socket = &mut pod.socket;
            let link = socket
                .find_link(ifname)
                .explain(|| format!("failed to lookup \"{ifname}\""))?;
            let steps = taken.map(|taken| taken.steps).unwrap_or_default();
            take_back(socket, link.as_ref(), &steps)?;
            if let Some(link) = link {
                delete_rules_of(socket, &link)?;
            }
        }
        chained::forget(call, &records, &key).map(drop)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, SBR_NOT_CHAINED)?;
        let ifname = &call.request.ifname;
        let mut pod = Pod::open(call)?;
        let link = check::container_link(&mut pod.socket, ifname)?;
        let host = observe(&mut pod.socket, &link)?;
        let ips: Vec<_> = chained::addresses(&result, ifname).collect();
        match plan::missing(&config, &ips, &host, link.index) {
            Some(what) => Err(Error::internal(what)),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = gc::valid(call)? else {
            return Ok(());
        };
        let records = Records::of(SBR, call);
        records.collect(call, &valid, collect).map(drop)
    }
}

/// Locks the namespace, so that calls for one container which choose tables take turns, also with established plugins.
fn lock(namespace: &NetNs, path: &str, patience: Duration) -> Result<(), Error> {
    lock::wait_for(namespace, patience).map_err(|error| {
        let text = format!("failed to lock netns \"{path}\": {error}");
        Error::new(lock::code(&error), text)
    })
}

/// The rules, the tables that are in use, and the routes of the interface.
fn observe(socket: &mut Socket, link: &Link) -> Result<Host, Error> {
    let mut host = Host::default();
    for family in [Family::V4, Family::V6] {
        host.rules.extend(
            socket
                .rules(family)
                .explain(|| "failed to list all rules".to_owned())?,
        );
        host.routes.extend(
            socket
                .routes(family)
                .explain(|| "failed to list all routes".to_owned())?,
        );
    }
    host.link = link.index;
    Ok(host)
}

/// A change that was made.
enum Done {
    Rule(IpAddr, u32),
    Added(Route),
    Deleted(Route),
}

fn carry_out(socket: &mut Socket, plan: &Plan, done: &mut Vec<Done>) -> Result<(), Error> {
    for (source, table) in &plan.tables {
        let rule = Rule::from_address(*source, *table);
        match socket.add_rule(Family::of(source), &rule) {
            Err(error) if error.is_exists() => {}
            added => {
                added.explain(|| "failed to add rule".to_owned())?;
                done.push(Done::Rule(*source, *table));
            }
        }
    }
    for route in &plan.add {
        match socket.add_route(route) {
            Err(error) if error.is_exists() => {}
            added => {
                added.explain(|| format!("failed to add route {route}"))?;
                done.push(Done::Added(*route));
            }
        }
    }
    for route in &plan.delete {
        match socket.delete_route(route) {
            Err(error) if error.is_not_found() => {}
            deleted => {
                deleted.explain(|| format!("failed to delete route {route}"))?;
                done.push(Done::Deleted(*route));
            }
        }
    }
    for route in &plan.hint {
        socket
            .replace_route(route)
            .explain(|| format!("failed to give route {route} a source"))?;
    }
    Ok(())
}

/// Takes changes back, the last one first.
fn roll_back(call: &Call, socket: &mut Socket, done: &[Done]) {
    for change in done.iter().rev() {
        let undone = match change {
            Done::Rule(source, table) => {
                socket.delete_rule(Family::of(source), &Rule::from_address(*source, *table))
            }
            Done::Added(route) => socket.delete_route(route),
            Done::Deleted(route) => socket.add_route(route),
        };
        if let Err(error) = undone
            && !error.is_not_found()
            && !error.is_exists()
        {
            call.note(Level::Error, error);
        }
    }
}

/// Takes recorded steps back. Routes of the interface go back to the main table, except for default routes: those were
/// perhaps never there, and the container has another one by now.
fn take_back(socket: &mut Socket, link: Option<&Link>, steps: &[Step]) -> Result<(), Error> {
    for Step::Rules { tables, .. } in steps {
        for (source, table) in tables {
            delete_rule(socket, *source, *table)?;
        }
        let Some(link) = link else { continue };
        for family in [Family::V4, Family::V6] {
            let routes = socket
                .routes(family)
                .explain(|| "failed to list all routes".to_owned())?;
            let of_tables = |route: &Route| {
                route.link == Some(link.index) && tables.iter().any(|(_, table)| route.table == Some(*table))
            };
            let (near, far): (Vec<_>, Vec<_>) = routes
                .into_iter()
                .filter(of_tables)
                .partition(|route| route.gateway.is_none());
            for route in near
                .iter()
                .chain(&far)
                .filter(|route| route.dst.prefix_len() != 0)
            {
                let back = Route {
                    table: Some(MAIN_TABLE),
                    ..*route
                };
                match socket.add_route(&back) {
                    Err(error) if error.is_exists() => {}
                    added => added.explain(|| format!("failed to add route {back}"))?,
                }
            }
            for route in far.iter().chain(&near) {
                match socket.delete_route(route) {
                    Err(error) if error.is_not_found() => {}
                    deleted => deleted.explain(|| format!("failed to delete route {route}"))?,
                }
            }
        }
    }
    Ok(())
}

fn delete_rule(socket: &mut Socket, source: IpAddr, table: u32) -> Result<(), Error> {
    match socket.delete_rule(Family::of(&source), &Rule::from_address(source, table)) {
        Err(error) if error.is_not_found() => Ok(()),
        deleted => deleted.explain(|| "failed to delete rule".to_owned()),
    }
}

/// Removes rules about the interface's addresses, whoever made them.
fn delete_rules_of(socket: &mut Socket, link: &Link) -> Result<(), Error> {
    let addresses = socket
        .addresses(link, None)
        .explain(|| format!("failed to list addresses of {}", link.name))?;
    for family in [Family::V4, Family::V6] {
        let rules = socket
            .rules(family)
            .explain(|| "failed to list all rules".to_owned())?;
        for rule in rules {
            let Some(source) = rule.source else { continue };
            if addresses
                .iter()
                .any(|address| address.net.addr() == source.addr())
            {
                match socket.delete_rule(family, &rule) {
                    Err(error) if error.is_not_found() => {}
                    deleted => deleted.explain(|| "failed to delete rule".to_owned())?,
                }
            }
        }
    }
    Ok(())
}

/// Takes back what an attachment without an end left in a namespace that still is.
fn collect(key: &AttachmentId, taken: &Taken<Step>) -> Result<(), Error> {
    for step in &taken.steps {
        let Step::Rules { netns, cookie, .. } = step;
        let Ok(ns) = NetNs::open(netns) else { continue };
        if cookie.is_none() || ns.cookie() != *cookie {
            continue;
        }
        let mut socket = ns
            .run(Socket::open)
            .and_then(|opened| opened)
            .map_err(cni::error::internal)?;
        let link = socket.find_link(&key.ifname).map_err(cni::error::internal)?;
        take_back(&mut socket, link.as_ref(), std::slice::from_ref(step))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cni::error::code;

    use super::*;

    #[test]
    fn lock_of_a_namespace_that_is_held_fails_with_try_again_later() {
        // cni-plugins#72
        let path = "/proc/thread-self/ns/net";
        let open = || NetNs::open(Path::new(path)).unwrap();
        let (held, wanted) = (open(), open());
        lock(&held, path, Duration::ZERO).unwrap();
        let error = lock(&wanted, path, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN_LATER);
        let begin = format!("failed to lock netns \"{path}\": another process holds the lock");
        assert!(error.msg.starts_with(&begin), "{error:?}");
        drop(held);
        lock(&wanted, path, PATIENCE).unwrap();
    }
}
