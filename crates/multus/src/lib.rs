//! multus.
