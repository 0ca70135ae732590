//! installer.
