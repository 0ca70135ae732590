//! The node's list of permitted sysctls.

use std::{collections::BTreeMap, fs, io, iter, path::Path};

use cni::Error;
use regex_lite::Regex;

use super::sysctl::{IFNAME, ROOT};

/// Checks every key against the list at `path`: one regular expression per line, which may match anywhere in the key.
/// Without the file all keys are permitted.
pub(super) fn check<'a>(path: &Path, keys: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let mut keys = keys.peekable();
    if keys.peek().is_none() {
        return Ok(());
    }
    match fs::read_to_string(path) {
        Ok(list) => match_all(&list, keys),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::internal(format!(
            "failed to read {}: {error}",
            path.display()
        ))),
    }
}

/// Retains the settings of a backup that the list permits under any name. A pod may be able to write to the
/// configured backup directory.
pub(super) fn retain(path: &Path, ifname: &str, settings: &mut BTreeMap<String, String>) {
    settings.retain(|setting, _| {
        names(setting, ifname)
            .iter()
            .any(|name| check(path, iter::once(name)).is_ok())
    });
}

/// The possible config keys for the setting at a path.
fn names(setting: &str, ifname: &str) -> Vec<String> {
    let steps: Vec<_> = setting.strip_prefix(ROOT).unwrap_or(setting).split('/').collect();
    let general: Vec<_> = steps
        .iter()
        .map(|step| if *step == ifname { IFNAME } else { step })
        .collect();
    [&general, &steps]
        .map(|steps| [steps.join("."), steps.join("/")])
        .concat()
}

fn match_all<'a>(list: &str, keys: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let lines: Vec<&str> = list
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let patterns = lines.iter().map(|line| {
        Regex::new(line).map_err(|error| {
            Error::internal(format!("invalid line \"{line}\" in the list of sysctls: {error}"))
        })
    });
    let patterns = patterns.collect::<Result<Vec<_>, _>>()?;
    for key in keys {
        if !patterns.iter().any(|pattern| pattern.is_match(key)) {
            return Err(Error::internal(format!(
                "Sysctl {key} is not allowed. Only the following sysctls are allowed: [{}]",
                lines.join(" ")
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\n  ^net\\.core\\.somaxconn$ \n\nipv4.conf.IFNAME.[a-z_]*$\n";

    fn allowed(list: &str, key: &str) -> Result<(), String> {
        match_all(list, [key.to_owned()].iter()).map_err(|error| error.msg)
    }

    // cni-plugins#38
    #[test]
    fn sysctl_without_matching_line_is_rejected() {
        allowed(LIST, "net.core.somaxconn").unwrap();
        allowed(LIST, "net.ipv4.conf.IFNAME.arp_filter").unwrap();
        assert_eq!(
            allowed(LIST, "net.core.somaxconn2").unwrap_err(),
            "Sysctl net.core.somaxconn2 is not allowed. Only the following sysctls are allowed: \
             [^net\\.core\\.somaxconn$ ipv4.conf.IFNAME.[a-z_]*$]"
        );
        assert!(
            allowed("", "net.core.somaxconn")
                .unwrap_err()
                .ends_with("are allowed: []")
        );
        assert!(
            allowed("(", "net.core.somaxconn")
                .unwrap_err()
                .starts_with("invalid line \"(\"")
        );
    }

    #[test]
    fn setting_has_all_possible_config_names() {
        assert_eq!(
            names("/proc/sys/net/ipv4/conf/net1.5/arp_filter", "net1.5"),
            [
                "net.ipv4.conf.IFNAME.arp_filter",
                "net/ipv4/conf/IFNAME/arp_filter",
                "net.ipv4.conf.net1.5.arp_filter",
                "net/ipv4/conf/net1.5/arp_filter"
            ]
        );
    }

    // cni-plugins#38
    #[test]
    fn missing_list_permits_everything() {
        check(
            Path::new("/nowhere/allowlist.conf"),
            [String::from("net.x")].iter(),
        )
        .unwrap();
    }
}
