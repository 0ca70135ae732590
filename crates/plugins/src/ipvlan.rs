//! `ipvlan`: creates a link in the pod that shares the MAC of a host link (cni-plugins §15).

use cni::{
    Error,
    env::Verb,
    json,
    plugin::Call,
    result::{CniResult, Dns},
};
use linux::link::{IpVlanMode, IpVlanSharing, KindState, LinkKind};
use serde::Deserialize;

use crate::{
    attach::{Child, LinkPlugin, LinkRequest, Parent, mode, parent_status},
    config::read_config,
    messages::NO_SINGLE_INTERFACE,
    names::IPVLAN,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IpVlan;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    master: String,
    mode: String,
    mtu: i64,
    link_in_container: bool,
    dns: Dns,
}

impl LinkPlugin for IpVlan {
    fn name(&self) -> &'static str {
        IPVLAN
    }

    fn keys(&self) -> &'static [&'static str] {
        json::fields_of::<Wire>()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let wire: Wire = read_config(call)?;
        let mode = mode(IPVLAN, &wire.mode, IpVlanMode::L2)?;
        // In CHECK, `prevResult` is the plugin's own result.
        let previous = match call.request.verb {
            Verb::Add => call.config.prev_result()?,
            _ => None,
        };
        Ok(Box::new(Child {
            what: IPVLAN,
            kind: LinkKind::IpVlan {
                mode,
                sharing: IpVlanSharing::Bridge,
            },
            state: KindState::IpVlan(mode),
            state_name: "Container IPVlan mode",
            mac: None,
            parent: Parent {
                master: master(wire.master, previous.as_ref())?,
                in_container: wire.link_in_container,
                mtu: wire.mtu,
            },
            dns: wire.dns,
            announces: true,
            inherited: previous.filter(|previous| !previous.ips.is_empty()),
            ipam_failed: None,
        }))
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        parent_status(call)
    }
}

/// The parent: the configured link, else that of the previous plugin, else that of the default route.
fn master(named: String, previous: Option<&CniResult>) -> Result<String, Error> {
    match previous.map(|previous| previous.interfaces.as_slice()) {
        Some([only]) if named.is_empty() && !only.name.is_empty() => Ok(only.name.clone()),
        Some(_) if named.is_empty() => Err(Error::internal(NO_SINGLE_INTERFACE)),
        _ => Ok(named),
    }
}

#[cfg(test)]
mod tests {
    use cni::result::Interface;

    use super::*;

    #[test]
    fn the_master_is_named_or_the_only_one_of_the_plugin_before() {
        let result = |names: &[&str]| CniResult {
            interfaces: names
                .iter()
                .map(|name| Interface {
                    name: (*name).into(),
                    ..Interface::default()
                })
                .collect(),
            ..CniResult::default()
        };
        let of = |named: &str, previous: Option<&[&str]>| {
            let previous = previous.map(result);
            master(named.to_owned(), previous.as_ref()).map_err(|error| error.msg)
        };
        assert_eq!(of("", None), Ok(String::new()));
        assert_eq!(of("eth0", Some(&["a", "b"])), Ok("eth0".into()));
        assert_eq!(of("", Some(&["a"])), Ok("a".into()));
        for names in [&[][..], &["a", "b"], &[""]] {
            let text = "chained master failure. PrevResult lacks a single named interface";
            assert_eq!(of("", Some(names)), Err(text.into()));
        }
    }
}
