//! ADD: from nothing to an attached container, or back to nothing.

use std::os::fd::AsFd as _;

use cni::{
    Error, Version,
    note::Level,
    plugin::Call,
    result::{CniResult, Interface},
};
use ipnet::IpNet;
use linux::{
    link::{Link, LinkChange, LinkKind, LinkSpec, Mac},
    netns::NetNs,
    route::Socket,
};

use super::{
    LinkPlugin, Made, Settings, Wish,
    parent::Found,
    steps::{self, Sandbox, Step},
};
use crate::{
    interface, ipam,
    masquerade::{self, Choice},
    messages::{Explain as _, MAKE_VETH, NO_IPS},
    pod::Pod,
    record::{AttachmentId, Journal, Records},
    ruleset::Ruleset,
    veth::{self, Pair},
};

/// How often a name that is taken is replaced by another.
const NAME_ATTEMPTS: usize = 10;

/// Attaches the container. On failure only what all containers share stays.
pub(super) fn add(plugin: &dyn LinkPlugin, call: &Call) -> Result<CniResult, Error> {
    let mut wish = plugin.read(call)?;
    let mut stage = Stage::begin_record(plugin, call, wish.as_ref())?;
    let outcome = stage.complete(wish.as_mut());
    if outcome.is_err() {
        stage.roll_back();
        wish.restore(&mut stage);
    }
    outcome
}

/// An attachment that is being made.
pub(crate) struct Stage<'a> {
    /// The call.
    pub(crate) call: &'a Call,
    /// The host.
    pub(crate) host: Socket,
    /// The host's namespace.
    pub(crate) home: NetNs,
    /// The container.
    pub(crate) pod: Pod,
    /// Rules of the host.
    pub(crate) rules: Ruleset,
    key: AttachmentId,
    journal: Journal,
    /// The steps that were taken, in order. The addresses that IPAM has assigned are not among them.
    taken: Vec<Step>,
    leased: bool,
}

/// A link to make in the container.
pub(crate) struct NewLink<'a> {
    /// Its kind.
    pub(crate) kind: LinkKind<'a>,
    /// The name of the kind.
    pub(crate) what: &'static str,
    /// The link below.
    pub(crate) parent: Option<&'a Found>,
    /// Its address.
    pub(crate) mac: Option<Mac>,
    /// Its MTU, bytes.
    pub(crate) mtu: Option<u32>,
}

impl<'a> Stage<'a> {
    /// Begins the attachment's record. Steps of an ADD that was killed are taken back first, unless the
    /// interface is there: then this is a second ADD, and the first one's work is not touched.
    fn begin_record(plugin: &dyn LinkPlugin, call: &'a Call, wish: &dyn Wish) -> Result<Self, Error> {
        let home = NetNs::current().explain(|| "failed to open netns of the host".to_owned())?;
        let mut host = Socket::open().map_err(cni::error::internal)?;
        let mut pod = Pod::open(call)?;
        let (records, key) = (Records::of(plugin.name(), call), AttachmentId::of(call));
        let journal = match records.begin(&key)? {
            Some(journal) => journal,
            None => begin_anew(plugin, call, wish, &records, &key, &mut host, &mut pod)?,
        };
        Ok(Stage {
            call,
            host,
            home,
            pod,
            rules: Ruleset::of(call),
            key,
            journal,
            taken: Vec::new(),
            leased: false,
        })
    }

    /// Records a step that is about to be taken.
    pub(crate) fn begin(&mut self, step: Step) -> Result<(), Error> {
        begin(&mut self.journal, &mut self.taken, step)
    }

    /// Forgets all steps: none was taken.
    pub(crate) fn forget(&mut self) -> Result<(), Error> {
        self.taken.clear();
        self.journal.clear()
    }

    /// Makes a pair, both ends down, under a name that is recorded before it is used.
    pub(crate) fn make_pair(&mut self, mac: Option<Mac>, mtu: Option<u32>) -> Result<Pair, Error> {
        for _ in 0..NAME_ATTEMPTS {
            let outer_name = veth::random_name().explain(|| MAKE_VETH.to_owned())?;
            self.begin(Step::Pair {
                port: outer_name.clone(),
            })?;
            let wish = veth::Wish {
                ifname: &self.call.request.ifname,
                outer_name: &outer_name,
                mac,
                mtu,
            };
            match veth::create(&mut self.pod, &mut self.host, &self.home, wish) {
                Ok(Some(pair)) => return Ok(pair),
                Ok(None) => self.forget()?,
                Err(error) => {
                    self.forget()?;
                    return Err(error);
                }
            }
        }
        Err(Error::internal(format!(
            "{MAKE_VETH}: failed to find a unique veth name"
        )))
    }

