//! Texts that users see (nmstate §10.2, §14).

/// A workload is not rolled out yet.
pub(crate) const DEPLOYING: &str = "Deploying is in progress";
/// Everything is rolled out.
pub(crate) const DEPLOYED: &str = "All components are available and ready";
/// Only one `NMState` is deployed.
pub(crate) const ANOTHER: &str =
    "Ignoring NMState.nmstate.io because one already exists and does not match existing name";
