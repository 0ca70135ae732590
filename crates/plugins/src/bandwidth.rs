//! `bandwidth`: limits how fast a container receives and sends (cni-plugins §14).
//!
//! ```text
//! host: veth1a2b3c4d ═══ net1      sends at ingressRate: what the container receives
//!          │ received
//!          └──> bwp0123456789ab    sends at egressRate: what the container sends
//! ```
//!
//! A chained plugin: the pair is another one's. Limits of the host's end go with it, the link beside it is recorded.

mod config;

use cni::{
    Error, Version,
    plugin::{Call, Plugin},
    result::{CniResult, Interface},
};
use linux::{link::Link, route::Socket, traffic::TokenBucket};
use serde::{Deserialize, Serialize};

use self::config::Config;
use crate::{
    chained,
    hash::hashed,
    messages::{BANDWIDTH_NO_INTERFACES, BANDWIDTH_NO_PEER, Explain, NOT_CHAINED},
    names::{BANDWIDTH, IFB_PREFIX, kind},
    pod::Pod,
    record::{Attachment, AttachmentId, Journal, Records, Taken, gc},
};

/// Longest name of a link.
const NAME_LENGTH: usize = 15;

const VERSIONS: [Version; 5] = [
    Version::V0_3_0,
    Version::V0_3_1,
    Version::V0_4_0,
    Version::V1_0_0,
    Version::V1_1_0,
];

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Whether an ADD would take the config.
pub(crate) fn examine(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth;

/// A step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// The host's end of the pair was limited.
    Shape {
        /// Its name.
        port: String,
        /// Its index: another link may have the name one day.
        index: u32,
        /// The link beside it, which sends what it receives.
        ifb: Option<String>,
    },
}

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        BANDWIDTH
    }

    fn versions(&self) -> &'static [Version] {
        &VERSIONS
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call)?;
        let mut result = chained::previous(call, NOT_CHAINED)?;
        config::warn_of_subnets(call);
        if config.is_empty() {
            return Ok(result);
        }
        let mut host = Socket::open().map_err(cni::error::internal)?;
        let port = host_end(call, &result.interfaces, &mut host)?;
        let (records, key) = (Records::of(BANDWIDTH, call), AttachmentId::of(call));
        let mut journal = chained::begin(&records, &key, |taken| take_back(&mut host, taken))?;
        let names = ifb_names(key.to(call.config.name()));
        let limited = limit(&mut host, &config, &port, &names, &mut journal);
        let ifb = limited.inspect_err(|_| {
            // The error of ADD stays the one that counts; what is left over is on record.
            if let Ok(Some(taken)) = records.taken::<Step>(&key)
                && take_back(&mut host, &taken).is_ok()
            {
                let _ = chained::forget(call, &records, &key);
            }
        })?;
        result.interfaces.extend(ifb.map(|ifb| Interface {
            mac: ifb.mac.map(|mac| mac.to_string()),
            name: ifb.name,
            ..Interface::default()
        }));
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(BANDWIDTH, call), AttachmentId::of(call));
        let mut host = Socket::open().map_err(cni::error::internal)?;
        match records.taken(&key)? {
            Some(taken) => take_back(&mut host, &taken)?,
            None => delete_unrecorded(call, &records, &key, &mut host)?,
        }
        chained::forget(call, &records, &key).map(drop)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, NOT_CHAINED)?;
        if config.is_empty() {
            return Ok(());
        }
        let mut host = Socket::open().map_err(cni::error::internal)?;
        let port = host_end(call, &result.interfaces, &mut host)?;
        if let Some(wanted) = &config.ingress {
            compare(&mut host, &port, wanted)?;
        }
        let Some(wanted) = &config.egress else {
            return Ok(());
        };
        let redirected = host
            .redirected_to(&port)
            .explain(|| format!("failed to list filters of {}", port.name))?
            .ok_or_else(|| Error::internal(format!("{} has no ifb device", port.name)))?;
        let ifb = host
            .link_by_index(redirected)
            .explain(|| "get ifb device".to_owned())?;
        compare(&mut host, &ifb, wanted)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = gc::valid(call)? else {
            return Ok(());
        };
        let mut host = Socket::open().map_err(cni::error::internal)?;
        let records = Records::of(BANDWIDTH, call);
        records
            .collect(call, &valid, |_, taken| take_back(&mut host, taken))
            .map(drop)
    }
}

