//! A real Kubernetes on one Linux machine, without a container engine on the host.
//!
//! ```text
//! host ──wire── control (namespaces)   etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!                 ├── node01 (namespaces nested in it)   containerd, kubelet, kube-proxy, pods
//!                 └── node02                             the same
//! ```
//!
//! Every machine of the cluster is a *space*: its own network, mounts, processes, host name and control groups,
//! with a root file system of its own that shares only programs and devices with the host. The first process of
//! a space holds all of that; when it is killed, everything is gone. What the host sees of a cluster is one
//! directory, one control group in each hierarchy, and one end of a wire, all named after the cluster's home and
//! name: any number of clusters live side by side, and one that was left by a crash is found by its name.
//!
//! * [`Cluster`] is a whole cluster,
//! * [`ApiServer`] an API server with an etcd and nothing else, ready in seconds,
//! * [`NameServer`] answers the nodes' questions for names,
//! * [`Kubectl`], [`Helm`] and [`wait`] help to use both,
//! * [`NetworkManager`] is a host that NetworkManager configures,
//! * [`OpenVswitch`] is Open vSwitch in a namespace of a test,
//! * [`image`] makes container images without a container engine.

pub mod coredns;
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
pub use process::Process;
pub use progress::{Progress, Quiet, Steps};
