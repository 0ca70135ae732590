//! `dhcp`: an IPAM plugin that leases addresses from the network's DHCP server through a daemon on the node
//! (cni-plugins §8).
//!
//! ```text
//! config, CNI_ARGS ──> config ──> wire::Request ──unix socket──> daemon ──DHCP──> server
//! CniResult      <────────────── wire::Answer  <──────────────┘ maintains the lease until DEL
//! ```
//!
//! The daemon is `weft dhcp-daemon`.

mod client;
mod config;
pub mod wire;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use cni::{
    Error, Version,
    error::code,
    plugin::{Call, Plugin},
    result::CniResult,
};

use client::Failure;
use config::Config;
pub(crate) use config::{ipam_keys, validate};
use wire::{Answer, Attachment, Request, Valid};

use crate::{names::DHCP, record::gc::valid_attachments};

/// Timeout of ADD and CHECK: exceeds the daemon's default `-resendtimeout` plus one attempt.
const LEASE_TIMEOUT: Duration = Duration::from_secs(230);
/// Timeout of the other verbs, for which the daemon does not wait for a DHCP server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time reserved to return the answer before the deadline of a call within a daemon.
const RESERVE: Duration = Duration::from_secs(5);

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Dhcp;

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        DHCP
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        allocate(call)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let request = Request::Release(attachment(call));
        ask(call, &request, TIMEOUT)
            .map(drop)
            .map_err(|failure| error("DHCP.Release", &failure))
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        allocate(call).map(drop)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        Config::read(call)?;
        ask(call, &Request::Status, TIMEOUT)
            .map(drop)
            .map_err(|failure| Error::new(code::PLUGIN_NOT_AVAILABLE, error("DHCP.Status", &failure).msg))
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(attachments) = valid_attachments(call)? else {
            return Ok(());
        };
        let request = Request::Gc(Valid {
            network: call.config.name().to_owned(),
            attachments,
        });
        ask(call, &request, TIMEOUT)
            .map(drop)
            .map_err(|failure| error("DHCP.GC", &failure))
    }
}

/// Requests a lease for the attachment. The daemon returns an existing lease.
fn allocate(call: &Call) -> Result<CniResult, Error> {
    let config = Config::read(call)?;
    // The namespace is mandatory for ADD and CHECK.
    let netns = call.request.netns.as_deref().unwrap_or(Path::new(""));
    let netns = std::path::absolute(netns).map_err(|error| {
        Error::internal(format!("failed to make {:?} absolute: {error}", netns.display()))
    })?;
    let request = Request::Allocate(config.allocation(attachment(call), netns));
    let failed = |failure: &Failure| error("DHCP.Allocate", failure);
    let answer = ask(call, &request, LEASE_TIMEOUT).map_err(|failure| failed(&failure))?;
    let Answer::Lease(result) = answer else {
        return Err(failed(&Failure::Refused("the answer has no lease".to_owned())));
    };
    CniResult::parse(result.to_string().as_bytes(), Version::LATEST)
}

fn ask(call: &Call, request: &Request, timeout: Duration) -> Result<Answer, Failure> {
    let mut deadline = Instant::now() + timeout;
    if let Some(resident) = &call.resident {
        deadline = deadline.min(
            resident
                .deadline
                .checked_sub(RESERVE)
                .unwrap_or(resident.deadline),
        );
    }
    client::ask(&config::socket(call), request, deadline)
}

fn attachment(call: &Call) -> Attachment {
    Attachment {
        container: call.request.container_id.clone(),
        network: call.config.name().to_owned(),
        ifname: call.request.ifname.clone(),
    }
}

fn error(method: &str, failure: &Failure) -> Error {
    Error::internal(match failure {
        Failure::Unreachable(error) => format!("error dialing DHCP daemon: {error}"),
        Failure::Broken(error) => format!("error calling {method}: {error}"),
        Failure::Refused(text) => format!("error calling {method}: {text}"),
    })
}
