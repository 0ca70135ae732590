//! The daemon against the kernel.
