//! ADD of the link plugins, with rollback on failure.

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
    CreatedLink, LinkPlugin, LinkRequest, Settings, interface_of,
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

/// Limit of attempts to find an unused name.
const NAME_ATTEMPTS: usize = 10;

/// Attaches the pod. A failure leaves only resources that all pods share, such as the bridge.
pub(super) fn add(plugin: &dyn LinkPlugin, call: &Call) -> Result<CniResult, Error> {
    let mut link_request = plugin.read(call)?;
    let mut stage = Stage::begin_record(plugin, call, link_request.as_ref())?;
    let outcome = stage.complete(link_request.as_mut());
    if outcome.is_err() {
        stage.roll_back();
        link_request.restore(&mut stage);
    }
    outcome
}

/// An ADD in progress.
pub(crate) struct Stage<'a> {
    pub(crate) call: &'a Call,
    /// Socket in the host namespace.
    pub(crate) host: Socket,
    /// The host namespace.
    pub(crate) home: NetNs,

    pub(crate) pod: Pod,

    pub(crate) rules: Ruleset,
    key: AttachmentId,
    journal: Journal,
    /// The steps so far, in order, without the IPAM addresses.
    steps: Vec<Step>,
    leased: bool,
}

/// Properties of a new link in the pod.
pub(crate) struct NewLink<'a> {
    pub(crate) kind: LinkKind<'a>,
    /// The kind's name in errors.
    pub(crate) what: &'static str,
    /// The parent link.
    pub(crate) parent: Option<&'a Found>,

    pub(crate) mac: Option<Mac>,
    /// In bytes.
    pub(crate) mtu: Option<u32>,
}

impl<'a> Stage<'a> {
    /// Creates the attachment's record. Undoes the steps of an interrupted ADD first. If the interface exists,
    /// this is a repeated ADD, and nothing is undone.
    fn begin_record(
        plugin: &dyn LinkPlugin,
        call: &'a Call,
        link_request: &dyn LinkRequest,
    ) -> Result<Self, Error> {
        let home = NetNs::current().explain(|| "failed to open netns of the host".to_owned())?;
        let mut host = Socket::open().map_err(cni::error::internal)?;
        let mut pod = Pod::open(call)?;
        let (records, key) = (Records::of(plugin.name(), call), AttachmentId::of(call));
        let journal = match records.begin(&key)? {
            Some(journal) => journal,
            None => begin_anew(plugin, call, link_request, &records, &key, &mut host, &mut pod)?,
        };
        Ok(Stage {
            call,
            host,
            home,
            pod,
            rules: Ruleset::of(call),
            key,
            journal,
            steps: Vec::new(),
            leased: false,
        })
    }

    /// Records a step before it runs.
    pub(crate) fn begin(&mut self, step: Step) -> Result<(), Error> {
        begin(&mut self.journal, &mut self.steps, step)
    }

    /// Clears the recorded steps, none of which ran.
    pub(crate) fn forget(&mut self) -> Result<(), Error> {
        self.steps.clear();
        self.journal.clear()
    }

