//! `tuning`: changes another plugin's interface, and sysctls of its namespace (cni-plugins §5).
//!
//! ```text
//! ADD   allow list ──> backup file ──> sysctls, mac, promisc, mtu, allmulti, txQLen ──> prevResult
//! DEL   backup file ──> restored values
//! GC    removes backup files of deleted namespaces
//! ```

mod allow;
mod backup;
mod config;
mod sysctl;

use std::path::Path;

use cni::{
    Error, Version,
    note::Level,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::{
    link::{Link, LinkChange},
    route::Socket,
};

use self::{
    backup::{Backup, Origin, Values},
    config::{Config, Settings},
};
use crate::{
    check,
    messages::Explain,
    names::{TUNING, TUNING_ALLOW_LIST},
    pod::Pod,
};

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Validates the config of an ADD, except for the node's list of permitted sysctls.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        TUNING
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let ifname = &call.request.ifname;
        let config = Config::read(call)?;
        allow::check(Path::new(TUNING_ALLOW_LIST), config.sysctls.keys())?;
        let sysctls = sysctl::resolve(&config.sysctls, ifname)?;
        let mut result = check::previous(call)?;
        // Fails before any change if the config's version cannot represent the result.
        result.to_json(call.version)?;
        let mut pod = Pod::open(call)?;
        let file = backup::path(&config.data_dir, &call.request.container_id, ifname);

        let before = pod.inside(|socket| observe(socket, ifname, &sysctls, &config.settings))?;
        let known = earlier_backup(call, &file, &pod);
        write_backup(call, &file, &pod, known.as_ref(), &before.values)?;
        let outcome = pod.inside(|socket| {
            sysctl::write(&sysctls)?;
            match &before.link {
                Some(link) => apply(socket, link, &config.settings),
                None => Ok(()),
            }
        });
        if let Err(error) = outcome {
            // Restores the previous values, because the namespace may have other users. ADD reports its
            // own error.
            let restored = pod
                .inside(|socket| Ok(restore(call, socket, &before.values)))
                .unwrap_or(false);
            if restored && known.is_none() {
                backup::forget(call, &file);
            }
            return Err(error);
        }
        update_result(&mut result, ifname, &config.settings, call.version);
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let file = backup::path(
            &config::data_dir(call),
            &call.request.container_id,
            &call.request.ifname,
        );
        let Some(mut backup) = backup::known(call, &file) else {
            return Ok(());
        };
        let allowed = Path::new(TUNING_ALLOW_LIST);
        allow::retain(allowed, &call.request.ifname, &mut backup.values.sysctl);
        let restored = match Pod::find_remaining(call) {
            // The changes ended with the namespace.
            Ok(None) => true,
            Ok(Some(pod)) if !backup.origin.is_of(&pod.ns) => true,
            Ok(Some(mut pod)) => pod
                .inside(|socket| Ok(restore(call, socket, &backup.values)))
                .unwrap_or(false),
            Err(error) => {
                call.note(Level::Error, error);
                false
            }
        };
        if restored {
            backup::forget(call, &file);
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let ifname = &call.request.ifname;
        let config = Config::read(call)?;
        check::previous(call)?;
        let sysctls = sysctl::resolve(&config.sysctls, ifname)?;
        let mut pod = Pod::open(call)?;
        pod.inside(|socket| {
            sysctl::check(&sysctls)?;
            let link = check::container_link(socket, ifname)?;
            verify(&config.settings, &link)
        })
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        backup::collect(call, &config::data_dir(call))
    }
}

/// The values before ADD.
struct Before {
    /// The interface, if the config changes it.
    link: Option<Link>,
    values: Values,
}

fn observe(
    socket: &mut Socket,
    ifname: &str,
    sysctls: &[sysctl::Setting],
    settings: &Settings,
) -> Result<Before, Error> {
    let link = if settings.is_empty() {
        None
    } else {
        Some(look_up(socket, ifname)?)
    };
    let mut values = link
        .as_ref()
        .map(|link| Values::of(settings, link))
        .unwrap_or_default();
    values.sysctl = sysctl::read(sysctls);
    Ok(Before { link, values })
}

/// The backup of an earlier ADD of this attachment, which has the original values.
fn earlier_backup(call: &Call, file: &Path, pod: &Pod) -> Option<Backup> {
    let known = backup::known(call, file)?;
    if known.origin.is_of(&pod.ns) {
        return Some(known);
    }
    // A deleted namespace with a reused container ID.
    backup::forget(call, file);
    None
}

