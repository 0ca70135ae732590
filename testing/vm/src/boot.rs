//! A virtual machine, and one run of it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use cluster::{Home, Packages, Progress};

use crate::console::{Console, Event};
use crate::cpio::Archive;
use crate::error::{At, Error, Result};
use crate::kernel::Kernel;
use crate::libraries;
use crate::plan::{self, Step};

/// Modules for the tests, besides built-in parts of the kernel.
const MODULES: &[&str] = &[
    // A module of netfilter requests it by its function, not by its name.
    "crc32c_generic",
    "bridge",
    "8021q",
    "veth",
    "bonding",
    "dummy",
    "ipvlan",
    "macvlan",
    "macvtap",
    "vrf",
    "vxlan",
    "tun",
    "nf_tables",
    "nf_conntrack_bridge",
    "nft_chain_nat",
    "nft_masq",
    "nft_fib_inet",
    "nft_ct",
];

/// Names of the guest's shell and its tools.
const TOOLS: &[&str] = &["sh", "cat", "ip", "ls", "echo", "sleep"];
/// Path of the guest's first process.
const INIT: &str = "/init";
const SHELL: &str = "/bin/busybox";
/// Memory of the guest: twice the programs, while the initramfs is unpacked, and the tests' own memory.
const MEBIBYTES: &str = "2048";
/// Timeouts without output, and of the whole run. The processor is emulated, and about a minute corresponds to a
/// second.
const TIMEOUTS: Timeouts = Timeouts {
    silence: Duration::from_mins(20),
    whole: Duration::from_mins(40),
};
/// Interval of progress reports.
const POLL: Duration = Duration::from_millis(200);
/// Timeout between the last message and the end of the process.
const POWER_OFF: Duration = Duration::from_secs(30);
/// Number of console lines in an error.
const TAIL: usize = 60;

/// The parts of virtual machines.
#[derive(Debug)]
pub struct Vm {
    packages: Packages,
    kernel: Kernel,
}

/// A run of a virtual machine.
#[derive(Debug)]
pub struct Boot {
    /// The program `vm-init`, static.
    pub init: PathBuf,
    /// Names and paths of the test programs.
    pub tests: Vec<(String, PathBuf)>,
    /// Additional static programs. All files have the same path in the guest and here.
    pub programs: Vec<PathBuf>,
    /// Programs with their paths in the guest.
    pub tools: Vec<(PathBuf, PathBuf)>,
    /// Directory of the tools' libraries, searched before the default directories. Test programs may need libraries
    /// too.
    pub libraries: Option<PathBuf>,
}

/// The result of a test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Name of the program.
    pub name: String,
    /// The exit status as text, or `None` after a success.
    pub failure: Option<String>,
}