    /// Creates a veth pair, both ends down. Records its name first.
    pub(crate) fn make_pair(&mut self, mac: Option<Mac>, mtu: Option<u32>) -> Result<Pair, Error> {
        for _ in 0..NAME_ATTEMPTS {
            let outer_name = veth::random_name().explain(|| MAKE_VETH.to_owned())?;
            self.begin(Step::Pair {
                port: outer_name.clone(),
            })?;
            let link_request = veth::PairSpec {
                ifname: &self.call.request.ifname,
                outer_name: &outer_name,
                mac,
                mtu,
            };
            match veth::create(&mut self.pod, &mut self.host, &self.home, link_request) {
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

    /// Creates a link in the pod, down. A link with a parent gets a temporary name first: kernels before 6.15
    /// require that its name is unused on the host too.
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
        if let Err(error) = self.create_link(new, &first_name) {
            // Nothing was created. The link with this name has another owner.
            self.forget()?;
            return Err(error).explain(create);
        }
        let named = self.name_link(&first_name, what);
        // A link that could not be deleted stays recorded for the rollback, DEL and GC.
        if named.is_err() && self.discard_link(&first_name).is_ok() {
            self.forget()?;
        }
        named
    }

    /// Deletes a link that has its first name. A missing link is no error.
    fn discard_link(&mut self, first_name: &str) -> linux::Result<()> {
        let socket = &mut self.pod.socket;
        match socket.find_link(first_name)? {
            Some(link) => socket.delete_link(&link),
            None => Ok(()),
        }
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

    /// Renames a new link to the attachment's interface name.
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
        socket
            .change_link(&link, "rename link", &change)
            .explain(|| format!("failed to rename {what} to \"{ifname}\""))?;
        ifname.clone_into(&mut link.name);
        Ok(link)
    }

    pub(crate) fn set_up(&mut self, link: &Link) -> Result<(), Error> {
        self.pod
            .socket
            .set_up(link)
            .explain(|| format!("failed to set \"{}\" up", link.name))
    }

    /// Calls `work` with the host's rules and the attachment that marks them.
    pub(crate) fn with_rules<T>(
        &mut self,
        change: impl FnOnce(&mut Ruleset, crate::record::Attachment<'_>) -> T,
    ) -> T {
        let owner = self.key.to(self.call.config.name());
        change(&mut self.rules, owner)
    }

    fn complete(&mut self, link_request: &mut dyn LinkRequest) -> Result<CniResult, Error> {
        let CreatedLink { link, outside } = link_request.make(self)?;
        let settings = link_request.settings();
        let mut result = CniResult {
            interfaces: outside,
            ..CniResult::default()
        };
        result.interfaces.extend(link.as_ref().map(|link| Interface {
            sandbox: Some(self.pod.path.clone()),
            ..interface_of(link)
        }));
        let leased = link_request.lease(self.call)?;
        self.leased = leased.is_some();
        match (&link, leased) {
            (Some(link), Some(leased)) => {
                self.assign_addresses(link_request, &settings, link, leased, &mut result)?;
            }
            (Some(link), None) if !settings.leave_down => self.set_up(link)?,
            (None, Some(mut leased)) => {
                claim(&mut leased, 0)?;
                result = leased;
            }
            (_, None) => {}
        }
        if let Some(link) = &link {
            link_request.finish(self, link, &mut result)?;
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
        // Fails while a rollback is possible if the config's version cannot represent the result.
        if self.call.version < Version::V0_3_0 {
            result.to_json(self.call.version)?;
        }
        Ok(result)
    }

    fn assign_addresses(
        &mut self,
        link_request: &mut dyn LinkRequest,
        settings: &Settings,
        link: &Link,
        mut leased: CniResult,
        result: &mut CniResult,
    ) -> Result<(), Error> {
        claim(&mut leased, result.interfaces.len() - 1)?;
        link_request.complete(&mut leased)?;
        result.ips = leased.ips;
        result.routes = leased.routes;
        result.dns = leased.dns;
        let plan = interface::plan(&link.name, result)?;
        link_request.prepare(self, link, result)?;
        let call = self.call;
        self.pod.inside(|socket| {
            link_request.tune(&link.name);
            interface::apply(call, socket, link, &plan)
        })?;
        link_request.route(self, link, result)?;
        if let Some(choice) = settings.masquerade {
            let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
            self.masquerade(choice, &addresses)?;
        }
        Ok(())
    }

    /// Masquerades packets that leave the pod's subnets.
    fn masquerade(&mut self, choice: Choice, addresses: &[IpNet]) -> Result<(), Error> {
        let Self {
            call,
            rules,
            journal,
            steps,
            key,
            ..
        } = self;
        masquerade::set_up(rules, choice, key.to(call.config.name()), addresses, |backend| {
            let addresses = addresses.to_vec();
            begin(journal, steps, Step::Masquerade { backend, addresses })
        })
    }

    /// Undoes the steps, best effort, because ADD reports its own error. Steps whose undo fails stay recorded for
    /// DEL and GC.
    fn roll_back(&mut self) {
        let owner = self.key.to(self.call.config.name());
        let return_device = |needs_link| {
            if self.leased && ipam::needs_link(self.call) == needs_link {
                return ipam::del(self.call);
            }
            Ok(())
        };
        let given = return_device(true);
        let undone = steps::undo(self.call, &mut self.host, &mut self.rules, owner, &self.steps);
        let forgotten = undone.and_then(|left| {
            return_device(false).and(given)?;
            left.and_then(|()| self.journal.remove())
        });
        if let Err(error) = forgotten {
            self.call
                .note(Level::Error, format_args!("failed to undo a failed ADD: {error}"));
        }
    }
}

/// Assigns the leased addresses to interface `container` of the result.
fn claim(leased: &mut CniResult, container: usize) -> Result<(), Error> {
    if leased.ips.is_empty() {
        return Err(Error::internal(NO_IPS));
    }
    for ip in &mut leased.ips {
        ip.interface = Some(container);
    }
    Ok(())
}

/// Undoes an interrupted ADD and recreates the record.
fn begin_anew(
    plugin: &dyn LinkPlugin,
    call: &Call,
    link_request: &dyn LinkRequest,
    records: &Records,
    key: &AttachmentId,
    host: &mut Socket,
    pod: &mut Pod,
) -> Result<Journal, Error> {
    let ifname = &call.request.ifname;
    let left = records
        .read::<Step>(key)?
        .map(|recorded| recorded.steps)
        .unwrap_or_default();
    let present = pod
        .socket
        .find_link(ifname)
        .explain(|| format!("failed to lookup \"{ifname}\""))?;
    if present.is_some() {
        return Err(link_request.occupied(ifname, &left));
    }
    let owner = key.to(call.config.name());
    steps::undo(call, host, &mut Ruleset::of(call), owner, &left)??;
    // Releases the addresses of the interrupted ADD, because IPAM refuses a second lease.
    plugin.addressing().ask(ipam::del, call)?;
    records.remove(key)?;
    records
        .begin(key)?
        .ok_or_else(|| Error::internal(format!("another ADD of \"{ifname}\" is under way")))
}

/// Records a step before it runs.
fn begin(journal: &mut Journal, recorded: &mut Vec<Step>, step: Step) -> Result<(), Error> {
    journal.note(std::slice::from_ref(&step))?;
    recorded.push(step);
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
    fn addresses_are_those_of_the_containers_interface() {
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
