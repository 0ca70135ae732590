//! The node's defaults for bridge configs, a file beside the plugins (cni-plugins §3.1).

use crate::{About, Error};
use cni::files;
use cni::names::BRIDGE_DEFAULTS;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The plugin that reads the file. Who does not install it has no say in its defaults.
const PLUGIN: &str = "bridge";
/// A port with VLANs stays in the bridge's default VLAN as well, unless its config says otherwise.
const PRESERVE_DEFAULT_VLAN: &str = "{\"preserveDefaultVlan\":true}\n";
/// Everybody may read it, root may replace it.
const MODE: u32 = 0o644;

/// What has to be in the file.
#[derive(Debug)]
pub(crate) struct BridgeDefaults {
    path: PathBuf,
    /// `None`: no file, and the defaults of the configs.
    content: Option<&'static str>,
}

impl BridgeDefaults {
    /// For an installation of these plugins; `None` when that is none of its business.
    pub(crate) fn new(dir: &Path, names: &[String], preserve_default_vlan: bool) -> Option<Self> {
        names.iter().any(|name| name == PLUGIN).then(|| Self {
            path: dir.join(BRIDGE_DEFAULTS),
            content: preserve_default_vlan.then_some(PRESERVE_DEFAULT_VLAN),
        })
    }

    /// The file, if it is missing, different or too much.
    pub(crate) fn missing(&self) -> Result<Option<PathBuf>, Error> {
        let found = match fs::read(&self.path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).about("read", &self.path),
        };
        let right = found.as_deref() == self.content.map(str::as_bytes);
        Ok((!right).then(|| self.path.clone()))
    }

    /// Puts the file in place, or takes it away. Whether anything had to be done.
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
    fn the_file_is_there_exactly_when_it_says_something() {
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
    fn installations_of_other_plugins_leave_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(defaults(dir.path(), &["ovs", "macvtap"], false).is_none());
    }
}