impl Vm {
    /// Downloads the parts of virtual machines. [`Error::Unavailable`] if this is impossible.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::Unavailable(
                "virtual machines are for x86_64 only".to_owned(),
            ));
        }
        let packages = Packages::ensure_machine(home, progress)?;
        let kernel = Kernel::find(&packages)?;
        Ok(Self { packages, kernel })
    }

    /// Runs the tests of `boot`, and passes each line of their output to `line`. The files of the run are in `dir`,
    /// which belongs to this run.
    pub fn run(
        &self,
        boot: &Boot,
        dir: &Path,
        progress: &mut dyn Progress,
        line: &mut dyn FnMut(&str),
    ) -> Result<Vec<Ended>> {
        fs::create_dir_all(dir).at("create", dir)?;
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, self.initramfs(boot)?).at("write", &initramfs)?;
        progress.step("booting a virtual machine");
        let mut machine = Machine::start(self.qemu(&initramfs))?;
        let ended = machine.watch(TIMEOUTS, progress, line);
        let _ = fs::remove_file(&initramfs);
        ended
    }

    fn initramfs(&self, boot: &Boot) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        let mut add = |file: &Path, path: &Path, mode| -> Result<()> {
            let content = fs::read(file).at("read", file)?;
            archive.file(path, mode, &content);
            Ok(())
        };
        let mut steps = Vec::new();
        for module in self.kernel.closure(MODULES)? {
            add(&module.file, &module.path, 0o644)?;
            steps.push(Step::Module(module.path.display().to_string()));
        }
        for (name, path) in &boot.tests {
            add(path, path, 0o755)?;
            steps.push(Step::Test(name.clone(), path.display().to_string()));
        }
        for path in &boot.programs {
            add(path, path, 0o755)?;
        }
        for (file, path) in &boot.tools {
            add(file, path, 0o755)?;
        }
        let programs = boot.tests.iter().map(|(_, path)| path);
        let programs = programs.chain(boot.tools.iter().map(|(file, _)| file));
        for (file, path) in libraries::of(programs, boot.libraries.as_deref()) {
            add(&file, &path, 0o755)?;
        }
        add(&boot.init, Path::new(INIT), 0o755)?;
        add(&self.packages.file("usr/bin/busybox"), Path::new(SHELL), 0o755)?;
        for tool in TOOLS {
            archive.link(&Path::new("/bin").join(tool), SHELL);
        }
        for folder in ["/proc", "/sys", "/dev", "/run", "/etc"] {
            archive.folder(Path::new(folder), 0o755);
        }
        archive.folder(Path::new("/tmp"), 0o1777);
        archive.file(Path::new(plan::PATH), 0o644, plan::write(&steps).as_bytes());
        Ok(archive.finish())
    }

    fn qemu(&self, initramfs: &Path) -> Command {
        let qemu = self.packages.command("usr/bin/qemu-system-x86_64");
        // The machine ends with this process, even after a kill.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(qemu.get_program());
        for (name, value) in qemu.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        if let Some(root) = self.packages.unpacked() {
            command.env("QEMU_MODULE_DIR", root.join("usr/lib/x86_64-linux-gnu/qemu"));
            for folder in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(root.join(folder));
            }
        }
        // No kvm: on some machines it is present and hangs.
        command.args(["-accel", "tcg", "-m", MEBIBYTES]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel.image);
        command.arg("-initrd").arg(initramfs);
        command.args(["-append", "console=ttyS0 loglevel=2 panic=-1 mitigations=off"]);
        command
    }
}

/// Timeouts of a machine.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    silence: Duration,
    whole: Duration,
}

impl Timeouts {
    fn exceeded(self, silent: Duration, whole: Duration) -> Option<String> {
        if silent > self.silence {
            Some(format!(
                "the virtual machine printed nothing for {} s",
                self.silence.as_secs()
            ))
        } else if whole > self.whole {
            Some(format!(
                "the virtual machine took more than {} s",
                self.whole.as_secs()
            ))
        } else {
            None
        }
    }
}

/// A running machine. A drop kills it.
#[derive(Debug)]
struct Machine {
    process: Child,
    lines: Receiver<String>,
    recent: VecDeque<String>,
}

impl Machine {
    fn start(mut command: Command) -> Result<Self> {
        let name = PathBuf::from(command.get_program());
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .at("run", &name)?;
        let (sender, lines) = mpsc::channel();
        // Errors of qemu are part of the output.
        if let Some(stderr) = process.stderr.take() {
            forward(stderr, sender.clone());
        }
        if let Some(stdout) = process.stdout.take() {
            forward(stdout, sender);
        }
        Ok(Self {
            process,
            lines,
            recent: VecDeque::new(),
        })
    }

