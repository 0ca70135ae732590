//! API servers, one for each test.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use axum::http::Method;
use cluster::ApiServer;
use serde_json::json;

use crate::{
    Admin,
    store::{Snapshot, Store},
    until,
};

/// Maximum number of concurrent servers: each takes a large part of a processor and hundreds of megabytes.
const MOST_SERVERS: usize = 2;
/// Maximum number of restores of one state.
const MOST_RESTORES: usize = 10;
/// Keys of definitions, whose names have the form `PLURAL.GROUP`.
const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";
/// Keys of admission policies.
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

    /// Returns the API server itself, for its URL and its garbage collector.
    pub fn api(&self) -> &ApiServer {
        &self.machine.as_ref().expect("a server until the end").api
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
        let mut changed = BTreeSet::new();
        // Requests of the former test's task may arrive during a restore.
        for _ in 0..MOST_RESTORES {
            let more = machine.store.restore(state);
            if more.is_empty() {
                break;
            }
            changed.extend(more);
        }
        settle(&admin, state, &changed);
        if changed
            .iter()
            .any(|key| POLICIES.iter().any(|prefix| key.starts_with(prefix)))
        {
            settle_policies(&admin);
        }
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

/// Waits until the server applies the admission policies of its store and no others. It loads all of them together, up
/// to a second after a change: a new policy that counts shows that former ones do not count any more.
fn settle_policies(admin: &Admin) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("stage-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let api = "admissionregistration.k8s.io/v1";
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
        "resourceNames": [name],
    });
    let policy = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "matchConstraints": { "resourceRules": [rule] },
            "validations": [{ "expression": "false" }],
        },
    });
    let binding = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    let path = |plural: &str| format!("/apis/{api}/{plural}");
    let (policies, bindings) = (
        path("validatingadmissionpolicies"),
        path("validatingadmissionpolicybindings"),
    );
    admin.create(&policies, &policy);
    admin.create(&bindings, &binding);
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    until("admission policies", || {
        let path = "/api/v1/namespaces/default/configmaps?dryRun=All";
        let answer = admin.send(Method::POST, path, Some(&object));
        if answer.status.is_success() {
            Err("the new policy does not count yet")
        } else {
            Ok(())
        }
    });
    for collection in [bindings, policies] {
        admin.delete(&format!("{collection}/{name}"));
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