/// The name that established plugins give, and the one where that is taken: by another interface of the container to the
/// same network.
fn ifb_names(attachment: Attachment<'_>) -> [String; 2] {
    let Attachment {
        network,
        container_id,
        ifname,
    } = attachment;
    let named = |text: &str| hashed(NAME_LENGTH, IFB_PREFIX, text);
    [
        named(&format!("{network}{container_id}")),
        named(&format!("{network}{container_id}{ifname}")),
    ]
}

/// The host's end of the container's pair, which must be in the result.
fn host_end(call: &Call, interfaces: &[Interface], host: &mut Socket) -> Result<Link, Error> {
    if interfaces.is_empty() {
        return Err(Error::internal(BANDWIDTH_NO_INTERFACES));
    }
    let ifname = &call.request.ifname;
    let without = |what: &dyn std::fmt::Display| {
        Error::internal(format!("container interface {ifname} has no veth peer: {what}"))
    };
    let mut pod = Pod::open(call)?;
    let inner = pod.socket.link_by_name(ifname).map_err(|error| without(&error))?;
    let index = inner
        .peer
        .filter(|_| inner.is_kind(kind::VETH))
        .ok_or_else(|| without(&"it is no veth"))?;
    let outer = match host.link_by_index(index) {
        // The number means something in another namespace perhaps.
        Ok(outer) if outer.is_kind(kind::VETH) && outer.peer == Some(inner.index) => outer,
        Err(error) if !error.is_not_found() => return Err(cni::error::internal(error)),
        _ => {
            return Err(Error::internal(format!(
                "veth peer with index {index} is not in host ns"
            )));
        }
    };
    if interfaces
        .iter()
        .any(|interface| interface.sandbox.is_none() && interface.name == outer.name)
    {
        return Ok(outer);
    }
    Err(Error::internal(BANDWIDTH_NO_PEER))
}

/// Limits both directions, as far as the config says. The link that was made for it.
fn limit(
    host: &mut Socket,
    config: &Config,
    port: &Link,
    names: &[String; 2],
    journal: &mut Journal,
) -> Result<Option<Link>, Error> {
    let ifb = match config.egress {
        Some(_) => Some(free_name(host, names)?),
        None => None,
    };
    journal.note(&[Step::Shape {
        port: port.name.clone(),
        index: port.index,
        ifb: ifb.map(str::to_owned),
    }])?;
    if let Some(bucket) = &config.ingress {
        host.shape(port, bucket)
            .explain(|| format!("failed to limit what {} sends", port.name))?;
    }
    let (Some(name), Some(bucket)) = (ifb, &config.egress) else {
        return Ok(None);
    };
    host.create_ifb(name, port.mtu)
        .explain(|| "failed to create ifb device".to_owned())?;
    let ifb = host.link_by_name(name).explain(|| "get ifb device".to_owned())?;
    host.shape(&ifb, bucket)
        .explain(|| format!("failed to limit what {name} sends"))?;
    redirect(host, port, &ifb).explain(|| format!("failed to redirect what {} receives", port.name))?;
    Ok(Some(ifb))
}

/// Redirects the frames that the host's end receives. A redirection to a link that is gone is replaced.
fn redirect(host: &mut Socket, port: &Link, ifb: &Link) -> linux::Result<()> {
    match host.redirect_received(port, ifb.index) {
        Err(error) if error.is_exists() => {
            end_redirection(host, port, 0)?;
            host.redirect_received(port, ifb.index)
        }
        redirected => redirected,
    }
}