    /// Reads the console until the tests end.
    fn watch(
        &mut self,
        timeouts: Timeouts,
        progress: &mut dyn Progress,
        line: &mut dyn FnMut(&str),
    ) -> Result<Vec<Ended>> {
        let mut console = Console::default();
        let mut ended = Vec::new();
        let began = Instant::now();
        let mut heard = began;
        loop {
            if let Some(complaint) = timeouts.exceeded(heard.elapsed(), began.elapsed()) {
                return Err(self.failure(&complaint));
            }
            let printed = match self.lines.recv_timeout(POLL) {
                Ok(printed) => printed,
                Err(RecvTimeoutError::Timeout) => {
                    progress.tick(self.recent.back().map_or("", String::as_str));
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.failure("the virtual machine ended before its tests did"));
                }
            };
            heard = Instant::now();
            self.remember(&printed);
            match console.line(&printed) {
                Event::Begin(name) => {
                    progress.step(&format!("running the tests of {name} in the virtual machine"));
                }
                Event::Line(text) => line(&text),
                Event::End(name, status) => ended.push(Ended {
                    name,
                    failure: (status != SUCCESS).then_some(status),
                }),
                Event::Done => {
                    self.power_off();
                    return Ok(ended);
                }
                Event::Broken(cause) => {
                    // Lines after a panic explain it.
                    self.power_off();
                    return Err(self.failure(&format!("the virtual machine failed: {cause}")));
                }
                Event::Noise => {}
            }
        }
    }

    fn remember(&mut self, printed: &str) {
        if self.recent.len() == TAIL {
            self.recent.pop_front();
        }
        self.recent.push_back(printed.trim_end().to_owned());
    }

    /// Waits until the process ends by itself.
    fn power_off(&mut self) {
        let deadline = Instant::now() + POWER_OFF;
        while Instant::now() < deadline {
            match self.lines.recv_timeout(POLL) {
                Ok(printed) => self.remember(&printed),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn failure(&self, what: &str) -> Error {
        let console: String = self.recent.iter().map(|line| format!("\n    {line}")).collect();
        Error::Guest {
            what: what.to_owned(),
            console,
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Usually the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The exit status of a successful program, as `vm-init` prints it.
const SUCCESS: &str = "exit status: 0";

fn forward(stream: impl std::io::Read + Send + 'static, lines: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { return };
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use cluster::Quiet;

    use super::*;
    use crate::console;

    /// Watches a program that prints like a guest.
    fn watch(script: &str, timeouts: Timeouts) -> (Result<Vec<Ended>>, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let mut machine = Machine::start(command).unwrap();
        let ended = machine.watch(timeouts, &mut Quiet, &mut |line| lines.push(line.to_owned()));
        (ended, lines)
    }

    #[test]
    fn lines_and_results_of_programs_are_reported() {
        let text = [
            console::begin("a"),
            "test one ... ok".to_owned(),
            console::end("a", "exit status: 0"),
            console::begin("b"),
            console::end("b", "signal: 11 (SIGSEGV)"),
            console::done(),
        ];
        let (ended, lines) = watch(&format!("echo boot; echo '{}'", text.join("\n")), TIMEOUTS);
        let end = |name: &str, failure: Option<&str>| Ended {
            name: name.to_owned(),
            failure: failure.map(str::to_owned),
        };
        assert_eq!(
            ended.unwrap(),
            [end("a", None), end("b", Some("signal: 11 (SIGSEGV)"))]
        );
        assert_eq!(lines, ["test one ... ok"]);
    }

    #[test]
    fn failed_machine_shows_the_end_of_its_console() {
        let error = |script: &str, timeouts| watch(script, timeouts).0.unwrap_err().to_string();
        assert_eq!(
            error("echo 'vm-init: begin a'; echo no modules", TIMEOUTS),
            "the virtual machine ended before its tests did; the end of its console:\n    vm-init: begin a\n    no modules"
        );
        let panic = error("echo 'Kernel panic - not syncing: x'; echo trace", TIMEOUTS);
        assert!(
            panic.starts_with("the virtual machine failed: Kernel panic - not syncing: x;")
                && panic.ends_with("\n    trace"),
            "{panic}"
        );
        let short = Timeouts {
            silence: Duration::ZERO,
            ..TIMEOUTS
        };
        // The process would run for a day, and is killed.
        let silent = error("exec sleep 86400", short);
        assert_eq!(
            silent,
            "the virtual machine printed nothing for 0 s; the end of its console:"
        );
    }
}
