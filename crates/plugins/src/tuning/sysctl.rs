//! Resolves the config's sysctls to files, writes and restores them.

use std::collections::BTreeMap;

use cni::{Error, note::Level, plugin::Call};
use linux::sysctl::Key;

use crate::messages::Explain;

/// Placeholder for the interface name in a key.
pub(super) const IFNAME: &str = "IFNAME";
/// Prefix of every path.
pub(super) const ROOT: &str = "/proc/sys/";
/// The only permitted sysctl subtree.
const NET: &str = "net";

/// A setting with its requested value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    key: Key,
    value: String,
}

/// Resolves every key to its file.
pub(super) fn resolve(sysctls: &BTreeMap<String, String>, ifname: &str) -> Result<Vec<Setting>, Error> {
    sysctls
        .iter()
        .map(|(name, value)| {
            Ok(Setting {
                key: key(name, ifname)?,
                value: value.clone(),
            })
        })
        .collect()
}

/// Converts each `.` to a directory separator, then replaces the first `IFNAME` with the interface name, whose dots
/// are kept. Rejects keys with `..`.
fn key(name: &str, ifname: &str) -> Result<Key, Error> {
    let invalid = || Error::internal(format!("invalid net sysctl key: \"{name}\""));
    if name.split('/').any(|step| step == "..") {
        return Err(invalid());
    }
    let path = name.replace('.', "/").replacen(IFNAME, ifname, 1);
    let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
    if steps.len() < 2 || steps[0] != NET {
        return Err(invalid());
    }
    Key::new(&steps).map_err(|_| invalid())
}

/// The current values by path. Unreadable settings (a few are write-only) cannot be restored.
pub(super) fn read(settings: &[Setting]) -> BTreeMap<String, String> {
    settings
        .iter()
        .filter_map(|Setting { key, .. }| Some((key.to_string(), key.read().ok()?)))
        .collect()
}

/// Writes the settings in the thread's namespace.
pub(super) fn write(settings: &[Setting]) -> Result<(), Error> {
    let all: Vec<_> = settings
        .iter()
        .map(|Setting { key, value }| (key, value.as_str()))
        .collect();
    write_all(&all, Key::write).explain(|| "failed to set sysctl".to_owned())
}

/// Restores previous values. `false` if an existing setting rejects its old value.
pub(super) fn restore(call: &Call, before: &BTreeMap<String, String>) -> bool {
    let mut good = true;
    let keys: Vec<_> = before
        .iter()
        .filter_map(|(path, value)| Some((written_by_us(path)?, value.as_str())))
        .collect();
    let all: Vec<_> = keys.iter().map(|(key, value)| (key, *value)).collect();
    let written: Result<(), Error> = write_all(&all, |key, value| {
        if let Err(error) = key.write(value)
            && !error.is_not_found()
        {
            call.note(Level::Error, error);
            good = false;
        }
        Ok(())
    });
    good && written.is_ok()
}

/// The setting for a path in a backup. `None` for a path that this plugin cannot have written, because the configured
/// directory may contain arbitrary files.
fn written_by_us(path: &str) -> Option<Key> {
    let steps: Vec<_> = path.strip_prefix(ROOT)?.split('/').collect();
    Key::new(&steps)
        .ok()
        .filter(|_| steps.len() > 1 && steps[0] == NET)
}

/// Writes settings, then repeats those with another value: some settings reset others (`ip_forward` those of every
/// interface).
fn write_all<E>(all: &[(&Key, &str)], mut write: impl FnMut(&Key, &str) -> Result<(), E>) -> Result<(), E> {
    for (key, value) in all {
        write(key, value)?;
    }
    for (key, value) in all {
        if key.read().is_ok_and(|found| !same(&found, value)) {
            write(key, value)?;
        }
    }
    Ok(())
}

/// Compares values like the kernel, which separates numbers by tabs.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// An error unless every setting has its requested value.
pub(super) fn check(settings: &[Setting]) -> Result<(), Error> {
    for Setting { key, value } in settings {
        let found = key.read().explain(|| "failed to read sysctl".to_owned())?;
        if !same(&found, value) {
            return Err(Error::internal(format!(
                "Error: Tuning configured value of {key} is {value}, current value is {found}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // cni-plugins#37
    #[test]
    fn keys_become_files_below_net() {
        let path = |name: &str| {
            key(name, "net1.100")
                .map(|key| key.to_string())
                .map_err(|error| error.msg)
        };
        let file = |path: &str| Ok(format!("/proc/sys/{path}"));
        assert_eq!(
            path("net.ipv4.conf.IFNAME.arp_filter"),
            file("net/ipv4/conf/net1.100/arp_filter")
        );
        assert_eq!(
            path("net/ipv4/conf/IFNAME/arp_filter"),
            file("net/ipv4/conf/net1.100/arp_filter")
        );
        assert_eq!(path("net.core.somaxconn"), file("net/core/somaxconn"));
        assert_eq!(
            path("net.ipv4.conf.IFNAME.IFNAME"),
            file("net/ipv4/conf/net1.100/IFNAME")
        );
        for bad in [
            "kernel.shmmax",
            "net/ipv4/../../../kernel/x",
            "net",
            "",
            "../net/x",
            "kernel/net/x",
        ] {
            assert_eq!(path(bad), Err(format!("invalid net sysctl key: \"{bad}\"")));
        }
    }

    #[test]
    fn restore_skips_paths_that_add_cannot_write() {
        for path in [
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/net/../kernel/core_pattern",
            "/proc/sys/net",
            "net/ipv4/ip_forward",
            "/etc/passwd",
        ] {
            assert_eq!(written_by_us(path), None, "{path}");
        }
        let path = "/proc/sys/net/ipv4/conf/net1.100/arp_filter";
        assert_eq!(written_by_us(path).unwrap().to_string(), path);
    }

    #[test]
    fn white_space_is_ignored() {
        assert!(same("1024\t65535", " 1024 65535\n") && !same("10", "1 0"));
    }
}
