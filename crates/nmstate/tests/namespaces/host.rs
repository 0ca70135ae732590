//! A host with NetworkManager and a wire: `eth1` on it, which NetworkManager manages, and `wire`, its other end, which
//! plays the network.

use std::ops::{Deref, DerefMut};

use cluster::{Home, NetworkManager, Quiet};
use serde_json::Value;
use weft_nmstate::engine::{Backend, Engine};

use crate::victim;

/// The host of a test: it has the calling thread, and every thread that it starts.
#[derive(Debug)]
pub(crate) struct Host(NetworkManager);

impl Host {
    /// Starts one and enters it.
    pub(crate) fn enter() -> Self {
        Self::managing(&["eth1"])
    }

    /// Starts one whose NetworkManager manages these from its start on.
    pub(crate) fn managing(interfaces: &[&str]) -> Self {
        let host = NetworkManager::start(&Home::from_env().unwrap(), interfaces, &mut Quiet).unwrap();
        // Without a mount namespace of its own a thread can't go to another one.
        linux::process::unshare_mounts().unwrap();
        host.enter().unwrap();
        host.script("ip link add eth1 type veth peer name wire; ip link set wire up; ip link set eth1 up")
            .unwrap();
        Self(host)
    }

    /// The library on a thread on this host.
    pub(crate) fn engine(&self) -> Engine {
        Engine::start(Backend::NetworkManager).unwrap()
    }

    /// The state of this host.
    pub(crate) fn report(&self, engine: &Engine) -> Value {
        wait(engine.report()).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Waits until the report satisfies a condition.
    pub(crate) fn wait_for(&self, engine: &Engine, what: &str, such: impl Fn(&Value) -> bool) -> Value {
        let found = cluster::wait::until_some(
            what,
            victim::DEADLINE,
            || Some(self.report(engine)).filter(&such),
            || format!("\n{:#}\n{}", self.report(engine), self.log()),
        );
        found.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The profiles that NetworkManager keeps on the host, by interface, sorted.
    pub(crate) fn profiles(&self) -> Vec<String> {
        let files = self
            .script("cd /etc/NetworkManager/system-connections; for file in *; do [ -e $file ] && sed -n s/^interface-name=//p $file; done | sort")
            .unwrap();
        files.lines().map(str::to_owned).collect()
    }
}

impl Deref for Host {
    type Target = NetworkManager;

    fn deref(&self) -> &NetworkManager {
        &self.0
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut NetworkManager {
        &mut self.0
    }
}

/// Runs a future on this thread.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

/// An interface of a report.
pub(crate) fn interface<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    let mut interfaces = report["interfaces"].as_array()?.iter();
    interfaces.find(|interface| interface["name"] == name)
}