    /// Makes a link in the container, down. One with a parent is made under another name first: kernels before 6.15 want the
    /// name to be free on the host as well.
    pub(crate) fn make_link(&mut self, new: &NewLink<'_>) -> Result<Link, Error> {
        let (what, ifname) = (new.what, self.call.request.ifname.as_str());
        let create = || format!("failed to create {what}");
        let first_name = match new.parent {
            Some(_) => veth::random_name().explain(create)?,
            None => ifname.to_owned(),
        };
        self.begin(Step::Link {
            kind: what.to_owned(),
            name: first_name.clone(),
            sandbox: Sandbox::of(&self.pod),
        })?;
        let made = self.create_link(new, &first_name).explain(create);
        let named = made.and_then(|()| self.name_link(&first_name, what));
        if named.is_err() {
            // Nothing is left, and what has the interface's name is somebody else's.
            self.forget()?;
        }
        named
    }

    fn create_link(&mut self, new: &NewLink<'_>, name: &str) -> linux::Result<()> {
        let spec = LinkSpec {
            parent: new.parent.map(|parent| parent.link.index),
            mtu: new.mtu,
            mac: new.mac,
            ..LinkSpec::new(name, new.kind)
        };
        match new.parent {
            Some(parent) if !parent.in_container => self.host.create_link(&LinkSpec {
                namespace: Some(self.pod.ns.as_fd()),
                ..spec
            }),
            _ => self.pod.socket.create_link(&spec),
        }
    }

    /// Gives a new link the name of the attachment. On failure it is removed.
    fn name_link(&mut self, first_name: &str, what: &str) -> Result<Link, Error> {
        let ifname = self.call.request.ifname.as_str();
        let socket = &mut self.pod.socket;
        let mut link = socket
            .link_by_name(first_name)
            .explain(|| format!("failed to refetch {what} \"{first_name}\""))?;
        if first_name == ifname {
            return Ok(link);
        }
        let change = LinkChange {
            name: Some(ifname),
            ..LinkChange::default()
        };
        if let Err(error) = socket.change_link(&link, "rename link", &change) {
            // The first error is the one that counts; a link that stays goes with the namespace.
            let _ = socket.delete_link(&link);
            return Err(error).explain(|| format!("failed to rename {what} to \"{ifname}\""));
        }
        ifname.clone_into(&mut link.name);
        Ok(link)
    }

    /// Sets the container's link up.
    pub(crate) fn set_up(&mut self, link: &Link) -> Result<(), Error> {
        self.pod
            .socket
            .set_up(link)
            .explain(|| format!("failed to set \"{}\" up", link.name))
    }

