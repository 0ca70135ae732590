//! A case: Weft's plugin, Debian's plugin and the bare kernel in turn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use cluster::{Progress, run};
use linux::link::VethSpec;
use nix::sys::resource::UsageWho;

use crate::call::{ARGS, Call, Plugins, Verb, measured};
use crate::case::{
    Before, Case, Floor, IFNAME, Interface, NETWORK, OUTER, Place, Port, container_id, leases, spoof_rules,
};
use crate::stage::{Container, Host, Stage};
use crate::statistics::{Sample, summary};
use crate::table::{Costs, Outcome};

/// The order of the three in each pair: Weft's and Debian's plugin swap every time, and each follows each other equally
/// often.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
/// Number of pairs after which the kernel gets time to remove their namespaces.
const BATCH: u32 = 50;
/// Two ticks of the slowest kernel clock, of 100 Hz, which is a whole number of ticks of all other clocks.
const PHASE: Duration = Duration::from_millis(20);
/// First byte of the container IDs of existing ports.
const CROWD: u8 = 1;

/// Common parts of all cases.
pub(crate) struct Arena {
    pub(crate) ours: Plugins,
    pub(crate) theirs: Plugins,
    /// The program that creates upstream's rules of existing ports.
    pub(crate) nft: PathBuf,
    /// A directory on a real file system.
    pub(crate) scratch: PathBuf,
    pub(crate) pairs: u32,
}

impl Arena {
    /// Measures a case. The outcome contains failures of contestants. Errors are failures of the environment.
    pub(crate) fn measure(
        &self,
        case: Case,
        stage: &mut Stage,
        progress: &mut dyn Progress,
    ) -> anyhow::Result<Outcome> {
        progress.step(&format!("{}: preparing", case.name));
        let scratch = self.scratch.join(case.name);
        let mut contestants = [
            Contestant::new(case, Kind::Plugins(&self.ours), scratch.join("ours"))?,
            Contestant::new(case, Kind::Plugins(&self.theirs), scratch.join("theirs"))?,
            Contestant::new(case, Kind::Floor, scratch.join("floor"))?,
        ];
        let used = self.fill(case, &mut contestants, stage, progress)?;

        progress.step(&format!("{}: {} pairs", case.name, self.pairs));
        let mut finished = Vec::new();
        // Round 0 fills caches.
        for round in 0..=self.pairs {
            let mut containers = [
                container(case, stage)?,
                container(case, stage)?,
                container(case, stage)?,
            ];
            for (contestant, container) in contestants.iter_mut().zip(&mut containers) {
                contestant.connect(container)?;
            }
            let order = ORDERS[round as usize % ORDERS.len()];
            for verb in [Verb::Add, Verb::Del] {
                for place in order {
                    contestants[place].take_turn(verb, &mut containers[place], round > 0);
                }
            }
            for (contestant, container) in contestants.iter().zip(&mut containers) {
                contestant.disconnect(container)?;
            }
            finished.extend(containers);
            if round % BATCH == BATCH - 1 {
                stage.remove(std::mem::take(&mut finished), Vec::new())?;
            }
            progress.tick(&format!("pair {round} of {}", self.pairs));
        }

        let costs = contestants.each_ref().map(Contestant::costs);
        finished.extend(used);
        stage.remove(finished, contestants.map(|contestant| contestant.host).into())?;
        let [ours, theirs, floor] = costs;
        Ok(Outcome {
            ours,
            theirs,
            floor: (case.floor != Floor::None).then_some(floor),
        })
    }

    /// Returns the reason why this kernel cannot run a case.
    pub(crate) fn lacking(case: Case, stage: &mut Stage) -> anyhow::Result<Option<String>> {
        let Floor::Child(kind) = case.floor else {
            return Ok(None);
        };
        let (mut host, mut container) = (Host::new()?, stage.container()?);
        let lacking = match host.make_child(&mut container, IFNAME, kind) {
            Err(error) if error.is_unsupported() => Some(match error.missing_feature() {
                Some(feature) => feature.to_string(),
                None => error.to_string(),
            }),
            made => {
                made?;
                None
            }
        };
        stage.remove(vec![container], vec![host])?;
        Ok(lacking)
    }

