//! Measures attachments through multus beside direct calls of the plugin: `cargo xtask bench attach`.
//!
//! ```text
//!   this process ──ADD, DEL──> plugin                                       directly
//!        │
//!        ├─────ADD, DEL──> multus-shim ──> weft multus-daemon ──> plugin    through the daemon
//!        │                                        │
//!        └────────── an API server <──────────┘
//! ```
//!
//! By default, the API server is a stand-in that answers at once. With a real one, the times include its own.
//!
//! The daemon is the image's, chrooted as in its container. Its persistent files are on a real file system. A plugin
//! that does nothing shows the cost of shim and daemon: `passthru`, once inside the daemon and once, under its other
//! name and with the mark of another build, as a separate program.

mod api;
mod daemon;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cluster::{Progress as _, Steps};
use linux::link::{BridgeSpec, Mac};
use linux::route::Socket;
use rustix::mount::{MountPropagationFlags, mount_bind_recursive, mount_change};
use serde_json::{Value, json};

use self::api::Api;
use self::daemon::{Daemon, Place, field, read_proc};
use crate::call::{Call, Plugins, Verb};
use crate::case::{BRIDGE, container_id};
use crate::contest::wait_for_any_phase;
use crate::stage::{Container, Stage};
use crate::statistics::{Sample, Summary, summary};

/// Directory in memory for all files except persistent ones.
const DIR: &str = "/run/bench";
/// Numbers of concurrent callers.
const CONCURRENCY: [usize; 3] = [1, 4, 16];
/// Number of attachments before the second measurement of memory, and number of their callers.
const MANY: usize = 2000;
const CROWD: usize = 4;
/// Number of rests before an attachment, of each kind: after a rest, processors and kernel are slower too.
const RESTS: usize = 5;
/// Number of attachments for comparison with the first ones after a rest.
const USUAL: usize = 20;
/// Time until an idle daemon has returned its memory.
const REST: Duration = Duration::from_secs(25);
/// Number of measured calls of the shim.
const LOOKS: u32 = 20;
/// Prefix of the build's number in the mark of `weft-cni`.
const MARK: &[u8] = b"\x07weft-cni, build ";
/// Number of rounds after which the kernel gets time to remove their namespaces.
const BATCH: usize = 50;

/// A measured case.
struct Case {
    name: &'static str,
    network: Value,
    /// Whether the pods have a second network.
    second: bool,
}

/// All cases.
fn cases(theirs: bool, state: &Path) -> Vec<Case> {
    let of = |kind: &str, keys: Value| {
        let mut network = json!({ "cniVersion": "1.0.0", "name": "bench", "type": kind });
        if let (Some(network), Value::Object(keys)) = (network.as_object_mut(), keys) {
            network.extend(keys);
        }
        network
    };
    let bridge = |kind: &str| of(kind, json!({ "bridge": BRIDGE }));
    let addresses = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.64.0.0/16" }]],
        "dataDir": state.join("leases") });
    let case = |name, network| Case {
        name,
        network,
        second: false,
    };
    let mut cases = vec![
        case("nothing, a program", of("cnv-passthru", json!({}))),
        case("nothing, in the daemon", of("passthru", json!({}))),
        Case {
            second: true,
            ..case("nothing, and a bridge", of("passthru", json!({})))
        },
        case("bridge, a program", bridge("cnv-bridge")),
        case("bridge, in the daemon", bridge("bridge")),
        Case {
            second: true,
            ..case(
                "bridge + host-local, and a second bridge",
                of("bridge", json!({ "bridge": BRIDGE, "ipam": addresses })),
            )
        },
    ];
    if theirs {
        cases.insert(5, case("bridge, Debian's", bridge("debian-bridge")));
    }
    cases
}

/// Name of the measurement of a daemon's memory.
const MEMORY: &str = "memory";

/// Programs of the measurement.
pub(crate) struct Programs<'a> {
    /// The program of all daemons.
    pub(crate) weft: &'a Path,
    /// The program of all plugins.
    pub(crate) plugins: &'a Path,
    /// Directory of Debian's plugins.
    pub(crate) theirs: &'a Path,
}

