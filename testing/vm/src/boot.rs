//! A machine, and one run of it.

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
use crate::plan::{self, Step};

/// The modules that tests may rely on, beside what is part of the kernel.
const MODULES: &[&str] = &[
    // A module of netfilter asks for it by what it does, not by its name.
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

/// Names under which the guest finds its shell and the tools of it.
const TOOLS: &[&str] = &["sh", "cat", "ip", "ls", "echo", "sleep"];
/// Where the guest's first process has to be.
const INIT: &str = "/init";
const SHELL: &str = "/bin/busybox";
/// Memory of the guest: the programs twice, while the initramfs is unpacked, and what tests need.
const MEBIBYTES: &str = "1024";
/// How long the guest may say nothing, and how long all of it may take. Its processor is emulated: seconds elsewhere
/// are minutes here.
const SILENCE: Duration = Duration::from_mins(5);
const WHOLE: Duration = Duration::from_mins(30);
/// How long it may take from its last word to the end of the process.
const POWER_OFF: Duration = Duration::from_secs(30);
/// Lines of the console that a failure shows.
const TAIL: usize = 60;

/// What machines are made of.
#[derive(Debug)]
pub struct Vm {
    packages: Packages,
    kernel: Kernel,
}

/// What one machine is to run.
#[derive(Debug)]
pub struct Boot {
    /// The program `vm-init`, static.
    pub init: PathBuf,
    /// Names and paths of the test programs, static.
    pub tests: Vec<(String, PathBuf)>,
    /// Further programs, static. Everything has the same path in the guest as here.
    pub programs: Vec<PathBuf>,
}

/// A test program that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Its exit status in words; `None` if it succeeded.
    pub failure: Option<String>,
}

impl Vm {
    /// Brings in what a machine is made of. [`Error::Unavailable`] where that cannot be.
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

    /// Runs the tests of `boot` and hands each line of their output to `line`. Files of the run are in `dir`, which
    /// belongs to it.
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
        let ended = machine.watch(progress, line);
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
        // With this process the machine ends too, whatever ends it.
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
        // Not kvm: where tests run, it may be there and hang.
        command.args(["-accel", "tcg", "-m", MEBIBYTES]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel.image);
        command.arg("-initrd").arg(initramfs);
        command.args(["-append", "console=ttyS0 loglevel=2 panic=-1 mitigations=off"]);
        command
    }
}

/// A machine that runs; killed when dropped.
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
        // What qemu itself complains about belongs to the picture as well.
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

    /// Reads the console to the end of the tests.
    fn watch(&mut self, progress: &mut dyn Progress, line: &mut dyn FnMut(&str)) -> Result<Vec<Ended>> {
        let mut console = Console::default();
        let mut ended = Vec::new();
        let began = Instant::now();
        let mut heard = began;
        loop {
            let said = match self.lines.recv_timeout(Duration::from_millis(200)) {
                Ok(said) => said,
                Err(RecvTimeoutError::Timeout) => {
                    progress.tick(self.recent.back().map_or("", String::as_str));
                    if heard.elapsed() > SILENCE {
                        return Err(self.failure(&format!(
                            "the virtual machine said nothing for {} s",
                            SILENCE.as_secs()
                        )));
                    }
                    if began.elapsed() > WHOLE {
                        return Err(self.failure(&format!(
                            "the virtual machine took more than {} s",
                            WHOLE.as_secs()
                        )));
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.failure("the virtual machine ended before its tests did"));
                }
            };
            heard = Instant::now();
            if self.recent.len() == TAIL {
                self.recent.pop_front();
            }
            self.recent.push_back(said.trim_end().to_owned());
            match console.line(&said) {
                Event::Begin(name) => progress.step(&format!("running the tests of {name} in it")),
                Event::Line(text) => line(&text),
                Event::End(name, status) => ended.push(Ended {
                    name,
                    failure: (status != SUCCESS).then_some(status),
                }),
                Event::Done => {
                    self.power_off();
                    return Ok(ended);
                }
                Event::Broken(why) => {
                    // What follows the kernel's last words explains them.
                    while let Ok(said) = self.lines.recv_timeout(Duration::from_secs(2)) {
                        self.recent.push_back(said.trim_end().to_owned());
                    }
                    return Err(self.failure(&format!("the virtual machine gave up: {why}")));
                }
                Event::Noise => {}
            }
        }
    }

    /// Waits for the process to end by itself.
    fn power_off(&mut self) {
        let deadline = Instant::now() + POWER_OFF;
        while Instant::now() < deadline
            && !matches!(
                self.lines.recv_timeout(Duration::from_millis(200)),
                Err(RecvTimeoutError::Disconnected)
            )
        {}
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
        // Ended already, as a rule.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The exit status of a program that succeeded, as `vm-init` writes it.
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
