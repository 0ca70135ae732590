//! Virtual machines with claims, and the time until new ones have claims.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use review_bench::api::each;
use review_bench::http::{Connection, Server};
use serde_json::Value;

use crate::objects::{self, Network};

/// Timeout of the claim of a new instance.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Order of the creation of instances.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Order {
    /// Sequentially: each after the previous one has its claim.
    InTurn,
    /// All of them, as fast as the API server accepts them.
    Together,
}

impl Order {
    pub(crate) const ALL: [Self; 2] = [Self::InTurn, Self::Together];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InTurn => "one by one",
            Self::Together => "all at once",
        }
    }
}

/// Writes running virtual machines with their instances and claims.
pub(crate) fn populate(server: &Server, machines: u32) -> anyhow::Result<()> {
    each(server, 0..usize::try_from(machines)?, |connection, number| {
        let number = u32::try_from(number)?;
        let network = Network::of(number);
        let name = network.machine(number / 2);
        let uid = create_machine(connection, network, &name)?;
        connection.write(
            "POST",
            &objects::instances(),
            &objects::instance(network, &name, &uid),
        )?;
        connection.write("POST", &objects::claims(), &objects::claim(network, &name, &uid))?;
        if network == Network::Pool {
            let status = format!("{}/{}/status", objects::claims(), objects::claim_name(&name));
            connection.write("PATCH", &status, &objects::addresses(number / 2))?;
        }
        Ok(())
    })
}

/// Creates a stopped virtual machine, and returns its UID.
fn create_machine(connection: &mut Connection, network: Network, name: &str) -> anyhow::Result<String> {
    let machine = objects::machine(network, name);
    let written = connection.write("POST", &objects::machines(), &machine)?;
    let machine: Value = serde_json::from_slice(&written.body).context("the answer is not JSON")?;
    let uid = machine.pointer("/metadata/uid").and_then(Value::as_str);
    Ok(uid.context("a virtual machine has no UID")?.to_owned())
}

/// Starts the virtual machines with these numbers, and returns their sorted waiting times. The time starts before the
/// request that creates the instance, and ends when a watch reports the claim, or on a network with a pool, its
/// addresses.
pub(crate) fn measure(
    server: &Server,
    network: Network,
    order: Order,
    numbers: Range<u32>,
) -> anyhow::Result<Vec<Duration>> {
    let names: Vec<_> = numbers.map(|number| network.machine(number)).collect();
    let mut connection = server.connect()?;
    let mut uids = Vec::new();
    for name in &names {
        uids.push(create_machine(&mut connection, network, name)?);
    }
    let create = |connection: &mut Connection, number: usize| {
        let instance = objects::instance(network, &names[number], &uids[number]);
        connection.write("POST", &objects::instances(), &instance)
    };
    let version = version(&mut connection)?;
    let (seen, claims) = mpsc::channel();
    let mut waits = std::thread::scope(|scope| {
        let (version, count) = (&version, names.len());
        let watch = scope.spawn(move || watch(server, network, version, count, seen));
        let mut waits = Vec::new();
        match order {
            Order::InTurn => {
                for number in 0..names.len() {
                    let asked = Instant::now();
                    create(&mut connection, number)?;
                    let (_, at) = next(&claims)?;
                    waits.push(at.saturating_duration_since(asked));
                }
            }
            Order::Together => {
                let asked = Mutex::new(HashMap::new());
                each(server, 0..names.len(), |connection, number| {
                    let now = Instant::now();
                    create(connection, number)?;
                    if let Ok(mut asked) = asked.lock() {
                        asked.insert(objects::claim_name(&names[number]), now);
                    }
                    Ok(())
                })?;
                let asked = asked.into_inner().ok().context("a writer panicked")?;
                for _ in &names {
                    let (claim, at) = next(&claims)?;
                    let asked = asked.get(&claim).context("an unexpected claim")?;
                    waits.push(at.saturating_duration_since(*asked));
                }
            }
        }
        match watch.join() {
            Ok(ended) => ended.map(|()| waits),
            Err(_) => bail!("the watch panicked"),
        }
    })?;
    waits.sort_unstable();
    Ok(waits)
}

fn next(claims: &Receiver<(String, Instant)>) -> anyhow::Result<(String, Instant)> {
    claims.recv_timeout(TIMEOUT).context("an instance gets no claim")
}

/// Returns the current resource version of all claims.
fn version(connection: &mut Connection) -> anyhow::Result<String> {
    let path = format!("{}?limit=1", objects::claims());
    let list = connection.ask("GET", &path, "application/json", b"")?;
    let list: Value = serde_json::from_slice(&list.body).context("the answer is not JSON")?;
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    Ok(version.context("a list has no version")?.to_owned())
}

/// Reports claims without duplicates, up to a number.
fn watch(
    server: &Server,
    network: Network,
    version: &str,
    count: usize,
    seen: Sender<(String, Instant)>,
) -> anyhow::Result<()> {
    let path = format!("{}?watch=true&resourceVersion={version}", objects::claims());
    let mut left = count;
    server.connect()?.follow(&path, move |line| {
        let at = Instant::now();
        let event: Value = serde_json::from_slice(line).context("an event is not JSON")?;
        let is_complete = match network {
            Network::Plugin => event["type"] == "ADDED",
            Network::Pool => event.pointer("/object/status/ips").is_some(),
        };
        let name = event.pointer("/object/metadata/name").and_then(Value::as_str);
        if let (true, Some(name)) = (is_complete, name) {
            left -= 1;
            // After another failure, the receiver is gone.
            let _ = seen.send((name.to_owned(), at));
        }
        Ok(left > 0)
    })
}
