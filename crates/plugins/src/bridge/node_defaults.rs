//! The node's defaults for missing config keys (cni-plugins §3.1).

use std::{fs, io::ErrorKind, path::PathBuf};

use cni::{Error, json, names::BRIDGE_DEFAULTS};
use serde::Deserialize;

/// The content of the node's file, or the general defaults without a file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeDefaults {
    /// Keeps a port with VLANs also in the bridge's default VLAN.
    pub(super) preserve_default_vlan: bool,
}

impl NodeDefaults {
    /// Reads the first file found in the plugins' folders.
    pub(super) fn read(folders: &[PathBuf]) -> Result<Self, Error> {
        for folder in folders {
            let path = folder.join(BRIDGE_DEFAULTS);
            let failed = |why: &dyn std::fmt::Display| {
                Error::internal(format!("failed to read \"{}\": {why}", path.display()))
            };
            match fs::read(&path) {
                Ok(text) => return json::from_slice(&text).map_err(|error| failed(&error)),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                // Falling back to other defaults could attach the pod to another network.
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(NodeDefaults::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_folder_with_a_file_decides() {
        let home = tempfile::tempdir().unwrap();
        let folders = ["none", "first", "second"].map(|name| home.path().join(name));
        let read = || NodeDefaults::read(&folders);
        assert_eq!(read().unwrap(), NodeDefaults::default());
        for (folder, text) in [
            (&folders[1], "{\"PRESERVEDEFAULTVLAN\":true,\"other\":1}"),
            (&folders[2], "{}"),
        ] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("weft-bridge.json"), text).unwrap();
        }
        assert!(read().unwrap().preserve_default_vlan);
        fs::write(folders[1].join("weft-bridge.json"), "tru").unwrap();
        let message = read().unwrap_err().msg;
        let path = folders[1].join("weft-bridge.json");
        assert!(
            message.starts_with(&format!("failed to read \"{}\": ", path.display())),
            "{message}"
        );
    }
}
