//! The node's file with defaults for configs (cni-plugins §10.1).

use std::{io::Read as _, path::Path};

use cni::{Error, files::is_absent, json};
use linux::files::{Links, open_regular};
use serde::de::DeserializeOwned;

use crate::names::ovs::FLAT_FILES;

/// Bytes of a file that are read.
const LONGEST: u64 = 1 << 20;

/// Reads the first of the files that exists: the config's own, else one of the node. `None` without any.
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
