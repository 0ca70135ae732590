//! The node's records of attached sandboxes, from which DEL and GC work without the pod and the API server.
//!
//! ```text
//! ADD, hot plug ──> scratch: the networks of one sandbox ──┐
//! plugins ──> result cache of `cni` ───────────────────────┴─> records: all sandboxes of the node
//! ```

pub(crate) mod records;
pub(crate) mod scratch;