/// Writes the backup. Must precede the changes.
fn write_backup(
    call: &Call,
    file: &Path,
    pod: &Pod,
    known: Option<&Backup>,
    before: &Values,
) -> Result<(), Error> {
    let values = match known {
        Some(known) => known.values.clone().or(before.clone()),
        None => before.clone(),
    };
    if values.is_empty() {
        return Ok(());
    }
    let backup = Backup {
        values,
        origin: Origin::of(call, pod),
    };
    if known == Some(&backup) {
        return Ok(());
    }
    backup::write(file, &backup)
}

fn look_up(socket: &mut Socket, ifname: &str) -> Result<Link, Error> {
    socket
        .link_by_name(ifname)
        .explain(|| format!("failed to get \"{ifname}\""))
}

/// Changes the link step by step, so that an error identifies the step.
fn apply(socket: &mut Socket, link: &Link, settings: &Settings) -> Result<(), Error> {
    let one = LinkChange::default;
    let ifname = &link.name;
    let mut change = |doing: &'static str, change: LinkChange<'_>| {
        socket
            .change_link(link, doing, &change)
            .explain(|| format!("failed to tune \"{ifname}\""))
    };
    if settings.mac.is_some() {
        change(
            "set MAC of link",
            LinkChange {
                mac: settings.mac,
                ..one()
            },
        )?;
    }
    // An explicit "false" only needs a change if the link is promiscuous.
    if settings.promisc.is_some_and(|on| on || link.is_promiscuous()) {
        change(
            "set promiscuous mode of link",
            LinkChange {
                promiscuous: settings.promisc,
                ..one()
            },
        )?;
    }
    if settings.mtu.is_some() {
        change(
            "set MTU of link",
            LinkChange {
                mtu: settings.mtu,
                ..one()
            },
        )?;
    }
    if settings.allmulti.is_some() {
        change(
            "set all-multicast mode of link",
            LinkChange {
                all_multicast: settings.allmulti,
                ..one()
            },
        )?;
    }
    if settings.tx_queue_len.is_some() {
        let length = settings.tx_queue_len;
        change(
            "set transmit queue length of link",
            LinkChange {
                tx_queue_len: length,
                ..one()
            },
        )?;
    }
    Ok(())
}

/// Adds the changed MAC and MTU to the result. Like upstream, sets the MAC of every interface with this name. Only
/// the pod's interface gets the MTU, and only since version 1.1.0.
fn update_result(result: &mut CniResult, ifname: &str, settings: &Settings, version: Version) {
    for interface in &mut result.interfaces {
        if interface.name != ifname {
            continue;
        }
        if let Some(mac) = settings.mac {
            interface.mac = Some(mac.to_string());
        }
        if settings.mtu.is_some() && interface.sandbox.is_some() && version >= Version::V1_1_0 {
            interface.mtu = settings.mtu;
        }
    }
}

/// Undoes the changes of ADD. `false` if some could not be undone. A missing link is no failure.
fn restore(call: &Call, socket: &mut Socket, before: &Values) -> bool {
    let mut good = sysctl::restore(call, &before.sysctl);
    let changes = before.changes();
    if changes.is_empty() {
        return good;
    }
    let link = match socket.find_link(&call.request.ifname) {
        Ok(Some(link)) => link,
        Ok(None) => return good,
        Err(error) => {
            call.note(Level::Error, error);
            return false;
        }
    };
    for change in changes {
        if let Err(error) = socket.change_link(&link, "restore link", &change) {
            call.note(Level::Error, error);
            good = false;
        }
    }
    good
}

/// Compares the link with the config.
fn verify(settings: &Settings, link: &Link) -> Result<(), Error> {
    let ifname = &link.name;
    let differs = |what: &str, wanted: &dyn std::fmt::Display, found: &dyn std::fmt::Display| {
        Err(Error::internal(format!(
            "Error: Tuning configured {what} of {ifname} is {wanted}, current value is {found}"
        )))
    };
    if let Some(wanted) = settings.mac.filter(|mac| link.mac != Some(*mac)) {
        let found = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        return differs("Ethernet", &wanted, &found);
    }
    let promisc = settings.promisc.unwrap_or_default();
    if promisc != link.is_promiscuous() {
        return Err(Error::internal(format!(
            "Error: Tuning link {ifname} configured promisc is {promisc}, current value is {}",
            link.promiscuity
        )));
    }
    if let Some(mtu) = settings.mtu.filter(|mtu| *mtu != link.mtu) {
        return differs("MTU", &mtu, &link.mtu);
    }
    if let Some(allmulti) = settings.allmulti.filter(|on| *on != link.is_all_multicast()) {
        return differs("all-multicast mode", &allmulti, &link.is_all_multicast());
    }
    if let Some(length) = settings
        .tx_queue_len
        .filter(|length| *length != link.tx_queue_len)
    {
        return differs("Transmit Queue Length", &length, &link.tx_queue_len);
    }
    Ok(())
}
