//! Kernel settings in `/proc/sys`, of the namespace of the calling thread.

use std::{fmt, fs, io::Write as _, path::PathBuf};

use crate::{Error, Result};

/// Directory of the settings.
const ROOT: &str = "/proc/sys";

/// The path of a setting. Each step is one directory, so interface names may contain dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(PathBuf);

impl Key {
    /// Returns the setting at `steps`: `["net", "ipv4", "conf", "net1.100", "arp_notify"]`. Fails for steps that would
    /// leave the directory: empty, `.`, `..`, or with a slash.
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

    /// Returns the IPv4 setting of an interface.
    pub fn ipv4(interface: &str, name: &str) -> Result<Self> {
        Key::new(&["net", "ipv4", "conf", interface, name])
    }

    /// Returns the IPv6 setting of an interface.
    pub fn ipv6(interface: &str, name: &str) -> Result<Self> {
        Key::new(&["net", "ipv6", "conf", interface, name])
    }

    /// Reads the value, without surrounding white space.
    pub fn read(&self) -> Result<String> {
        let value = fs::read_to_string(&self.0)
            .map_err(|e| Error::io("read kernel setting", self.to_string(), &e))?;
        Ok(value.trim().to_owned())
    }

    /// Writes `value` unchanged.
    pub fn write(&self, value: &str) -> Result<()> {
        // Without O_CREAT, a missing setting is "no such file" instead of "permission denied".
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
    fn dots_in_interface_names_are_kept() {
        let key = Key::ipv4("net1.100", "arp_filter").unwrap();
        assert_eq!(key.to_string(), "/proc/sys/net/ipv4/conf/net1.100/arp_filter");
    }

    #[test]
    fn step_that_leaves_the_directory_is_refused() {
        for step in ["", ".", "..", "a/b", "../../etc"] {
            Key::ipv4(step, "forwarding").unwrap_err();
        }
    }
}
