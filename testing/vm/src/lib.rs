//! Test programs under a full Debian kernel, for what the machine's own kernel lacks.
//!
//! ```text
//! kernel + modules (Debian, in the cache) ──┐
//! static test programs, vm-init, busybox ───┴─> initramfs ──> qemu (tcg) ──serial console──> lines of the tests
//! ```
//!
//! Nothing is installed and nothing has to be root. [`Vm`] is what a machine is made of, [`Boot`] one run of it: any
//! number of test programs, one after the other, whose output comes back line by line. The first process of the guest
//! is `vm-init`, a program of this crate: it loads the modules, runs the programs, and says on the console where the
//! output of each begins and how it ended ([`console`]).

pub mod console;
pub mod plan;

mod boot;
mod cpio;
mod error;
mod kernel;
mod libraries;
mod modules;

pub use boot::{Boot, Ended, Vm};
pub use error::{Error, Result};

/// Variable that is set for the programs in a virtual machine, and nowhere else.
pub const GUEST: &str = "WEFT_VM";
