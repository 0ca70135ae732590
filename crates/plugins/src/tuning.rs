//! `tuning`: changes an interface that another plugin made, and settings of its namespace (cni-plugins §5).
//!
//! ```text
//! ADD   allow list ──> sysctls ──> backup file ──> mac, promisc, mtu, allmulti, txQLen ──> prevResult
//! DEL   backup file ──> what was before
//! ```

mod allow;
mod backup;
mod config;
mod sysctl;

use std::path::Path;

use cni::{
    Error,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::{
    link::{Link, LinkChange},
    route::Socket,
};

use self::{
    backup::Backup,
    config::{Config, Settings},
};
use crate::{
    check,
    messages::{Explain, note},
    names::{TUNING, TUNING_ALLOW_LIST},
    pod::Pod,
};

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
        let mut pod = Pod::open(call)?;
        let file = backup::path(&config.data_dir, &call.request.container_id, ifname);

        let mut before = Backup::default();
        let outcome = pod.inside(|socket| {
            sysctl::write(&sysctls, &mut before.sysctl)?;
            let link = if config.settings.is_empty() {
                None
            } else {
                Some(look_up(socket, ifname)?)
            };
            if let Some(link) = &link {
                before.remember(&config.settings, link);
            }
            if !before.is_empty() {
                backup::write(&file, &before)?;
            }
            match &link {
                Some(link) => apply(socket, link, &config.settings),
                None => Ok(()),
            }
        });
        if let Err(error) = outcome {
            // The namespace may be used by others: a chain that fails leaves it as it was, as far as that is possible.
            // The error of ADD stays the one that counts.
            let _ = pod.inside(|socket| {
                restore(socket, ifname, &before);
                Ok(())
            });
            let _ = backup::remove(&file);
            return Err(error);
        }
        if let Some(mac) = config.settings.mac {
            for interface in result
                .interfaces
                .iter_mut()
                .filter(|interface| interface.name == *ifname)
            {
                interface.mac = Some(mac.to_string());
            }
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let ifname = &call.request.ifname;
        let data_dir = config::data_dir(call);
        let file = backup::path(&data_dir, &call.request.container_id, ifname);
        let Some(backup) = backup::read(&file) else {
            return Ok(());
        };
        let restored = match Pod::find_remaining(call) {
            // With the namespace the changes are gone too.
            Ok(None) => true,
            Ok(Some(mut pod)) => pod
                .inside(|socket| Ok(restore(socket, ifname, &backup)))
                .unwrap_or(false),
            Err(error) => {
                note(&error.to_string());
                false
            }
        };
        if restored && let Err(error) = backup::remove(&file) {
            note(&format!("cannot remove {}: {error}", file.display()));
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
            let link = look_up(socket, ifname)?;
            verify(&config.settings, &link)
        })
    }
}

fn look_up(socket: &mut Socket, ifname: &str) -> Result<Link, Error> {
    socket
        .link_by_name(ifname)
        .explain(|| format!("failed to get \"{ifname}\""))
}

/// Changes the link, one thing after the other, so that an error says which one it was.
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
    // An explicit "false" is a wish too, but where nothing is promiscuous there is nothing to do.
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

/// Undoes what ADD did. `false` if something could not be undone; a link that is gone took it all along.
fn restore(socket: &mut Socket, ifname: &str, before: &Backup) -> bool {
    let mut good = sysctl::restore(&before.sysctl);
    let changes = before.changes();
    if changes.is_empty() {
        return good;
    }
    let link = match socket.find_link(ifname) {
        Ok(Some(link)) => link,
        Ok(None) => return good,
        Err(error) => {
            note(&error.to_string());
            return false;
        }
    };
    for change in changes {
        if let Err(error) = socket.change_link(&link, "restore link", &change) {
            note(&error.to_string());
            good = false;
        }
    }
    good
}

/// Whether the link is as the config says.
fn verify(settings: &Settings, link: &Link) -> Result<(), Error> {
    let ifname = &link.name;
    if let Some(wanted) = settings.mac
        && link.mac != Some(wanted)
    {
        let found = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        return Err(Error::internal(format!(
            "Error: Tuning configured Ethernet of {ifname} is {wanted}, current value is {found}"
        )));
    }
    let differs = |what: &str, wanted: &dyn std::fmt::Display, found: &dyn std::fmt::Display| {
        Err(Error::internal(format!(
            "Error: Tuning link {ifname} configured {what} is {wanted}, current value is {found}"
        )))
    };
    let promisc = settings.promisc.unwrap_or_default();
    if promisc != link.is_promiscuous() {
        return differs("promisc", &promisc, &link.promiscuity);
    }
    if let Some(mtu) = settings.mtu.filter(|mtu| *mtu != link.mtu) {
        return differs("MTU", &mtu, &link.mtu);
    }
    if let Some(allmulti) = settings.allmulti.filter(|on| *on != link.is_all_multicast()) {
        return differs("allmulti", &allmulti, &link.is_all_multicast());
    }
    if let Some(length) = settings
        .tx_queue_len
        .filter(|length| *length != link.tx_queue_len)
    {
        return differs("TxQLen", &length, &link.tx_queue_len);
    }
    Ok(())
}