/// Ends the redirection to link `to`, to one that is gone, or by an ADD that was killed before it had its filter.
fn end_redirection(host: &mut Socket, port: &Link, to: u32) -> linux::Result<()> {
    match host.redirected_to(port)? {
        Some(link) if link == to || link == 0 => host.keep_received(port),
        None if !host.has_filters(port)? => {
            // Mostly nothing is there. The kernel refuses to remove what another plugin put there for its own use.
            let _ = host.keep_received(port);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The first name that no link has.
fn free_name<'a>(host: &mut Socket, names: &'a [String; 2]) -> Result<&'a str, Error> {
    for name in names {
        let taken = host
            .find_link(name)
            .explain(|| "failed to create ifb device".to_owned())?;
        if taken.is_none() {
            return Ok(name);
        }
    }
    Err(Error::internal(format!(
        "failed to create ifb device: {} and {} are taken",
        names[0], names[1]
    )))
}

fn take_back(host: &mut Socket, taken: &Taken<Step>) -> Result<(), Error> {
    for Step::Shape { port, index, ifb } in &taken.steps {
        let there = host
            .find_link(port)
            .explain(|| format!("failed to lookup \"{port}\""))?;
        if let Some(link) = there.filter(|link| link.index == *index) {
            match unlimit(host, &link, ifb.as_deref()) {
                Err(error) if error.is_not_found() => {}
                ended => ended.explain(|| format!("failed to end the limits of {port}"))?,
            }
        }
        if let Some(name) = ifb {
            delete_ifb(host, name)?;
        }
    }
    Ok(())
}

/// Ends the limits of the host's end. Another plugin may have redirected its received frames since.
fn unlimit(host: &mut Socket, port: &Link, ifb: Option<&str>) -> linux::Result<()> {
    host.unshape(port)?;
    let Some(name) = ifb else { return Ok(()) };
    let ours = host.find_link(name)?.map_or(0, |ifb| ifb.index);
    end_redirection(host, port, ours)
}

/// Removes what an established plugin made, or an ADD whose record is lost. Links on record of
/// another attachment of the container stay.
fn delete_unrecorded(
    call: &Call,
    records: &Records,
    key: &AttachmentId,
    host: &mut Socket,
) -> Result<(), Error> {
    let names = ifb_names(key.to(call.config.name()));
    let mut recorded = Vec::new();
    for other in records.keys()? {
        if other.container_id == key.container_id
            && let Some(taken) = records.taken::<Step>(&other)?
        {
            recorded.extend(taken.steps.into_iter().filter_map(|Step::Shape { ifb, .. }| ifb));
        }
    }
    for name in names.iter().filter(|name| !recorded.contains(name)) {
        delete_ifb(host, name)?;
    }
    Ok(())
}

fn delete_ifb(host: &mut Socket, name: &str) -> Result<(), Error> {
    match host.delete_link_by_name(name) {
        Err(error) if error.is_not_found() => Ok(()),
        deleted => deleted.explain(|| format!("failed to delete ifb device {name}")),
    }
}

/// The texts are the established plugin's.
fn compare(host: &mut Socket, link: &Link, wanted: &TokenBucket) -> Result<(), Error> {
    let found = host
        .bucket(link)
        .explain(|| format!("failed to list qdiscs of {}", link.name))?;
    let differs = match found {
        None => "Failed to find qdisc",
        Some(found) if found.rate != wanted.rate => "Rate doesn't match",
        Some(found) if found.limit != wanted.limit => "Limit doesn't match",
        Some(found) if found.buffer != wanted.buffer => "Buffer doesn't match",
        Some(_) => return Ok(()),
    };
    Err(Error::internal(differs).with_details(format!("of {}", link.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_the_established_one() {
        let attachment = Attachment {
            network: "mynet",
            container_id: "abc",
            ifname: "net1",
        };
        let [first, second] = ifb_names(attachment);
        assert_eq!(first, "bwpe88f49d94512");
        assert!(second.starts_with("bwp") && second.len() == 15 && second != first);
    }
}
