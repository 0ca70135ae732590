//! The flat file: the node's config defaults (cni-plugins §10.1).

use std::{io::Read as _, path::Path};

use cni::{Error, files::is_absent, json};
use linux::files::{Links, open_regular};
use serde::de::DeserializeOwned;

use crate::names::ovs::FLAT_FILES;

/// Maximum file size in bytes.
const LONGEST: u64 = 1 << 20;

/// Reads the first existing file: the configured one, else one of the node. `None` without a file.
pub(crate) fn read<T: DeserializeOwned>(own: &str) -> Result<Option<T>, Error> {
    let own = Some(own).filter(|path| !path.is_empty());
    for path in own.into_iter().chain(FLAT_FILES) {
        let open_failed =
            |error: std::io::Error| Error::internal(format!("open ovs config file {path} error: {error}"));
        let file = match open_regular(Path::new(path), Links::Follow) {
            Err(error) if is_absent(&error) => continue,
            opened => opened.map_err(open_failed)?,
        };
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).map_err(open_failed)?;
        let parse_failed = |error| Error::internal(format!("parse ovs config file {path}: error: {error}"));
        return json::from_slice(&text).map(Some).map_err(parse_failed);
    }
    Ok(None)
}
