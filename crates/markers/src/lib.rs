//! markers.
