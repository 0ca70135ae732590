//! What measurements of admission webhooks share.
//!
//! ```text
//!   a measuring program (namespaces of its own: the ports that managers listen on are free)
//!      ├── etcd, kube-apiserver <── objects, by `api`
//!      │        ▲ watches
//!      └── a manager, by `program` <── reviews over TLS, by threads of `load`
//! ```
//!
//! Clients and manager share the machine's processors: reviews per second are a floor, the manager's own time on processors
//! is what counts. The programs are built without optimisation but for what they link, to be there at once; the encoding
//! of a review is not on the clock of its answer, yet it takes processor time from the manager.

pub mod api;
pub mod http;
pub mod load;
pub mod program;
pub mod table;
pub mod template;
