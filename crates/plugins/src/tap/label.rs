//! Creates a device with an SELinux label. The device inherits the label of the program that creates it.

use std::{fs::OpenOptions, io::Write as _, process::Command};

use cni::Error;
use linux::tap::TapSpec;

use crate::{names::PROGRAM_DIRECTORIES, program, ruleset::Ruleset};

/// The label of the thread's next program.
const NEXT_LABEL: &str = "/proc/thread-self/attr/exec";
/// The program that creates devices.
const PROGRAM: &str = "ip";

/// Creates the device with a program that has this label, in the calling thread's network namespace.
pub(super) fn create(ruleset: &Ruleset, spec: &TapSpec<'_>, label: &str) -> Result<(), Error> {
    let path = program::find(PROGRAM)
        .ok_or_else(|| Error::internal(format!("failed to create tap: {PROGRAM} not found")))?;
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("PATH", PROGRAM_DIRECTORIES.join(":"))
        .args(arguments(spec));
    set_label(label)?;
    let output = ruleset.execute(&mut command, b"");
    // Best effort: only affects the thread's next program.
    let _ = set_label("");
    let output = output.map_err(|error| Error::internal(format!("failed to run {PROGRAM}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Error::internal(format!(
        "failed to run {PROGRAM}: {}",
        words.trim()
    )))
}

fn arguments(spec: &TapSpec<'_>) -> Vec<String> {
    let mut words = ["tuntap", "add", "mode", "tap", "name", spec.name, "vnet_hdr"].to_vec();
    let (owner, group) = (
        spec.owner.map(|id| id.to_string()),
        spec.group.map(|id| id.to_string()),
    );
    if spec.multi_queue {
        words.push("multi_queue");
    }
    for (key, id) in [("user", &owner), ("group", &group)] {
        words.extend(id.iter().flat_map(|id| [key, id.as_str()]));
    }
    words.into_iter().map(str::to_owned).collect()
}

fn set_label(label: &str) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .open(NEXT_LABEL)
        .and_then(|mut file| file.write_all(label.as_bytes()))
        .map_err(|error| Error::internal(format!("failed set socket label: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_gets_all_device_options() {
        let spec = TapSpec {
            name: "net1",
            multi_queue: true,
            owner: Some(107),
            group: Some(108),
        };
        assert_eq!(
            arguments(&spec).join(" "),
            "tuntap add mode tap name net1 vnet_hdr multi_queue user 107 group 108"
        );
        let plain = TapSpec {
            multi_queue: false,
            owner: None,
            group: None,
            ..spec
        };
        assert_eq!(
            arguments(&plain).join(" "),
            "tuntap add mode tap name net1 vnet_hdr"
        );
    }
}
