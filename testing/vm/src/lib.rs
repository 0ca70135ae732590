//! Test programs under a full Debian kernel, for features that the machine's kernel lacks.
//!
//! ```text
//! kernel + modules (Debian, in the cache) ──┐
//! static test programs, vm-init, busybox ───┴─> initramfs ──> qemu (tcg) ──serial console──> lines of the tests
//! ```
//!
//! Nothing is installed, and no step needs root. [`Vm`] has the parts of a machine. [`Boot`] is one run: it executes
//! test programs one after the other, and returns their output line by line. `vm-init`, a program of this crate, is the
//! first process of the guest: it loads the modules, runs the programs, and marks their output and results on the
//! console ([`console`]).

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

/// Environment variable of programs in a virtual machine.
pub const GUEST: &str = "WEFT_VM";
