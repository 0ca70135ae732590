//! cni.
