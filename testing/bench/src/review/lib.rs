//! Common parts of measurements of admission webhooks.
//!
//! ```text
//!   a measuring program (separate namespaces: the ports of managers are free)
//!      ├── etcd, kube-apiserver <── objects, by `api`
//!      │        ▲ watches
//!      └── a manager, by `program` <── reviews over TLS, by threads of `load`
//! ```
//!
//! Clients and manager share the machine's processors: reviews per second are a lower bound, and the manager's
//! processor time is the relevant result. The measuring programs are built without optimisation, for fast builds: the
//! encoding of a review is not part of the answer's time, but takes processor time from the manager.

pub mod api;
pub mod http;
pub mod load;
pub mod program;
pub mod table;
pub mod template;
