//! API servers, one for each test.

use std::{
    ops::Deref,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use cluster::ApiServer;

use crate::Admin;

/// Maximum number of concurrent servers: each takes a large part of a processor and hundreds of megabytes.
const MOST_SERVERS: usize = 2;

/// An API server of one test. Tests above the maximum number of servers wait.
pub struct Server {
    /// Reused at the end, unless the test failed, which may leave any state.
    api: Option<ApiServer>,
    /// The function that empties it for the next test. `None` prevents reuse.
    empty: Option<fn(&Admin)>,
    admin: Admin,
    _place: Permit,
}

impl Server {
    /// Returns a server with the objects of `install`, which runs once when the server is new. `empty` removes all
    /// other objects of a test. All tests of a program must use the same functions.
    pub fn take(install: impl FnOnce(&Admin), empty: fn(&Admin)) -> Self {
        let permit = Permit::take();
        let idle = idle().pop();
        let fresh = idle.is_none();
        let server = Self::of(idle, Some(empty), permit);
        if fresh {
            install(&server);
        }
        server
    }

    /// Returns an empty server that is not reused.
    pub fn bare() -> Self {
        Self::of(None, None, Permit::take())
    }

    fn of(idle: Option<ApiServer>, empty: Option<fn(&Admin)>, permit: Permit) -> Self {
        let api = idle.unwrap_or_else(|| ApiServer::start().expect("an API server"));
        Self {
            admin: Admin::of(&api),
            api: Some(api),
            empty,
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
        if let (Some(empty), false) = (self.empty, std::thread::panicking()) {
            empty(&self.admin);
            idle().extend(self.api.take());
        }
    }
}

/// Unused, emptied servers. They end with this process.
fn idle() -> MutexGuard<'static, Vec<ApiServer>> {
    static IDLE: Mutex<Vec<ApiServer>> = Mutex::new(Vec::new());
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
