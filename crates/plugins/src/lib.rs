//! plugins.
