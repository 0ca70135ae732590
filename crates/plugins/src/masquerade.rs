//! Masquerading, to come.
#![allow(dead_code, clippy::unnecessary_wraps, reason = "to come")]
use cni::Error;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Backend {
    Nftables,
    Iptables,
}
#[derive(Clone, Copy)]
pub(crate) struct Attachment<'a> {
    pub(crate) network: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) container_id: &'a str,
}
pub(crate) fn set_up(_: Backend, _: Attachment<'_>, _: &[IpNet]) -> Result<(), Error> {
    Err(Error::internal("stub"))
}
pub(crate) fn tear_down(_: Attachment<'_>, _: Option<(Backend, &[IpNet])>) -> Result<(), Error> {
    Ok(())
}
pub(crate) fn check(_: Backend, _: Attachment<'_>, _: &[IpNet]) -> Result<(), Error> {
    Ok(())
}
pub(crate) fn collect(_: &str, _: &std::collections::BTreeSet<crate::record::Key>) -> Result<(), Error> {
    Ok(())
}
impl Backend {
    /// The backend of `ipMasqBackend`; nftables unless the config says otherwise.
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        match name {
            "" | "nftables" => Ok(Backend::Nftables),
            "iptables" => Ok(Backend::Iptables),
            other => Err(Error::internal(format!("unknown ipmasq backend \"{other}\""))),
        }
    }
}
