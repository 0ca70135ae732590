//! The daemon against a real API server, with fake plugins and the real shim, as a runtime calls it. Needs root (the
//! daemon enters network namespaces) and the Kubernetes binaries.

mod attach;
mod life;
mod lookup;
mod node;
mod state;
