//! The node's defaults of bridge configs, a file beside the plugins (cni-plugins §3.1).

use crate::{About, Error};
use cni::files;
use cni::names::BRIDGE_DEFAULTS;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The plugin that reads the file. Other installers do not change its defaults.
const PLUGIN: &str = "bridge";
/// A port with VLANs stays in the bridge's default VLAN as well, unless its config sets `preserveDefaultVlan`.
const PRESERVE_DEFAULT_VLAN: &str = "{\"preserveDefaultVlan\":true}\n";
/// All users may read it; only root may replace it.
const MODE: u32 = 0o644;

/// The desired content of the file.
#[derive(Debug)]
pub(crate) struct BridgeDefaults {
    path: PathBuf,
    /// `None`: no file, so that only the configs count.
    content: Option<&'static str>,
}

impl BridgeDefaults {
    /// The file for an installation of these plugins; `None` without the bridge plugin.
    pub(crate) fn new(dir: &Path, names: &[String], preserve_default_vlan: bool) -> Option<Self> {
        names.iter().any(|name| name == PLUGIN).then(|| Self {
            path: dir.join(BRIDGE_DEFAULTS),
            content: preserve_default_vlan.then_some(PRESERVE_DEFAULT_VLAN),
        })
    }

    /// The file, if it is missing, different or superfluous.
    pub(crate) fn missing(&self) -> Result<Option<PathBuf>, Error> {
        let found = match fs::read(&self.path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).about("read", &self.path),
        };
        let right = found.as_deref() == self.content.map(str::as_bytes);
        Ok((!right).then(|| self.path.clone()))
    }

    /// Writes or deletes the file. Returns whether anything changed.
    pub(crate) fn ensure(&self) -> Result<bool, Error> {
        if self.missing()?.is_none() {
            return Ok(false);
        }
        match self.content {
            Some(content) => {
                files::write_atomically(&self.path, content.as_bytes(), MODE).about("write", &self.path)?;
            }
            None => files::remove_if_present(&self.path).about("remove", &self.path)?,
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(dir: &Path, names: &[&str], preserve: bool) -> Option<BridgeDefaults> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        BridgeDefaults::new(dir, &names, preserve)
    }

    #[test]
    fn file_exists_only_with_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft-bridge.json");
        let on = defaults(dir.path(), &["bridge", "tuning"], true).unwrap();
        let off = defaults(dir.path(), &["bridge"], false).unwrap();
        assert!(!off.ensure().unwrap());
        assert_eq!(on.missing().unwrap(), Some(path.clone()));
        assert!(on.ensure().unwrap());
        assert!(!on.ensure().unwrap());
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"preserveDefaultVlan\":true}\n"
        );
        fs::write(&path, "{}").unwrap();
        assert!(on.ensure().unwrap());
        assert_eq!(on.missing().unwrap(), None);
        assert_eq!(off.missing().unwrap(), Some(path.clone()));
        assert!(off.ensure().unwrap());
        assert!(!path.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn installation_of_other_plugins_keeps_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(defaults(dir.path(), &["ovs", "macvtap"], false).is_none());
    }
}
