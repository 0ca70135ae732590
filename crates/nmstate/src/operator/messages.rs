//! Texts that users see (nmstate §10.2, §14).

/// Something is on its way.
pub const DEPLOYING: &str = "Deploying is in progress";
/// Everything is there.
pub const DEPLOYED: &str = "All components are available and ready";
/// Only one `NMState` counts.
pub const ANOTHER: &str =
    "Ignoring NMState.nmstate.io because one already exists and does not match existing name";
