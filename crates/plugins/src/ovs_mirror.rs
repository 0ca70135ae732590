//! `ovs-mirror-producer` and `ovs-mirror-consumer`: copy a port's packets to another port (cni-plugins §10.8).
//!
//! ```text
//! Mirror m: select_src_port, select_dst_port <── ports of producers
//!           output_port                      <── the port of the consumer
//! ```
//!
//! Both are chained after `ovs` and find its port in the result. The first plugin of a mirror creates it, and the
//! last one deletes it.

mod config;
mod plan;

use cni::{
    Error,
    note::Level,
    plugin::{Call, Plugin},
    result::{CniResult, Interface},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::{
    config::{Config, Role},
    plan::Row,
};
use crate::{
    chained,
    messages::{NO_PREV_RESULT, OVS_NO_PORT},
    names::{
        OVS_MIRROR_CONSUMER, OVS_MIRROR_PRODUCER,
        ovs::{TITLE, column, table},
    },
    ovs::{
        CacheFile,
        database::{Database, is, rows_of, select},
        find_port,
    },
    record::{AttachmentId, RecordedSteps, Records, gc},
};

/// Limit of attempts to change mirrors that concurrent calls change too.
const ATTEMPTS: usize = 20;

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Validates the config of an ADD of this plugin.
pub(crate) fn validate(call: &Call, plugin: &str) -> Result<(), Error> {
    let role = if plugin == OVS_MIRROR_PRODUCER {
        Role::Producer
    } else {
        Role::Consumer
    };
    Config::read(call, role).map(drop)
}

/// One of the two plugins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OvsMirror(Role);

impl OvsMirror {
    pub(crate) const PRODUCER: Self = OvsMirror(Role::Producer);
    pub(crate) const CONSUMER: Self = OvsMirror(Role::Consumer);
}

/// A recorded step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// Added a port to mirrors.
    Mirrors {
        /// ID of the port.
        port: String,
        /// Names of the mirrors.
        names: Vec<String>,
        /// The mirrors' bridge.
        bridge: String,
        /// The database's address.
        socket: String,
    },
}

impl Plugin for OvsMirror {
    fn name(&self) -> &'static str {
        match self.0 {
            Role::Producer => OVS_MIRROR_PRODUCER,
            Role::Consumer => OVS_MIRROR_CONSUMER,
        }
    }

    fn about(&self) -> String {
        format!("CNI {TITLE} plugin {}", env!("CARGO_PKG_VERSION"))
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call, self.0)?.complete()?;
        let result = chained::previous(call, NO_PREV_RESULT)?;
        // Fails before any change if the config's version cannot represent the result.
        result.to_json(call.version)?;
        let mut database = Database::connect(&config.socket)?;
        database.require_bridge(&config.bridge)?;
        remove_empty(&mut database, &config.bridge)?;
        let port = port_of(&mut database, &result.interfaces)?.ok_or_else(|| Error::internal(OVS_NO_PORT))?;
        let (records, key) = (Records::of(self.name(), call), AttachmentId::of(call));
        let mut journal = chained::begin(&records, &key, |recorded| undo_steps(self.0, recorded))?;
        let step = Step::Mirrors {
            port: port.clone(),
            names: config.mirrors.iter().map(|mirror| mirror.name.clone()).collect(),
            bridge: config.bridge.clone(),
            socket: config.socket.clone(),
        };
        journal.note(std::slice::from_ref(&step))?;
        self.write_cache(call, &key);
        if let Err(error) = attach(&mut database, self.0, &config, &port) {
            // ADD reports its own error. A failed undo stays recorded.
            let recorded = RecordedSteps {
                steps: vec![step],
                is_whole: true,
            };
            if undo_steps(self.0, &recorded).is_ok() {
                let _ = self.cache(&key).remove();
                let _ = chained::forget(call, &records, &key);
            }
            return Err(error);
        }
        Ok(result)
    }

    /// An unavailable database does not fail the DEL: the record stays for GC.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(self.name(), call), AttachmentId::of(call));
        let recorded = records.read(&key)?.filter(|recorded| !recorded.steps.is_empty());
        let (is_recorded, removed) = match &recorded {
            Some(recorded) => (true, undo_steps(self.0, recorded)),
            None => (false, self.remove_unrecorded(call, &key)),
        };
        if let Err(error) = removed {
            call.note(Level::Error, error);
            if is_recorded {
                return Ok(());
            }
        }
        self.cache(&key).remove()?;
        chained::forget(call, &records, &key).map(drop)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call, self.0)?.complete()?;
        let result = chained::previous(call, NO_PREV_RESULT)?;
        let mut database = Database::connect(&config.socket)?;
        let port = port_of(&mut database, &result.interfaces)?.ok_or_else(|| Error::internal(OVS_NO_PORT))?;
        match plan::missing(self.0, &config.mirrors, &port, &mirrors(&mut database)?) {
            Some(name) => Err(Error::internal(format!("mirror {name} not present"))),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = gc::valid(call)? else {
            return Ok(());
        };
        let records = Records::of(self.name(), call);
        let collected = records.collect(call, &valid, |key, recorded| {
            undo_steps(self.0, recorded)?;
            self.cache(key).remove()
        });
        collected.map(drop)
    }
}

