//! Events of NetworkManager: configurations, name servers, LLDP neighbours.

use std::collections::HashMap;
use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use zbus::zvariant::Value;
use zbus::{Connection, MatchRule, Message, MessageStream, connection};

/// NetworkManager's name on the bus.
const NETWORK_MANAGER: &str = "org.freedesktop.NetworkManager";
/// Interface and signal of the bus about changed owners of names.
const BUS: (&str, &str) = ("org.freedesktop.DBus", "NameOwnerChanged");
/// Signal about changed properties; its first argument is their interface.
const PROPERTIES_CHANGED: &str = "PropertiesChanged";
/// Interfaces whose properties change frequently and are not reported.
const NOISY: [&str; 5] = [
    "org.freedesktop.NetworkManager.AccessPoint",
    "org.freedesktop.NetworkManager.Checkpoint",
    "org.freedesktop.NetworkManager.Device.Statistics",
    "org.freedesktop.NetworkManager.Device.Wireless",
    "org.freedesktop.NetworkManager.WifiP2PPeer",
];

/// A connection to the bus of NetworkManager.
pub struct Bus {
    signals: Pin<Box<dyn Stream<Item = zbus::Result<Message>> + Send>>,
}

/// An event of the bus.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// Something may have changed.
    Changed,
    /// NetworkManager started.
    Started,
}

/// The connection ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to the bus ended")]
pub(super) struct Ended;

impl Bus {
    /// Connects to the bus at this address, or to the system bus.
    ///
    /// # Errors
    /// If there is no bus, or it refuses. NetworkManager need not run.
    pub async fn open(address: Option<&str>) -> zbus::Result<Self> {
        let connection = match address {
            Some(address) => connection::Builder::address(address)?.build().await?,
            None => Connection::system().await?,
        };
        let from = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(NETWORK_MANAGER)?
            .build();
        let (interface, member) = BUS;
        let owner = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(interface)?
            .interface(interface)?
            .member(member)?
            .arg(0, NETWORK_MANAGER)?
            .build();
        let signals = MessageStream::for_match_rule(from, &connection, None).await?;
        let owners = MessageStream::for_match_rule(owner, &connection, None).await?;
        Ok(Self {
            signals: Box::pin(futures::stream::select(signals, owners)),
        })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// If the connection ends.
    pub async fn changed(&mut self) -> anyhow::Result<Event> {
        loop {
            let message = self.signals.next().await.ok_or(Ended)??;
            if is_start(&message) {
                return Ok(Event::Started);
            }
            if is_change(&message) {
                return Ok(Event::Changed);
            }
        }
    }
}

/// Whether a signal reports that NetworkManager acquired its name.
fn is_start(message: &Message) -> bool {
    let header = message.header();
    let (interface, member) = BUS;
    let is_about_owners = header.interface().is_some_and(|name| name.as_str() == interface)
        && header.member().is_some_and(|name| name.as_str() == member);
    if !is_about_owners {
        return false;
    }
    let body = message.body();
    // Name, old owner, new owner.
    let change = body.deserialize::<(&str, &str, &str)>();
    change.is_ok_and(|(name, _, now)| name == NETWORK_MANAGER && !now.is_empty())
}

/// Whether a signal concerns something that reports include.
fn is_change(message: &Message) -> bool {
    let header = message.header();
    let interface = header.interface().map(|name| name.as_str().to_owned());
    let is_properties = header
        .member()
        .is_some_and(|member| member.as_str() == PROPERTIES_CHANGED);
    let about = if is_properties {
        let body = message.body();
        let about = body.deserialize::<(&str, HashMap<&str, Value<'_>>, Vec<&str>)>();
        about.ok().map(|(about, _, _)| about.to_owned()).or(interface)
    } else {
        interface
    };
    !about.is_some_and(|about| NOISY.contains(&about.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(about: &str) -> Message {
        let changed: HashMap<&str, Value<'_>> = HashMap::from([("RxBytes", Value::from(1_u64))]);
        Message::signal(
            "/org/freedesktop/NetworkManager/Devices/1",
            "org.freedesktop.DBus.Properties",
            PROPERTIES_CHANGED,
        )
        .expect("a signal")
        .build(&(about, changed, Vec::<String>::new()))
        .expect("a message")
    }

    #[test]
    fn noisy_signals_are_ignored() {
        assert!(!is_change(&properties(
            "org.freedesktop.NetworkManager.Device.Statistics"
        )));
        assert!(!is_change(&properties(
            "org.freedesktop.NetworkManager.AccessPoint"
        )));
        assert!(is_change(&properties(
            "org.freedesktop.NetworkManager.DnsManager"
        )));
        assert!(is_change(&properties("org.freedesktop.NetworkManager.Device")));
        let added = Message::signal("/org/freedesktop/NetworkManager", NETWORK_MANAGER, "DeviceAdded")
            .expect("a signal")
            .build(&())
            .expect("a message");
        assert!(is_change(&added));
    }

    // nmstate#112
    #[test]
    fn new_owner_of_the_name_is_a_start() {
        let owners = |before: &str, now: &str| {
            let (interface, member) = BUS;
            Message::signal("/org/freedesktop/DBus", interface, member)
                .expect("a signal")
                .build(&(NETWORK_MANAGER, before, now))
                .expect("a message")
        };
        assert!(is_start(&owners("", ":1.9")));
        assert!(!is_start(&owners(":1.7", "")));
        assert!(is_change(&owners(":1.7", "")), "but a change");
        assert!(!is_start(&properties("org.freedesktop.NetworkManager.Device")));
    }
}
