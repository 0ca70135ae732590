//! API servers, one for each test.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use cluster::ApiServer;

use crate::{
    Admin,
    store::{Snapshot, Store},
    until,
};

/// Maximum number of concurrent servers: each takes a large part of a processor and hundreds of megabytes.
const MOST_SERVERS: usize = 2;
/// Keys of definitions, whose names have the form `PLURAL.GROUP`.
const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";
/// Keys of admission policies. An API server notices their changes after up to a second, and does not show when.
const POLICIES: [&str; 2] = [
    "/registry/validatingadmissionpolic",
    "/registry/mutatingadmissionpolic",
];

/// Creates the objects that a test expects.
type Install = fn(&Admin);

/// An API server of one test. Tests above the maximum number of servers wait.
pub struct Server {
    /// Reused at the end, unless the test failed.
    machine: Option<Machine>,
    admin: Admin,
    _place: Permit,
}

/// An API server, and the states to which its store can return.
struct Machine {
    api: ApiServer,
    store: Store,
    /// The store of a new server.
    empty: Snapshot,
    /// The store after this function.
    installed: Option<(Install, Snapshot)>,
}

impl Server {
    /// Returns a server with the objects of `install` and no others. A server that another test used returns to the
    /// state after the first call of `install`, which is faster than a new server.
    pub fn take(install: Install) -> Self {
        Self::of(Some(install))
    }

    /// Returns an empty server.
    pub fn bare() -> Self {
        Self::of(None)
    }

    fn of(install: Option<Install>) -> Self {
        let permit = Permit::take();
        let (machine, admin) = Machine::reused(install).unwrap_or_else(|| Machine::started(install));
        Self {
            machine: Some(machine),
            admin,
            _place: permit,
        }
    }
}

impl Deref for Server {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            idle().extend(self.machine.take());
        }
    }
}

impl Machine {
    fn started(install: Option<Install>) -> (Self, Admin) {
        let api = ApiServer::start().expect("an API server");
        let (store, admin) = (Store::of(&api), Admin::of(&api));
        let empty = store.snapshot();
        let mut machine = Self {
            api,
            store,
            empty,
            installed: None,
        };
        machine.install(install, &admin);
        (machine, admin)
    }

    /// Restores the state of an idle server, preferably of one with the same objects.
    fn reused(install: Option<Install>) -> Option<(Self, Admin)> {
        let mut machine = {
            let mut idle = idle();
            let same = idle.iter().position(|machine| machine.has(install));
            let other = idle.len().checked_sub(1)?;
            idle.swap_remove(same.unwrap_or(other))
        };
        let admin = Admin::of(&machine.api);
        let has_objects = machine.has(install);
        let state = match &mut machine.installed {
            Some((_, installed)) if has_objects => installed,
            _ => &mut machine.empty,
        };
        let changed = machine.store.restore(state);
        if changed
            .iter()
            .any(|key| POLICIES.iter().any(|prefix| key.starts_with(prefix)))
        {
            return None;
        }
        settle(&admin, state, &changed);
        if !has_objects {
            machine.install(install, &admin);
        }
        Some((machine, admin))
    }

    fn has(&self, install: Option<Install>) -> bool {
        install.is_some_and(|wanted| {
            let installed = self.installed.as_ref();
            installed.is_some_and(|(install, _)| std::ptr::fn_addr_eq(*install, wanted))
        })
    }

    fn install(&mut self, install: Option<Install>, admin: &Admin) {
        if let Some(install) = install {
            install(admin);
            self.installed = Some((install, self.store.snapshot()));
        }
    }
}

/// Waits until the server serves exactly the definitions of its store.
fn settle(admin: &Admin, state: &Snapshot, changed: &BTreeSet<String>) {
    let mut groups: BTreeMap<&str, Vec<(&str, bool)>> = BTreeMap::new();
    for key in changed {
        let name = key
            .strip_prefix(DEFINITIONS)
            .and_then(|name| name.split_once('.'));
        if let Some((plural, group)) = name {
            groups
                .entry(group)
                .or_default()
                .push((plural, state.contains(key)));
        }
    }
    for (group, plurals) in groups {
        until(group, || {
            let served = served(admin, group);
            let is_wrong = |(plural, is_expected): &&(&str, bool)| served.contains(*plural) != *is_expected;
            match plurals.iter().find(is_wrong) {
                Some(wrong) => Err(format!("{wrong:?} is served: {served:?}")),
                None => Ok(()),
            }
        });
    }
}

/// Returns the plurals of a group's kinds.
fn served(admin: &Admin, group: &str) -> BTreeSet<String> {
    let path = format!("/apis/{group}");
    let versions = admin.get(&path).map(|found| found["versions"].clone());
    let versions = versions
        .iter()
        .filter_map(|versions| versions.as_array())
        .flatten();
    let resources = versions.filter_map(|version| {
        let list = admin.get(&format!("{path}/{}", version["version"].as_str()?))?;
        let names = list["resources"].as_array()?.iter();
        Some(
            names
                .filter_map(|it| it["name"].as_str().map(str::to_owned))
                .collect::<Vec<_>>(),
        )
    });
    resources.flatten().collect()
}

/// Servers without a test. They end with this process.
fn idle() -> MutexGuard<'static, Vec<Machine>> {
    static IDLE: Mutex<Vec<Machine>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The permission to run a server.
struct Permit;

static TAKEN: Mutex<usize> = Mutex::new(0);
static RETURNED: Condvar = Condvar::new();

impl Permit {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= MOST_SERVERS;
        let mut taken = RETURNED
            .wait_while(taken, full)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RETURNED.notify_one();
    }
}