/// Measures and prints the cases whose names start with these prefixes. Default: all.
pub(crate) fn measure(
    programs: &Programs<'_>,
    names: &[String],
    pairs: usize,
    real: bool,
    scratch: &Path,
    steps: &mut Steps,
) -> anyhow::Result<()> {
    let Programs {
        weft,
        plugins,
        theirs,
    } = *programs;
    let state = scratch.join("state");
    let their_bridge = theirs.join("bridge");
    let cases = cases(their_bridge.exists(), &state);
    let is_wanted = |case: &str| names.is_empty() || names.iter().any(|name| case.starts_with(name.as_str()));
    let known: Vec<_> = cases.iter().map(|case| case.name).chain([MEMORY]).collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| !known.iter().any(|case| case.starts_with(name.as_str())))
    {
        anyhow::bail!("unknown case \"{unknown}\"; cases: {}", known.join("; "));
    }
    let mut stage = Stage::enter()?;
    // Later mounts appear below the root too.
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .context("cannot share mounts")?;
    let dir = Path::new(DIR);
    let (bin, root) = (dir.join("bin"), dir.join("root"));
    for folder in [&bin, &root] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    install(plugins, &bin)?;
    if their_bridge.exists() {
        symlink(&their_bridge, bin.join("debian-bridge")).context("cannot link their plugin")?;
    }
    mount_bind_recursive("/", &root).context("cannot mount the root")?;
    let mut host = Socket::open()?;
    let lo = host.link_by_name("lo")?;
    host.set_up(&lo)?;
    host.create_bridge(&BridgeSpec {
        name: BRIDGE,
        mtu: None,
        mac: Some(Mac::random()?),
        vlan_filtering: false,
    })?;
    let bridge = host.link_by_name(BRIDGE)?;
    host.set_up(&bridge)?;

    let second = json!({ "cniVersion": "1.0.0", "name": "second", "type": "bridge", "bridge": BRIDGE });
    steps.step("an API server");
    let api = if real {
        Api::real(&second)?
    } else {
        Api::instant(&second, dir)?
    };
    let place = Place {
        program: weft
            .canonicalize()
            .with_context(|| format!("cannot find {}", weft.display()))?,
        dir: dir.to_owned(),
        state,
        bin: bin.clone(),
        root,
        kubeconfig: api.kubeconfig.clone(),
    };
    let arena = Arena {
        plugins: Plugins {
            dir: bin,
            environment: Vec::new(),
        },
        place,
        api,
        pairs,
        used: AtomicUsize::new(0),
    };
    println!("{}", arena.shim(&mut stage)?);
    println!(
        "{:<42}{:>5}{:>24}{:>24}{:>16}",
        "", "", "ADD ms (median)", "DEL ms (median)", "pairs/s"
    );
    println!(
        "{:<42}{:>5}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "", "at", "direct", "multus", "own", "direct", "multus", "own", "direct", "multus"
    );
    for case in cases.iter().filter(|case| is_wanted(case.name)) {
        arena.measure(case, &mut stage, steps)?;
    }
    if let Some(own) = arena.api.status_writes()? {
        println!("\n{own}");
    }
    if is_wanted(MEMORY) {
        println!("\n{}", arena.memory(&mut stage, steps)?);
    }
    Ok(())
}

/// Creates Weft's plugins under their names, and under their other names with the mark of another build.
fn install(program: &Path, bin: &Path) -> anyhow::Result<()> {
    let mut content = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let place = |name: &str, content: &[u8]| -> anyhow::Result<()> {
        let path = bin.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("cannot make it a program")
    };
    place("weft-cni", &content)?;
    for name in ["passthru", "bridge", "host-local", "multus-shim"] {
        symlink("weft-cni", bin.join(name)).with_context(|| format!("cannot link {name}"))?;
    }
    let mark = content.windows(MARK.len()).position(|part| part == MARK);
    let digit = mark.context("weft-cni carries no mark")? + MARK.len();
    content[digit] ^= 1;
    place("other-build", &content)?;
    for name in ["cnv-passthru", "cnv-bridge"] {
        symlink("other-build", bin.join(name)).with_context(|| format!("cannot link {name}"))?;
    }
    Ok(())
}

struct Arena {
    plugins: Plugins,
    place: Place,
    api: Api,
    pairs: usize,
    /// Number of attachments so far.
    used: AtomicUsize,
}