    /// Prepares the initial state of every host. Returns its containers.
    fn fill(
        &self,
        case: Case,
        contestants: &mut [Contestant<'_>; 3],
        stage: &mut Stage,
        progress: &mut dyn Progress,
    ) -> anyhow::Result<Vec<Container>> {
        let [ours, theirs, floor] = contestants;
        match case.host {
            Before::GuardedPorts(ports) => {
                let guarded = ours.crowd_by_plugin(ports, stage, progress)?;
                let (container, crowd) = theirs.crowd(ports, stage, progress)?;
                let rules = spoof_rules(&crowd);
                theirs.failure = theirs.host.ns.run(|| self.lay_down(&rules))?.err();
                Ok(vec![guarded, container, floor.crowd(ports, stage, progress)?.0])
            }
            Before::Containers(count) => Ok(vec![
                ours.crowd_by_plugin(count, stage, progress)?,
                theirs.crowd_by_plugin(count, stage, progress)?,
            ]),
            Before::Bridge | Before::Leases(_) => Ok(Vec::new()),
        }
    }

    /// Loads rules in the calling thread's namespace.
    fn lay_down(&self, rules: &str) -> Result<(), String> {
        let mut nft = Command::new(&self.nft);
        nft.envs(self.theirs.environment.iter().map(|(name, value)| (name, value)))
            .args(["-f", "-"]);
        run::output_with_input(&mut nft, rules.as_bytes())
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

/// Creates the initial state of a container.
fn container(case: Case, stage: &mut Stage) -> anyhow::Result<Container> {
    let mut container = stage.container()?;
    if case.container == Interface::Own {
        container.socket.create_veth(&VethSpec {
            name: IFNAME,
            mac: None,
            mtu: None,
            peer_name: "peer",
            peer_ns: None,
        })?;
    }
    Ok(container)
}

/// A contestant.
#[derive(Clone, Copy)]
enum Kind<'a> {
    /// Plugins, called like by a runtime.
    Plugins(&'a Plugins),
    /// The kernel: this process creates only the link.
    Floor,
}

struct Contestant<'a> {
    case: Case,
    kind: Kind<'a>,
    host: Host,
    /// Directory of addresses.
    data: PathBuf,
    add: Vec<Sample>,
    del: Vec<Sample>,
    /// The failure that ended its participation.
    failure: Option<String>,
}

impl<'a> Contestant<'a> {
    fn new(case: Case, kind: Kind<'a>, data: PathBuf) -> anyhow::Result<Self> {
        let addresses = data.join(NETWORK);
        fs::create_dir_all(&addresses).with_context(|| format!("cannot create {}", addresses.display()))?;
        if let Before::Leases(used) = case.host {
            for (name, content) in leases(used) {
                let file = addresses.join(name);
                fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
        Ok(Self {
            case,
            kind,
            host: Host::new()?,
            data,
            add: Vec::new(),
            del: Vec::new(),
            failure: None,
        })
    }

    /// Runs an ADD or DEL, unless an earlier one failed.
    fn take_turn(&mut self, verb: Verb, container: &mut Container, counts: bool) {
        if self.failure.is_some() {
            return;
        }
        wait_for_any_phase();
        let done = match self.kind {
            Kind::Plugins(plugins) => self.call(plugins, verb, container, (&container.id, IFNAME), 0),
            Kind::Floor if self.case.floor == Floor::None => return,
            Kind::Floor => self.ask_kernel(verb, container),
        };
        match done {
            Ok(sample) if counts => match verb {
                Verb::Add => self.add.push(sample),
                Verb::Del => self.del.push(sample),
            },
            Ok(_) => {}
            Err(reason) => self.failure = Some(format!("{}: {reason}", verb.name())),
        }
    }

    fn call(
        &self,
        plugins: &Plugins,
        verb: Verb,
        container: &Container,
        (container_id, ifname): (&str, &str),
        number: u32,
    ) -> Result<Sample, String> {
        let place = Place {
            sandbox: &container.path,
            data: &self.data,
            number,
        };
        let config = self.case.config(&place).to_string();
        let call = Call {
            verb,
            plugin: self.case.plugin,
            container_id,
            ifname,
            netns: &container.path,
            args: ARGS,
            config: &config,
        };
        plugins.call(&self.host, &call)
    }

    fn ask_kernel(&mut self, verb: Verb, container: &mut Container) -> Result<Sample, String> {
        let (done, sample) = measured(UsageWho::RUSAGE_SELF, || match verb {
            Verb::Add => match self.case.floor {
                Floor::Child(kind) => self.host.make_child(container, IFNAME, kind),
                Floor::Pair => self.host.connect(container, IFNAME, OUTER),
                Floor::Port | Floor::None => self.host.attach(container, IFNAME, OUTER).map(drop),
            },
            Verb::Del => container.socket.delete_link_by_name(IFNAME),
        });
        done.map(|()| sample).map_err(|error| error.to_string())
    }

    /// Attaches a container, as the plugin requires.
    fn connect(&mut self, container: &mut Container) -> linux::Result<()> {
        if self.case.container == Interface::Attached {
            self.host.attach(container, IFNAME, OUTER)?;
        }
        Ok(())
    }

    /// Prepares the host for the next container.
    fn disconnect(&self, container: &mut Container) -> linux::Result<()> {
        if self.case.container == Interface::Attached {
            container.socket.delete_link_by_name(IFNAME)?;
        }
        Ok(())
    }

    /// Attaches a number of interfaces of a container by bare netlink.
    fn crowd(
        &mut self,
        ports: u32,
        stage: &mut Stage,
        progress: &mut dyn Progress,
    ) -> anyhow::Result<(Container, Vec<Port>)> {
        let mut container = quiet_container(stage)?;
        let mut crowd = Vec::new();
        for number in 0..ports {
            let ifname = crowd_ifname(number);
            let name = format!("veth{number:08x}");
            self.host.attach(&mut container, &ifname, &name)?;
            let inner = container.socket.link_by_name(&ifname)?;
            crowd.push(Port {
                name,
                mac: inner.mac.map(|mac| mac.to_string()).unwrap_or_default(),
                container_id: container_id(CROWD, number),
                ifname,
            });
            progress.tick(&format!("port {number} of {ports}"));
        }
        Ok((container, crowd))
    }

    /// The same setup by the plugin, so that the plugin finds its own state.
    fn crowd_by_plugin(
        &mut self,
        ports: u32,
        stage: &mut Stage,
        progress: &mut dyn Progress,
    ) -> anyhow::Result<Container> {
        let container = quiet_container(stage)?;
        if let Kind::Plugins(plugins) = self.kind {
            for number in 0..ports {
                let (id, ifname) = (container_id(CROWD, number), crowd_ifname(number));
                let called = self.call(plugins, Verb::Add, &container, (&id, &ifname), number + 1);
                if let Err(reason) = called {
                    self.failure = Some(format!("ADD of port {number}: {reason}"));
                    break;
                }
                progress.tick(&format!("port {number} of {ports}"));
            }
        }
        Ok(container)
    }

    fn costs(&self) -> Result<Costs, String> {
        match &self.failure {
            Some(reason) => Err(reason.clone()),
            None => Ok(Costs {
                add: summary(&self.add),
                del: summary(&self.del),
            }),
        }
    }
}

/// Waits for a random part of a few ticks of the kernel's clock. The removal of a link waits for grace periods, which
/// end on ticks: without this wait, the next contestant would always start on a tick, and a millisecond of its work
/// would count as zero or as a whole tick.
pub(crate) fn wait_for_any_phase() {
    let random = linux::random::bytes().map_or(0, u16::from_ne_bytes);
    std::thread::sleep(PHASE * u32::from(random) / (u32::from(u16::MAX) + 1));
}

fn crowd_ifname(number: u32) -> String {
    format!("net{number}")
}

/// Creates a container whose interfaces send no IPv6 discovery. A thousand interfaces would keep the machine busy with
/// it.
fn quiet_container(stage: &mut Stage) -> anyhow::Result<Container> {
    let container = stage.container()?;
    let setting = Path::new("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    if setting.exists() {
        container
            .ns
            .run(|| fs::write(setting, "1"))?
            .with_context(|| format!("cannot write {}", setting.display()))?;
    }
    Ok(container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_swap_every_pair_and_each_follows_each() {
        let place = |order: &[usize; 3], who| order.iter().position(|place| *place == who).unwrap();
        let ours_first: Vec<bool> = ORDERS
            .iter()
            .map(|order| place(order, 0) < place(order, 1))
            .collect();
        assert_eq!(ours_first, [true, false, true, false, true, false]);
        for first in 0..3 {
            for second in (0..3).filter(|second| *second != first) {
                let follows = |order: &&[usize; 3]| order.windows(2).any(|pair| pair == [first, second]);
                assert_eq!(ORDERS.iter().filter(follows).count(), 2, "{first} {second}");
            }
        }
    }
}
