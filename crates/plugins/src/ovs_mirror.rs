//! `ovs-mirror-producer` and `ovs-mirror-consumer`: copies of a port's packets to another port (cni-plugins §10.8).
//!
//! ```text
//! Mirror m: select_src_port, select_dst_port <── ports of producers
//!           output_port                      <── the port of the consumer
//! ```
//!
//! Both are chained after `ovs`, whose port they find by the result. Whichever of a mirror comes first makes it; the last one
//! takes it away.

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
    config::Config,
    plan::{Role, Row},
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
    record::{AttachmentId, Records, Taken, gc},
};

/// Limit of attempts to change mirrors that other calls change at the same moment.
const ATTEMPTS: usize = 20;

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Whether an ADD of the plugin of this name would take the config.
pub(crate) fn examine(call: &Call, plugin: &str) -> Result<(), Error> {
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

/// A step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// A port was put into mirrors.
    Mirrors {
        /// Id of the port.
        port: String,
        /// Names of the mirrors.
        names: Vec<String>,
        /// The bridge that they are of.
        bridge: String,
        /// Address of the database.
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
        // What cannot be printed in the config's version fails before anything is changed.
        result.to_json(call.version)?;
        let mut database = Database::connect(&config.socket)?;
        database.require_bridge(&config.bridge)?;
        remove_empty(&mut database, &config.bridge)?;
        let port = port_of(&mut database, &result.interfaces)?.ok_or_else(|| Error::internal(OVS_NO_PORT))?;
        let (records, key) = (Records::of(self.name(), call), AttachmentId::of(call));
        let mut journal = chained::begin(&records, &key, |taken| take_back(self.0, taken))?;
        let step = Step::Mirrors {
            port: port.clone(),
            names: config.mirrors.iter().map(|mirror| mirror.name.clone()).collect(),
            bridge: config.bridge.clone(),
            socket: config.socket.clone(),
        };
        journal.note(std::slice::from_ref(&step))?;
        self.write_cache(call, &key);
        if let Err(error) = attach(&mut database, self.0, &config, &port) {
            // The error of ADD stays the one that counts; a step that cannot be taken back is on record.
            let taken = Taken {
                steps: vec![step],
                is_whole: true,
            };
            if take_back(self.0, &taken).is_ok() {
                let _ = self.cache(&key).remove();
                let _ = chained::forget(call, &records, &key);
            }
            return Err(error);
        }
        Ok(result)
    }

    /// A database that does not answer keeps no pod from going: the record stays for GC.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(self.name(), call), AttachmentId::of(call));
        let taken = records.taken(&key)?.filter(|taken| !taken.steps.is_empty());
        let (is_recorded, removed) = match &taken {
            Some(taken) => (true, take_back(self.0, taken)),
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
        let collected = records.collect(call, &valid, |key, taken| {
            take_back(self.0, taken)?;
            self.cache(key).remove()
        });
        collected.map(drop)
    }
}

/// The cache file of an attachment, as the established plugins have it.
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

    /// Only an established plugin needs the file: a full disk keeps no pod from its network.
    fn write_cache(self, call: &Call, key: &AttachmentId) {
        if let Some(prev_result) = call.config.object.get(cni::names::key::PREV_RESULT)
            && let Err(error) = self.cache(key).write(&NewCache { prev_result })
        {
            call.note(Level::Warn, error);
        }
    }

    /// Takes the port of an attachment without a record out of the config's mirrors: the established plugin put it in, or the
    /// node was started again. A config that made ADD fail has none.
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

/// The id of the first interface that is a port of Open vSwitch.
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

/// Puts the port into all mirrors, or into none.
fn attach(database: &mut Database, role: Role, config: &config::Target, port: &str) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let rows = mirrors(database)?;
        let operations = plan::attach(role, &config.mirrors, port, &config.bridge, &rows)?;
        // Otherwise another call changed one of the mirrors since they were read.
        if database.transact_if(&operations)?.is_some() {
            return Ok(());
        }
    }
    Err(Error::internal("the mirrors are changed again and again"))
}

/// Takes recorded ports out of their mirrors.
fn take_back(role: Role, taken: &Taken<Step>) -> Result<(), Error> {
    for Step::Mirrors {
        port,
        names,
        bridge,
        socket,
    } in &taken.steps
    {
        let mut database = Database::connect(socket)?;
        database.transact(&plan::detach(role, names, port))?;
        remove_empty(&mut database, bridge)?;
    }
    Ok(())
}

/// Removes mirrors of the bridge that these plugins made and no port is in any more.
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
        // One that has a port by now stays.
        database.transact_if(&operations)?;
    }
    Ok(())
}
