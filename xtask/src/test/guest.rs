//! The tier in a virtual machine: all its test programs in one boot.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use cluster::{Home, Packages, Process, Progress};
use vm::{Boot, Vm};

use super::Tier;
use super::libtest::Reader;
use crate::build::{Inventory, Kind, Program};
use crate::paths;

/// Prefix of the name of a machine's directory, before the number of the process that runs the machine.
const FOLDER: &str = "vm-";
/// Name of the program that is the guest's first process.
const INIT: &str = "vm-init";
/// Programs that tests in the guest start.
const PROGRAMS: [&str; 1] = ["weft-cni"];
/// The package whose tests need NetworkManager.
const WITH_NETWORK_MANAGER: &str = "weft-nmstate";

/// The parts of the tier.
pub(super) fn ensure(progress: &mut dyn Progress) -> anyhow::Result<Result<Vm, String>> {
    match Vm::ensure(&Home::from_env()?, progress) {
        Err(vm::Error::Unavailable(why)) => Ok(Err(why)),
        vm => Ok(Ok(vm?)),
    }
}

/// Runs the test programs. `show` gets each line to print.
pub(super) fn run(
    vm: &Vm,
    boot: &Boot,
    progress: &mut dyn Progress,
    show: &mut dyn FnMut(&str),
) -> anyhow::Result<Reader> {
    let dir = folder()?;
    let mut reader = Reader::default();
    let began = Instant::now();
    let ended = vm.run(boot, &dir, progress, &mut |line| {
        if let Some(shown) = reader.line(line, began.elapsed()) {
            show(&shown);
        }
    });
    // The file explains no failure.
    let _ = std::fs::remove_dir_all(&dir);
    let failed = ended?
        .into_iter()
        .filter_map(|end| Some((end.name, end.failure?)));
    for (name, failure) in failed {
        show(&format!("the tests of {name} failed ({failure})"));
        // A program that died has no line with counts.
        anyhow::ensure!(
            reader.totals().failed > 0,
            "the tests of {name} ended early: {failure}"
        );
    }
    Ok(reader)
}

/// The directory of a machine of this process. A later run removes leftovers.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    Ok(paths::target().join(format!("{FOLDER}{}", Process::current()?)))
}

/// Removes the directories of machines whose process has ended.
pub(super) fn clear(target: &Path) {
    for entry in std::fs::read_dir(target).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER));
        if process
            .and_then(Process::parse)
            .is_some_and(|process| !process.lives())
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Waits for the programs of these packages, and adds them to a machine.
pub(super) fn boot(
    inventory: &Inventory,
    selected: &dyn Fn(&Program) -> bool,
    progress: &mut dyn Progress,
) -> anyhow::Result<Option<Boot>> {
    let Some(programs) = inventory.all() else {
        return Ok(None);
    };
    let mut boot = boot_of(&programs, selected)?;
    if boot.tests.is_empty() {
        return Ok(None);
    }
    if boot
        .tests
        .iter()
        .any(|(package, _)| package == WITH_NETWORK_MANAGER)
    {
        add_network_manager(&mut boot, progress)?;
    }
    Ok(Some(boot))
}

fn boot_of(programs: &[Program], selected: &dyn Fn(&Program) -> bool) -> anyhow::Result<Boot> {
    let binary = |name: &str| {
        let found = programs
            .iter()
            .find(|program| program.kind == Kind::Binary && program.target == name);
        found
            .map(|program| program.file.clone())
            .with_context(|| format!("{name} is missing"))
    };
    let tests = programs
        .iter()
        .filter(|program| Tier::of(program) == Some(Tier::Vm));
    Ok(Boot {
        init: binary(INIT)?,
        tests: tests
            .filter(|program| selected(program))
            .map(|program| (program.package.clone(), program.file.clone()))
            .collect(),
        programs: PROGRAMS
            .map(binary)
            .into_iter()
            .collect::<anyhow::Result<Vec<PathBuf>>>()?,
        tools: Vec::new(),
        libraries: None,
    })
}

/// Makes NetworkManager and its bus available in the guest.
fn add_network_manager(boot: &mut Boot, progress: &mut dyn Progress) -> anyhow::Result<()> {
    let packages = Packages::ensure_network_manager(&Home::from_env()?, progress)?;
    for program in ["usr/sbin/NetworkManager", "usr/bin/dbus-daemon"] {
        boot.tools
            .push((packages.file(program), Path::new("/").join(program)));
    }
    let mut variables = packages.variables().into_iter();
    boot.libraries = variables.find_map(|(name, path)| (name == "LD_LIBRARY_PATH").then_some(path));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_dead_process_removes_its_folder_alone() {
        let target = tempfile::tempdir().unwrap();
        let own = Process::current().unwrap().to_string();
        let dead = format!("{own}0");
        for name in [format!("vm-{own}"), format!("vm-{dead}"), "vm-x".to_owned()] {
            std::fs::create_dir(target.path().join(name)).unwrap();
        }
        clear(target.path());
        let left = |name: &str| target.path().join(name).exists();
        assert!(left(&format!("vm-{own}")) && left("vm-x"));
        assert!(!left(&format!("vm-{dead}")));
    }

    #[test]
    fn guest_gets_the_tests_of_its_tier_and_their_programs() {
        let program = |package: &str, target: &str, kind| Program {
            package: package.to_owned(),
            target: target.to_owned(),
            kind,
            file: PathBuf::from(format!("/t/{package}-{target}")),
            dir: PathBuf::from("/w"),
        };
        let programs = [
            program("plugins", "vm", Kind::IntegrationTests),
            program("plugins", "namespaces", Kind::IntegrationTests),
            program("plugins", "weft-cni", Kind::Binary),
            program("vm", "vm", Kind::UnitTests),
            program("vm", "vm", Kind::IntegrationTests),
            program("vm", "vm-init", Kind::Binary),
        ];
        let boot = boot_of(&programs, &|_| true).unwrap();
        assert_eq!(boot.init, Path::new("/t/vm-vm-init"));
        let test = |package: &str| (package.to_owned(), PathBuf::from(format!("/t/{package}-vm")));
        assert_eq!(boot.tests, [test("plugins"), test("vm")]);
        assert_eq!(boot.programs, [PathBuf::from("/t/plugins-weft-cni")]);
        let one = boot_of(&programs, &|program| program.package == "vm").unwrap();
        assert_eq!(one.tests, [test("vm")]);
        assert!(boot_of(&[], &|_| true).is_err());
    }
}