/// The called program.
#[derive(Clone, Copy)]
struct Contestant<'a> {
    plugin: &'a str,
    config: &'a str,
    /// Whether the pod has a second network.
    second: bool,
}

/// Durations of pairs of calls.
#[derive(Default)]
struct Times {
    add: Vec<Sample>,
    del: Vec<Sample>,
}

impl Arena {
    fn call(
        &self,
        who: Contestant<'_>,
        verb: Verb,
        container: &Container,
        id: &str,
    ) -> Result<Sample, String> {
        let number = usize::from_str_radix(&id[id.len() - 6..], 16).unwrap_or_default();
        let pod = number * 2 % api::PODS + usize::from(who.second);
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={}",
            api::NAMESPACE,
            api::pod_name(pod),
            self.api.uids[pod]
        );
        self.plugins.call_here(&Call {
            verb,
            plugin: who.plugin,
            container_id: id,
            ifname: "eth0",
            netns: &container.path,
            args: &args,
            config: who.config,
        })
    }

    /// Returns a new container ID.
    fn id(&self) -> String {
        let number = self.used.fetch_add(1, Ordering::Relaxed);
        container_id(0, u32::try_from(number).unwrap_or_default())
    }

    fn measure(&self, case: &Case, stage: &mut Stage, steps: &mut Steps) -> anyhow::Result<()> {
        steps.step(case.name);
        let daemon = Daemon::start(&self.place, &case.network)?;
        let config = case.network.to_string();
        let direct = Contestant {
            plugin: case.network["type"].as_str().unwrap_or_default(),
            config: &config,
            second: case.second,
        };
        let multus = Contestant {
            plugin: "multus-shim",
            config: &daemon.config,
            ..direct
        };
        let mut used = [Duration::ZERO; 2];
        let mut spent = String::new();
        for at in CONCURRENCY {
            let (times, rates) = if at == 1 {
                let before = Daemon::steps()?;
                let (times, rates) = self.in_turn([direct, multus], stage)?;
                spent = Daemon::steps()?.since(&before);
                used = times.each_ref().map(|times| summary(&times.add).cpu);
                (times, rates)
            } else {
                self.at_once([direct, multus], at, stage)?
            };
            let name = if at == 1 { case.name } else { "" };
            println!("{}", line(name, at, &times, rates));
        }
        let [plugin, shim] = used.map(|used| used.as_secs_f64() * 1e3);
        println!(
            "{:<42}     CPU for ADD: plugin {plugin:.2} ms, shim {shim:.2} ms\n     daemon, mean ms: {spent}",
            ""
        );
        Ok(())
    }

    /// Measures alternating pairs of both, by one caller.
    fn in_turn(&self, who: [Contestant<'_>; 2], stage: &mut Stage) -> anyhow::Result<([Times; 2], [f64; 2])> {
        let mut times = [Times::default(), Times::default()];
        let mut used = Vec::new();
        for round in 0..=self.pairs {
            let containers = [stage.container()?, stage.container()?];
            let ids = [self.id(), self.id()];
            for verb in [Verb::Add, Verb::Del] {
                for turn in 0..2 {
                    let place = (turn + round) % 2;
                    wait_for_any_phase();
                    let sample = self
                        .call(who[place], verb, &containers[place], &ids[place])
                        .map_err(anyhow::Error::msg)?;
                    // The first pair fills caches.
                    if round > 0 {
                        match verb {
                            Verb::Add => times[place].add.push(sample),
                            Verb::Del => times[place].del.push(sample),
                        }
                    }
                }
            }
            used.extend(containers);
            if round % BATCH == BATCH - 1 {
                stage.remove(std::mem::take(&mut used), Vec::new())?;
            }
        }
        stage.remove(used, Vec::new())?;
        let rates = times.each_ref().map(|times| {
            let of = |samples: &[Sample]| {
                samples
                    .iter()
                    .map(|sample| sample.wall.as_secs_f64())
                    .sum::<f64>()
            };
            rate(times.add.len(), of(&times.add) + of(&times.del))
        });
        Ok((times, rates))
    }

    /// Measures pairs by several concurrent callers, first of one and then of the other.
    fn at_once(
        &self,
        who: [Contestant<'_>; 2],
        callers: usize,
        stage: &mut Stage,
    ) -> anyhow::Result<([Times; 2], [f64; 2])> {
        let mut times = [Times::default(), Times::default()];
        let mut rates = [0.0; 2];
        for place in 0..2 {
            let containers = (0..callers)
                .map(|_| stage.container())
                .collect::<anyhow::Result<Vec<_>>>()?;
            let began = Instant::now();
            times[place] = self.crowd(who[place], &containers, self.pairs.max(callers))?;
            rates[place] = rate(times[place].add.len(), began.elapsed().as_secs_f64());
            stage.remove(containers, Vec::new())?;
        }
        Ok((times, rates))
    }

    /// Measures a number of pairs, by one caller per container.
    fn crowd(&self, who: Contestant<'_>, containers: &[Container], pairs: usize) -> anyhow::Result<Times> {
        let (left, times) = (AtomicUsize::new(pairs), Mutex::new(Times::default()));
        let caller = |container: &Container| -> Result<(), String> {
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                let id = self.id();
                let add = self.call(who, Verb::Add, container, &id)?;
                let del = self.call(who, Verb::Del, container, &id)?;
                if let Ok(mut times) = times.lock() {
                    times.add.push(add);
                    times.del.push(del);
                }
            }
            Ok(())
        };
        let outcome: Result<(), String> = std::thread::scope(|scope| {
            let callers: Vec<_> = containers
                .iter()
                .map(|container| scope.spawn(move || caller(container)))
                .collect();
            callers.into_iter().try_for_each(|caller| {
                caller
                    .join()
                    .unwrap_or_else(|_| Err("a caller panicked".to_owned()))
            })
        });
        outcome.map_err(anyhow::Error::msg)?;
        times
            .into_inner()
            .map_err(|_| anyhow::anyhow!("a caller panicked"))
    }

    /// Returns the peak memory of the shim, with a daemon that reads it before its answer.
    fn shim(&self, stage: &mut Stage) -> anyhow::Result<String> {
        let sockets = Path::new(DIR).join("looking");
        fs::create_dir_all(&sockets).context("no directory for a socket")?;
        let listener = UnixListener::bind(sockets.join("multus.sock")).context("cannot listen")?;
        let config =
            json!({ "cniVersion": "1.0.0", "name": "n", "type": "multus-shim", "daemonSocketDir": sockets });
        let container = stage.container()?;
        let mut peak = 0;
        for _ in 0..LOOKS {
            let mut shim = Command::new(self.plugins.dir.join("multus-shim"))
                .env_clear()
                .envs([
                    ("CNI_COMMAND", "ADD"),
                    ("CNI_CONTAINERID", "c1"),
                    ("CNI_IFNAME", "eth0"),
                ])
                .env("CNI_NETNS", &container.path)
                .env("CNI_PATH", &self.plugins.dir)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .context("cannot run the shim")?;
            if let Some(mut stdin) = shim.stdin.take() {
                stdin
                    .write_all(config.to_string().as_bytes())
                    .context("the shim does not read")?;
            }
            let (mut connection, _) = listener.accept().context("the shim does not call")?;
            let mut begin = [0; 16];
            connection
                .read_exact(&mut begin)
                .context("the shim does not ask")?;
            let status = read_proc(shim.id(), "status")?;
            let answer = r#"{"Result":{"cniVersion":"1.1.0","dns":{}}}"#;
            write!(
                connection,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}",
                answer.len()
            )
            .context("the shim does not listen")?;
            drop(connection);
            let ended = shim.wait().context("the shim does not end")?;
            if !ended.success() {
                bail!("the shim fails: {ended}");
            }
            peak = peak.max(field(&status, "VmHWM:"));
        }
        Ok(format!("shim: {peak} KiB of memory at its peak"))
    }

    /// Returns the daemon's memory before and after many attachments, its processor time per attachment, and the
    /// durations of first attachments after a rest, when pages of the daemon's program are not resident.
    fn memory(&self, stage: &mut Stage, steps: &mut Steps) -> anyhow::Result<String> {
        steps.step("memory of the daemon");
        let cases = cases(false, &self.place.state);
        let case = cases.last().context("no case")?;
        let daemon = Daemon::start(&self.place, &case.network)?;
        let multus = Contestant {
            plugin: "multus-shim",
            config: &daemon.config,
            second: case.second,
        };
        let direct = Contestant {
            plugin: case.network["type"].as_str().unwrap_or_default(),
            config: &case.network.to_string(),
            ..multus
        };
        std::thread::sleep(REST);
        let idle = daemon.memory()?;
        let containers = (0..CROWD)
            .map(|_| stage.container())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let alone = |who, pairs| self.crowd(who, &containers[..1], pairs);
        alone(multus, 1)?;
        let before = daemon.cpu()?;
        self.crowd(multus, &containers, MANY)?;
        let cpu = daemon.cpu()?.saturating_sub(before);
        std::thread::sleep(REST);
        let after = daemon.memory()?;
        let begun = (Daemon::steps()?, daemon.faults()?);
        let mut rested = [Vec::new(), Vec::new()];
        for round in 1..=RESTS {
            steps.step(&format!("attachments after a rest: {round} of {RESTS}"));
            for (who, times) in [direct, multus].into_iter().zip(&mut rested) {
                std::thread::sleep(REST);
                times.extend(alone(who, 1)?.add);
            }
        }
        std::thread::sleep(REST);
        let few = daemon.memory()?;
        let rests_ended = (Daemon::steps()?, daemon.faults()?);
        let usual = [alone(direct, USUAL)?.add, alone(multus, USUAL)?.add];
        let ended = (Daemon::steps()?, daemon.faults()?);
        let in_steps = [rests_ended.0.since(&begun.0), ended.0.since(&rests_ended.0)];
        let faults = [
            (rests_ended.1 - begun.1) / RESTS as u64,
            (ended.1 - rests_ended.1) / USUAL as u64,
        ];
        stage.remove(containers, Vec::new())?;
        // The daemon keeps its pages after little work, so that not every rest leaves it without them.
        let in_order = rested[1]
            .iter()
            .map(|sample| format!("{:.1}", sample.wall.as_secs_f64() * 1e3));
        let in_order = in_order.collect::<Vec<_>>().join(", ");
        let median = |samples: &Vec<Sample>| summary(samples).median.as_secs_f64() * 1e3;
        let (rested, usual) = (rested.each_ref().map(median), usual.each_ref().map(median));
        let each = cpu.as_secs_f64() * 1e3 / f64::from(u32::try_from(MANY).unwrap_or(u32::MAX));
        Ok(format!(
            "daemon with {} pods on its node: {} KiB Pss idle ({} anonymous), {} KiB after {MANY} attachments ({} anonymous)\n\
             {} KiB at rest after {RESTS} more ({} anonymous)\n\
             \"{}\": {each:.2} ms of the daemon's CPU for ADD and DEL\n\
             ADD, median:   direct  multus (a second network more)\n\
             after a rest{:>8.1}{:>8.1} ms (in order: {in_order})\n\
             after others{:>8.1}{:>8.1} ms\n\
             daemon, mean ms after a rest: {}; {} page faults for ADD, DEL and the rest\n\
             daemon, mean ms after others: {}; {} page faults for ADD and DEL",
            api::PODS,
            idle.0,
            idle.1,
            after.0,
            after.1,
            few.0,
            few.1,
            case.name,
            rested[0],
            rested[1],
            usual[0],
            usual[1],
            in_steps[0],
            faults[0],
            in_steps[1],
            faults[1],
        ))
    }
}

#[allow(clippy::cast_precision_loss, reason = "a few thousand pairs at most")]
fn rate(pairs: usize, seconds: f64) -> f64 {
    pairs as f64 / seconds.max(f64::MIN_POSITIVE)
}

fn line(name: &str, at: usize, times: &[Times; 2], rates: [f64; 2]) -> String {
    let mut text = format!("{name:<42}{at:>5}");
    let median = |summary: Summary| summary.median.as_secs_f64() * 1e3;
    for verb in [
        |times: &Times| summary(&times.add),
        |times: &Times| summary(&times.del),
    ] {
        let [direct, multus] = times.each_ref().map(|times| median(verb(times)));
        text.push_str(&format!("{direct:>8.2}{multus:>8.2}{:>+8.2}", multus - direct));
    }
    text + &format!("{:>8.0}{:>8.0}", rates[0], rates[1])
}