/// The cache file of an attachment in upstream's format.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NewCache<'a> {
    prev_result: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Cached {
    prev_result: CniResult,
}

impl OvsMirror {
    fn cache(self, key: &AttachmentId) -> CacheFile {
        let suffix = match self.0 {
            Role::Producer => "_prod",
            Role::Consumer => "_cons",
        };
        CacheFile::of(key, suffix)
    }

    /// Writes the cache file. Best effort: only upstream's plugins read it.
    fn write_cache(self, call: &Call, key: &AttachmentId) {
        if let Some(prev_result) = call.config.object.get(cni::names::key::PREV_RESULT)
            && let Err(error) = self.cache(key).write(&NewCache { prev_result })
        {
            call.note(Level::Warn, error);
        }
    }

    /// Removes a port without a record from the config's mirrors: the upstream plugin added it, or the node was
    /// rebooted. An invalid config has no mirrors.
    fn remove_unrecorded(self, call: &Call, key: &AttachmentId) -> Result<(), Error> {
        let Ok(config) = Config::read(call, self.0).and_then(Config::complete) else {
            return Ok(());
        };
        let cached = || self.cache(key).read::<Cached>().map(|cached| cached.prev_result);
        let Some(previous) = call.config.prev_result().ok().flatten().or_else(cached) else {
            return Ok(());
        };
        let mut database = Database::connect(&config.socket)?;
        if let Some(port) = port_of(&mut database, &previous.interfaces)? {
            let names: Vec<_> = config.mirrors.iter().map(|mirror| mirror.name.clone()).collect();
            database.transact(&plan::detach(self.0, &names, &port))?;
        }
        remove_empty(&mut database, &config.bridge)
    }
}

/// The ID of the first interface that is an Open vSwitch port.
fn port_of(database: &mut Database, interfaces: &[Interface]) -> Result<Option<String>, Error> {
    for interface in interfaces {
        if let Some(id) = find_port(database, &interface.name)? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

fn mirrors(database: &mut Database) -> Result<Vec<Row>, Error> {
    let rows = database.rows(select(table::MIRROR, &[], &plan::COLUMNS))?;
    Ok(rows.into_iter().filter_map(Row::new).collect())
}

/// Adds the port to all mirrors, or to none on failure.
fn attach(database: &mut Database, role: Role, config: &config::Target, port: &str) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let rows = mirrors(database)?;
        let operations = plan::attach(role, &config.mirrors, port, &config.bridge, &rows)?;
        // Otherwise a concurrent call has changed a mirror, so retry.
        if database.transact_if(&operations)?.is_some() {
            return Ok(());
        }
    }
    Err(Error::internal("the mirrors are changed again and again"))
}

/// Removes recorded ports from their mirrors.
fn undo_steps(role: Role, recorded: &RecordedSteps<Step>) -> Result<(), Error> {
    for Step::Mirrors {
        port,
        names,
        bridge,
        socket,
    } in &recorded.steps
    {
        let mut database = Database::connect(socket)?;
        database.transact(&plan::detach(role, names, port))?;
        remove_empty(&mut database, bridge)?;
    }
    Ok(())
}

/// Removes the bridge's mirrors that these plugins created and that have no port.
fn remove_empty(database: &mut Database, bridge: &str) -> Result<(), Error> {
    let conditions = [is(column::NAME, bridge)];
    let replies = database.transact(&[
        select(table::BRIDGE, &conditions, &[column::MIRRORS]),
        select(table::MIRROR, &[], &plan::COLUMNS),
    ])?;
    let rows: Vec<_> = replies.iter().map(rows_of).collect();
    let [bridges, mirrors] = rows.as_slice() else {
        return Ok(());
    };
    let mirrors: Vec<_> = mirrors.iter().cloned().filter_map(Row::new).collect();
    for operations in plan::removals(bridge, bridges, &mirrors) {
        // Keeps a mirror that has a port by now.
        database.transact_if(&operations)?;
    }
    Ok(())
}
