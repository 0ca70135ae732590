//! A real Kubernetes on one Linux machine, without a container engine on the host.
//!
//! ```text
//! host ──link── control (namespaces)   etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!                 ├── node01 (namespaces nested in it)   containerd, kubelet, kube-proxy, pods
//!                 └── node02                             the same
//! ```
//!
//! Every machine of the cluster is a *space*: a separate network, mounts, processes, host name and control groups, and
//! a separate root file system that shares only programs and devices with the host. The first process of a space holds
//! the namespaces; when it is killed, everything in them ends. The host sees one directory, one control group in each
//! hierarchy, and one end of a link per cluster. Their names derive from the cluster's home and name: any number of
//! clusters can coexist, and the leftovers of a crash are found by name.
//!
//! * [`Cluster`] is a whole cluster,
//! * [`ApiServer`] is an API server with an etcd alone, ready in seconds,
//! * [`NameServer`] answers DNS queries of the nodes,
//! * [`Kubectl`], [`Helm`] and [`wait`] are helpers for both,
//! * [`NetworkManager`] is a host that NetworkManager configures,
//! * [`OpenVswitch`] is an Open vSwitch in the namespace of a test,
//! * [`image`] creates container images without a container engine.

pub mod coredns;
pub mod flannel;
pub mod go;
pub mod image;
pub mod kubernetes;
pub mod run;
pub mod wait;

mod api_server;
mod cgroup;
mod cluster;
mod control_plane;
mod debian;
mod error;
mod helm;
mod home;
mod kubectl;
mod name_server;
mod network;
mod network_manager;
mod node;
mod open_vswitch;
mod pki;
mod port;
mod process;
mod progress;
mod space;

pub use api_server::{ApiServer, GarbageCollector};
pub use cluster::{Certificate, Cluster, Component, Options};
pub use debian::{DNSMASQ_PROGRAM, DNSPERF_PROGRAM, Packages};
pub use error::{Error, Result};
pub use helm::Helm;
pub use home::Home;
pub use kubectl::{Kubectl, is_ready};
pub use name_server::NameServer;
pub use network_manager::NetworkManager;
pub use open_vswitch::OpenVswitch;
pub use port::free_port;
pub use process::Process;
pub use progress::{Progress, Quiet, Steps};