    /// The attachment, as rules of the host are marked with it.
    pub(crate) fn with_rules<T>(
        &mut self,
        change: impl FnOnce(&mut Ruleset, crate::record::Attachment<'_>) -> T,
    ) -> T {
        let owner = self.key.to(self.call.config.name());
        change(&mut self.rules, owner)
    }

    fn complete(&mut self, wish: &mut dyn Wish) -> Result<CniResult, Error> {
        let Made { link, outside } = wish.make(self)?;
        let settings = wish.settings();
        let mut result = CniResult {
            interfaces: outside,
            ..CniResult::default()
        };
        result.interfaces.extend(link.as_ref().map(|link| Interface {
            name: link.name.clone(),
            mac: link.mac.map(|mac| mac.to_string()),
            mtu: Some(link.mtu),
            sandbox: Some(self.pod.path.clone()),
            ..Interface::default()
        }));
        let leased = wish.lease(self.call)?;
        self.leased = leased.is_some();
        match (&link, leased) {
            (Some(link), Some(leased)) => {
                self.assign_addresses(wish, &settings, link, leased, &mut result)?;
            }
            (Some(link), None) if !settings.leave_down => self.set_up(link)?,
            (None, Some(mut leased)) => {
                claim(&mut leased, 0)?;
                result = leased;
            }
            (_, None) => {}
        }
        if let Some(link) = &link {
            wish.finish(self, link, &mut result)?;
        }
        if let Some(dns) = settings.dns {
            result.dns = dns;
        }
        if self.call.version < Version::V1_1_0 {
            result
                .interfaces
                .iter_mut()
                .for_each(|interface| interface.mtu = None);
        }
        // A result that the config's version cannot express is a failure while there still is a way back.
        if self.call.version < Version::V0_3_0 {
            result.to_json(self.call.version)?;
        }
        Ok(result)
    }

    fn assign_addresses(
        &mut self,
        wish: &mut dyn Wish,
        settings: &Settings,
        link: &Link,
        mut leased: CniResult,
        result: &mut CniResult,
    ) -> Result<(), Error> {
        claim(&mut leased, result.interfaces.len() - 1)?;
        wish.complete(&mut leased)?;
        result.ips = leased.ips;
        result.routes = leased.routes;
        result.dns = leased.dns;
        let plan = interface::plan(&link.name, result)?;
        wish.prepare(self, link, result)?;
        let call = self.call;
        self.pod.inside(|socket| {
            wish.tune(&link.name);
            interface::apply(call, socket, link, &plan)
        })?;
        wish.route(self, link, result)?;
        if let Some(choice) = settings.masquerade {
            let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
            self.masquerade(choice, &addresses)?;
        }
        Ok(())
    }

    /// Has packets that leave the container's subnets take on an address of the host.
    fn masquerade(&mut self, choice: Choice, addresses: &[IpNet]) -> Result<(), Error> {
        let Self {
            call,
            rules,
            journal,
            taken,
            key,
            ..
        } = self;
        masquerade::set_up(rules, choice, key.to(call.config.name()), addresses, |backend| {
            let addresses = addresses.to_vec();
            begin(journal, taken, Step::Masquerade { backend, addresses })
        })
    }

    /// Takes the steps back, as far as that is possible; the error of ADD stays the one that counts. Steps that fail stay
    /// recorded, for DEL and GC.
    fn roll_back(&mut self) {
        let owner = self.key.to(self.call.config.name());
        let give_back = |needs_link| {
            if self.leased && ipam::needs_link(self.call) == needs_link {
                return ipam::del(self.call);
            }
            Ok(())
        };
        let given = give_back(true);
        let undone = steps::undo(self.call, &mut self.host, &mut self.rules, owner, &self.taken);
        let forgotten = undone.and_then(|left| {
            give_back(false).and(given)?;
            left.and_then(|()| self.journal.remove())
        });
        if let Err(error) = forgotten {
            self.call.note(
                Level::Error,
                format_args!("failed to take back what a failed ADD did: {error}"),
            );
        }
    }
}

/// Gives the leased addresses to the interface of the result with index `container`.
fn claim(leased: &mut CniResult, container: usize) -> Result<(), Error> {
    if leased.ips.is_empty() {
        return Err(Error::internal(NO_IPS));
    }
    for ip in &mut leased.ips {
        ip.interface = Some(container);
    }
    Ok(())
}

/// Takes back what an ADD that was killed left, and begins the record again.
fn begin_anew(
    plugin: &dyn LinkPlugin,
    call: &Call,
    wish: &dyn Wish,
    records: &Records,
    key: &AttachmentId,
    host: &mut Socket,
    pod: &mut Pod,
) -> Result<Journal, Error> {
    let ifname = &call.request.ifname;
    let left = records
        .taken::<Step>(key)?
        .map(|taken| taken.steps)
        .unwrap_or_default();
    let present = pod
        .socket
        .find_link(ifname)
        .explain(|| format!("failed to lookup \"{ifname}\""))?;
    if present.is_some() {
        return Err(wish.occupied(ifname, &left));
    }
    let owner = key.to(call.config.name());
    steps::undo(call, host, &mut Ruleset::of(call), owner, &left)??;
    // Nobody has its addresses any more, and with them it would be refused others.
    plugin.addressing().ask(ipam::del, call)?;
    records.remove(key)?;
    records
        .begin(key)?
        .ok_or_else(|| Error::internal(format!("another ADD of \"{ifname}\" is under way")))
}

/// Records a step that is about to be taken.
fn begin(journal: &mut Journal, taken: &mut Vec<Step>, step: Step) -> Result<(), Error> {
    journal.note(std::slice::from_ref(&step))?;
    taken.push(step);
    Ok(())
}

#[cfg(test)]
mod tests {
    use cni::result::IpConfig;

    use super::*;

    #[test]
    fn no_addresses_are_an_error() {
        // cni-plugins#24
        let error = claim(&mut CniResult::default(), 0).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (999, "IPAM plugin returned missing IP config")
        );
    }

    #[test]
    fn addresses_belong_to_the_containers_interface() {
        let ip = |interface| IpConfig {
            address: "10.1.2.3/24".parse().unwrap(),
            gateway: None,
            interface,
        };
        let mut leased = CniResult {
            ips: vec![ip(None), ip(Some(7))],
            ..CniResult::default()
        };
        claim(&mut leased, 2).unwrap();
        assert_eq!(leased.ips, [ip(Some(2)), ip(Some(2))]);
    }
}
