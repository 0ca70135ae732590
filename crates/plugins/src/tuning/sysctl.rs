//! Sysctls of a config: which files they are, and writing them with a way back.

use std::collections::BTreeMap;

use cni::Error;
use linux::sysctl::Key;

use crate::messages::{Explain, note};

/// Stands for the interface's name in a key.
const IFNAME: &str = "IFNAME";
/// The one part of the kernel that pods may tune.
const NET: &str = "net";

/// A setting and the value that it is to have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    key: Key,
    value: String,
}

/// Finds the file of every key.
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

/// Each `.` separates directories, then the first `IFNAME` becomes the interface, whose own dots stay. A key
/// that climbs up is refused, although the dots would only separate directories.
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

/// Writes the settings of the namespace that the thread is in. `before` collects what they were.
pub(super) fn write(settings: &[Setting], before: &mut BTreeMap<String, String>) -> Result<(), Error> {
    for Setting { key, value } in settings {
        // What cannot be read (a few are write-only) cannot be restored.
        let was = key.read();
        key.write(value).explain(|| "failed to set sysctl".to_owned())?;
        if let Ok(was) = was {
            before.insert(key.to_string(), was);
        }
    }
    Ok(())
}

/// Writes back what was. `false` if some setting is there but refuses its old value.
pub(super) fn restore(before: &BTreeMap<String, String>) -> bool {
    let mut good = true;
    for (path, value) in before {
        let steps: Vec<_> = path.trim_start_matches("/proc/sys/").split('/').collect();
        match Key::new(&steps).and_then(|key| key.write(value)) {
            Err(error) if !error.is_not_found() => {
                note(&error.to_string());
                good = false;
            }
            _ => {}
        }
    }
    good
}

/// Whether every setting has the value that it is to have.
pub(super) fn check(settings: &[Setting]) -> Result<(), Error> {
    for Setting { key, value } in settings {
        let found = key.read().explain(|| "failed to read sysctl".to_owned())?;
        if found != value.trim() {
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
}
