//! API servers, one a test.

use std::{
    ops::Deref,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use cluster::ApiServer;

use crate::Admin;

/// Servers that run at the same time: each costs a good part of a processor and hundreds of megabytes.
const PLACES: usize = 2;

/// An API server that one test has for itself; of those that ask while too many run, each waits for its turn.
pub struct Server {
    /// Given away at the end, unless the test failed: then it may be in any state.
    api: Option<ApiServer>,
    /// How it is emptied for the next test; without, there is none.
    empty: Option<fn(&Admin)>,
    admin: Admin,
    _place: Place,
}

impl Server {
    /// A server that has what `install` brought to it when it was new, and nothing else: `empty` removes all else that a
    /// test may have made. Everybody in a test program installs and empties alike.
    pub fn take(install: impl FnOnce(&Admin), empty: fn(&Admin)) -> Self {
        let place = Place::take();
        let idle = idle().pop();
        let fresh = idle.is_none();
        let server = Self::of(idle, Some(empty), place);
        if fresh {
            install(&server);
        }
        server
    }

    /// A server with nothing on it, that no other test gets.
    pub fn bare() -> Self {
        Self::of(None, None, Place::take())
    }

    fn of(idle: Option<ApiServer>, empty: Option<fn(&Admin)>, place: Place) -> Self {
        let api = idle.unwrap_or_else(|| ApiServer::start().expect("an API server"));
        Self {
            admin: Admin::of(&api),
            api: Some(api),
            empty,
            _place: place,
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

/// Servers that nobody uses, emptied. The end of this process ends them.
fn idle() -> MutexGuard<'static, Vec<ApiServer>> {
    static IDLE: Mutex<Vec<ApiServer>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run a server.
struct Place;

static TAKEN: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

impl Place {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= PLACES;
        let mut taken = LEFT
            .wait_while(taken, full)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        LEFT.notify_one();
    }
}
