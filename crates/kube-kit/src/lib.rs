//! kube-kit.
