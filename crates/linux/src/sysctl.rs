//! Kernel settings below `/proc/sys`, of the namespace that the calling thread is in.

use std::{fmt, fs, io::Write as _, path::PathBuf};

use crate::{Error, Result};

/// Where the settings are.
const ROOT: &str = "/proc/sys";

/// Path of a setting. Each step is one directory, so interface names may contain dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(PathBuf);

impl Key {
    /// The setting at `steps`: `["net", "ipv4", "conf", "net1.100", "arp_notify"]`. Steps that are empty,
    /// `.`, `..` or contain a slash would leave the directory: an error.
    pub fn new(steps: &[&str]) -> Result<Self> {
        let mut path = PathBuf::from(ROOT);
        for step in steps {
            if matches!(*step, "" | "." | "..") || step.contains(['/', '\0']) {
                return Err(Error::request(
                    "name kernel setting",
                    steps.join("/"),
                    "not a setting's name",
                ));
            }
            path.push(step);
        }
        Ok(Key(path))
    }

    /// Per-interface IPv4 setting.
    pub fn ipv4(interface: &str, name: &str) -> Result<Self> {
        Key::new(&["net", "ipv4", "conf", interface, name])
    }

    /// Per-interface IPv6 setting.
    pub fn ipv6(interface: &str, name: &str) -> Result<Self> {
        Key::new(&["net", "ipv6", "conf", interface, name])
    }

    /// The value without surrounding white space.
    pub fn read(&self) -> Result<String> {
        let value = fs::read_to_string(&self.0)
            .map_err(|e| Error::io("read kernel setting", self.to_string(), &e))?;
        Ok(value.trim().to_owned())
    }

    /// Writes `value` as it is.
    pub fn write(&self, value: &str) -> Result<()> {
        // Without O_CREAT: a name that does not exist is "no such file", not "permission denied".
        fs::OpenOptions::new()
            .write(true)
            .open(&self.0)
            .and_then(|mut file| file.write_all(value.as_bytes()))
            .map_err(|e| Error::io("write kernel setting", self.to_string(), &e))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_in_interface_names_stay() {
        let key = Key::ipv4("net1.100", "arp_filter").unwrap();
        assert_eq!(key.to_string(), "/proc/sys/net/ipv4/conf/net1.100/arp_filter");
    }

    #[test]
    fn no_step_leaves_the_directory() {
        for step in ["", ".", "..", "a/b", "../../etc"] {
            Key::ipv4(step, "forwarding").unwrap_err();
        }
    }
}
