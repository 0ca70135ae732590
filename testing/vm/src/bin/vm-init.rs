//! The first process of a virtual machine: loads the modules, runs the test programs, powers off.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, mount};
use rustix::system::RebootCommand;
use vm::console;
use vm::plan::{self, Step};

/// `finit_module(2)`: the kernel decompresses the module.
const COMPRESSED: i32 = 4;

fn main() {
    let end = match run() {
        Ok(()) => console::done(),
        Err(error) => console::broken(&error.to_string()),
    };
    println!("{end}");
    // Unsent output of the serial line would be lost at power-off.
    let _ = std::io::stdout().flush();
    let _ = rustix::termios::tcdrain(std::io::stdout());
    if let Err(error) = rustix::system::reboot(RebootCommand::PowerOff) {
        println!("{}", console::broken(&format!("cannot power off: {error}")));
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    if std::process::id() != 1 {
        return Err("this program is for virtual machines, as their first process".into());
    }
    for (kind, path) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(kind, path, kind, MountFlags::empty(), None)
            .map_err(|error| format!("cannot mount {path}: {error}"))?;
    }
    let text = fs::read_to_string(plan::PATH)?;
    let steps = plan::read(&text).map_err(|line| format!("unknown step: {line}"))?;
    for step in steps {
        match step {
            Step::Module(path) => load(&path).map_err(|error| format!("cannot load {path}: {error}"))?,
            Step::Test(name, path) => {
                println!("{}", console::begin(&name));
                let status = Command::new(&path)
                    .args(["--test-threads=1", "--show-output", "--color=never"])
                    .env_clear()
                    .env("PATH", "/bin")
                    .env("RUST_BACKTRACE", "1")
                    .env(vm::GUEST, "1")
                    .stdin(Stdio::null())
                    .status()
                    .map_or_else(|error| error.to_string(), |status| status.to_string());
                println!("{}", console::end(&name, &status));
            }
        }
    }
    Ok(())
}

fn load(path: &str) -> Result<(), Box<dyn Error>> {
    let plain = Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "ko");
    let flags = if plain { 0 } else { COMPRESSED };
    match rustix::system::finit_module(File::open(path)?, c"", flags) {
        // Another module has already loaded it.
        Err(rustix::io::Errno::EXIST) => Ok(()),
        done => Ok(done?),
    }
}
