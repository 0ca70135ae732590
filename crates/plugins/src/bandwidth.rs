//! `bandwidth`: limits a pod's receive and send rates (cni-plugins §14).
//!
//! ```text
//! host: veth1a2b3c4d ═══ net1      sends at ingressRate: limits what the pod receives
//!          │ received
//!          └──> bwp0123456789ab    sends at egressRate: limits what the pod sends
//! ```
//!
//! A chained plugin: another plugin creates the pair. Limits of the host end are removed with it. The `bwp` link is
//! recorded.

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
    record::{Attachment, AttachmentId, Journal, RecordedSteps, Records, gc},
};

/// Maximum length of a link name.
const NAME_LENGTH: usize = 15;

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth;

/// A recorded step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// Limited the host end of the pair.
    Shape {
        /// The host end's name.
        port: String,
        /// The host end's index, because its name may be reused.
        index: u32,
        /// The link that sends the frames which the host end receives.
        ifb: Option<String>,
    },
}

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        BANDWIDTH
    }

    fn versions(&self) -> &'static [Version] {
        Version::V0_3_0.and_later()
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
        let mut journal = chained::begin(&records, &key, |recorded| undo_steps(&mut host, recorded))?;
        let names = ifb_names(key.to(call.config.name()));
        let limited = limit(&mut host, &config, &port, &names, &mut journal);
        let ifb = limited.inspect_err(|_| {
            // ADD reports its own error. Leftovers are recorded.
            if let Ok(Some(recorded)) = records.read::<Step>(&key)
                && undo_steps(&mut host, &recorded).is_ok()
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
        match records.read(&key)? {
            Some(recorded) => undo_steps(&mut host, &recorded)?,
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
            .collect(call, &valid, |_, recorded| undo_steps(&mut host, recorded))
            .map(drop)
    }
}

/// Upstream's name, and the alternative if another interface of the pod in the same network uses that name.
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

/// The host end of the pod's pair, which must be in the result.
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
        // The index may belong to another namespace.
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

/// Applies the configured limits. Returns the link created for egress.
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
    let ifb = host
        .create_ifb(name, port.mtu)
        .explain(|| "failed to create ifb device".to_owned())?;
    host.shape(&ifb, bucket)
        .explain(|| format!("failed to limit what {name} sends"))?;
    redirect(host, port, &ifb).explain(|| format!("failed to redirect what {} receives", port.name))?;
    Ok(Some(ifb))
}

/// Redirects the frames that the host end receives. Replaces a redirection to a deleted link.
fn redirect(host: &mut Socket, port: &Link, ifb: &Link) -> linux::Result<()> {
    match host.redirect_received(port, ifb.index) {
        Err(error) if error.is_exists() => {
            end_redirection(host, port, 0)?;
            host.redirect_received(port, ifb.index)
        }
        redirected => redirected,
    }
}

/// Removes a redirection to link `to` or to a deleted link, and an incomplete one of an interrupted ADD.
fn end_redirection(host: &mut Socket, port: &Link, to: u32) -> linux::Result<()> {
    match host.redirected_to(port)? {
        Some(link) if link == to || link == 0 => host.keep_received(port),
        None if !host.has_filters(port)? => {
            // Best effort: usually there is nothing to remove, and the kernel keeps a qdisc in use by another
            // plugin.
            let _ = host.keep_received(port);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The first unused name.
fn free_name<'a>(host: &mut Socket, names: &'a [String; 2]) -> Result<&'a str, Error> {
    for name in names {
        let recorded = host
            .find_link(name)
            .explain(|| "failed to create ifb device".to_owned())?;
        if recorded.is_none() {
            return Ok(name);
        }
    }
    Err(Error::internal(format!(
        "failed to create ifb device: {} and {} are taken",
        names[0], names[1]
    )))
}

fn undo_steps(host: &mut Socket, recorded: &RecordedSteps<Step>) -> Result<(), Error> {
    for Step::Shape { port, index, ifb } in &recorded.steps {
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

/// Removes the limits of the host end. Keeps a redirection by another plugin.
fn unlimit(host: &mut Socket, port: &Link, ifb: Option<&str>) -> linux::Result<()> {
    host.unshape(port)?;
    let Some(name) = ifb else { return Ok(()) };
    let ours = host.find_link(name)?.map_or(0, |ifb| ifb.index);
    end_redirection(host, port, ours)
}

/// Removes the links of an upstream plugin or of an ADD without a record. Keeps links in the records of the pod's
/// other attachments.
fn delete_unrecorded(
    call: &Call,
    records: &Records,
    key: &AttachmentId,
    host: &mut Socket,
) -> Result<(), Error> {
    let names = ifb_names(key.to(call.config.name()));
    let mut recorded_links = Vec::new();
    for other in records.keys()? {
        if other.container_id == key.container_id
            && let Some(recorded) = records.read::<Step>(&other)?
        {
            recorded_links.extend(
                recorded
                    .steps
                    .into_iter()
                    .filter_map(|Step::Shape { ifb, .. }| ifb),
            );
        }
    }
    for name in names.iter().filter(|name| !recorded_links.contains(name)) {
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

/// Compares a link's limit with the config. The error texts are upstream's.
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
    fn first_name_matches_upstream() {
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
