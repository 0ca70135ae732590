//! `sbr`: source-based routing of a pod's packets (cni-plugins §15).
//!
//! ```text
//! from 10.1.2.3 ──> table 100: the interface's routes of that address, its gateway
//! from 10.7.0.2 ──> table 101: ...
//! main table: no routes of the interface, or only its subnets (addSourceHints)
//! ```
//!
//! A chained plugin: another plugin creates the interface with its addresses and routes. All changes are in the pod's
//! namespace and end with it.

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
    lock::{self, TIMEOUT},
    messages::{Explain, SBR_NOT_CHAINED},
    names::SBR,
    pod::Pod,
    record::{AttachmentId, RecordedSteps, Records, gc},
};

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sbr;

/// A recorded step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// Added rules that route sources by tables.
    Rules {
        /// Path of the pod's namespace.
        netns: PathBuf,
        /// The namespace's unique number.
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
        // Fails before any change if the config's version cannot represent the result.
        result.to_json(call.version)?;
        let ifname = &call.request.ifname;
        let ips: Vec<_> = chained::addresses(&result, ifname).collect();
        if ips.is_empty() {
            return Err(Error::internal(format!(
                "No IP addresses supplied on interface: {ifname}"
            )));
        }
        let mut pod = Pod::open(call)?;
        lock(&pod.ns, &pod.path, TIMEOUT)?;
        let (records, key) = (Records::of(SBR, call), AttachmentId::of(call));
        let mut journal = chained::begin(&records, &key, |recorded| {
            let socket = &mut pod.socket;
            let link = socket
                .find_link(ifname)
                .explain(|| format!("failed to lookup \"{ifname}\""))?;
            undo_steps(socket, link.as_ref(), &recorded.steps)
        })?;
        let link = check::container_link(&mut pod.socket, ifname)?;
        let plan = plan::plan(&config, &ips, &observe(&mut pod.socket, &link)?)?;
        journal.note(&[Step::Rules {
            netns: PathBuf::from(&pod.path),
            cookie: pod.ns.cookie(),
            tables: plan.tables.clone(),
        }])?;
        let mut done = Vec::new();
        if let Err(error) = apply(&mut pod.socket, &plan, &mut done) {
            // ADD reports its own error.
            roll_back(call, &mut pod.socket, &done);
            let _ = chained::forget(call, &records, &key);
            return Err(error);
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(SBR, call), AttachmentId::of(call));
        let recorded: Option<RecordedSteps<Step>> = records.read(&key)?;
        // Rules and routes end with the namespace.
        if let Some(mut pod) = Pod::find_remaining(call)? {
            lock(&pod.ns, &pod.path, TIMEOUT)?;
            let ifname = &call.request.ifname;
            let socket = &mut pod.socket;
            let link = socket
                .find_link(ifname)
                .explain(|| format!("failed to lookup \"{ifname}\""))?;
            let steps = recorded.map(|recorded| recorded.steps).unwrap_or_default();
            undo_steps(socket, link.as_ref(), &steps)?;
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

/// Locks the namespace to serialize the choice of tables, also with upstream's plugin.
fn lock(namespace: &NetNs, path: &str, timeout: Duration) -> Result<(), Error> {
    lock::wait_for(namespace, timeout).map_err(|error| {
        let text = format!("failed to lock netns \"{path}\": {error}");
        Error::new(lock::code(&error), text)
    })
}

/// Reads the rules, the used tables, and the interface's routes.
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

/// A completed change.
enum Done {
    Rule(IpAddr, u32),
    Added(Route),
    Deleted(Route),
}

fn apply(socket: &mut Socket, plan: &Plan, done: &mut Vec<Done>) -> Result<(), Error> {
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

/// Undoes changes in reverse order.
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

/// Undoes recorded steps. Returns the interface's routes to the main table, except default routes: the main table may
/// never have had them, or has another one now.
fn undo_steps(socket: &mut Socket, link: Option<&Link>, steps: &[Step]) -> Result<(), Error> {
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

/// Removes all rules for the interface's addresses.
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

/// GC: undoes an attachment in a namespace that still exists.
fn collect(key: &AttachmentId, recorded: &RecordedSteps<Step>) -> Result<(), Error> {
    for step in &recorded.steps {
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
        undo_steps(&mut socket, link.as_ref(), std::slice::from_ref(step))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cni::error::code;

    use super::*;

    #[test]
    fn held_namespace_lock_returns_try_again_later() {
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
        lock(&wanted, path, TIMEOUT).unwrap();
    }
}
