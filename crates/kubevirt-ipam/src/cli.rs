//! The command line for administrators: `weft ippool who`, `weft ippool usage`, and both as a plugin of kubectl.
//!
//! ```text
//! cluster ──> networks, claims ──> State, as the controller's ──> who, usage ──> text, exit code
//! ```
//!
//! The commands work without a running controller. Only `weft ippool release` writes, and only if no controller runs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::connection::{self, Answer, Flags};
use kube_kit::pages::Pages;
use kube_kit::watch::{DeserializeGuard, Name};
use kube_kit::{finalizers, object as kind};
use serde::de::DeserializeOwned;

use crate::messages::object;
use crate::names;
use crate::network::Network;
use crate::objects::{Claim, WireClaim, WireNetworkDefinition};
use crate::pool;

#[cfg(test)]
mod tests;

/// Exit code for a free address, and for a range that is nearly full.
const FAILURE: u8 = 1;
/// A healthy controller renews its Lease within this time.
const RENEWED: Duration = Duration::from_secs(6);
/// A range is nearly full at this percentage of used addresses.
const NEARLY_FULL: u128 = 90;

/// Shows the addresses that virtual machines keep.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show which claims have an address
    #[command(after_help = WHO_EXAMPLES)]
    Who(Who),
    /// Show how full the ranges of networks are
    #[command(after_help = USAGE_EXAMPLES)]
    Usage(Usage),
    /// Remove the finalizers of all claims, after the controller was removed
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(Release),
}

const RELEASE_EXAMPLES: &str = "\
Without a controller, the finalizer of a claim blocks the deletion of its virtual machine and its namespace.
The add-ons operator removes the finalizers by itself. A controller that is installed later adds them again.

Examples:
  weft ippool release

Exit code: 0 no claim has the finalizer, 1 a controller runs or a claim keeps it, 2 no answer.";

const WHO_EXAMPLES: &str = "\
Examples:
  weft ippool who 10.20.0.50
  weft ippool who fd00:20::50 --context production

Exit code: 0 a claim has the address, 1 no claim has it, 2 no answer.";

const USAGE_EXAMPLES: &str = "\
Examples:
  weft ippool usage

Exit code: 0 all ranges have room, 1 a range is nearly full, 2 no answer.";

/// Arguments of `weft ippool who`.
#[derive(Clone, Debug, ClapArgs)]
struct Who {
    /// The address
    #[arg(value_name = "IP")]
    ip: IpAddr,
    #[command(flatten)]
    cluster: Flags,
}

/// Arguments of `weft ippool usage`.
#[derive(Clone, Debug, ClapArgs)]
struct Usage {
    #[command(flatten)]
    cluster: Flags,
}

/// Arguments of `weft ippool release`.
#[derive(Clone, Debug, ClapArgs)]
struct Release {
    #[command(flatten)]
    cluster: Flags,
}

/// Computes the answer without printing it.
pub fn answer(args: Args) -> Answer {
    connection::answer(asked(args.question))
}

async fn asked(question: Question) -> Result<Answer, connection::Error> {
    match question {
        Question::Who(Who { ip, cluster }) => Ok(who(ip, &claims(&cluster).await?)),
        Question::Release(Release { cluster }) => release(&connection::connect(&cluster).await?).await,
        Question::Usage(Usage { cluster }) => {
            let client = connection::connect(&cluster).await?;
            let networks = all::<WireNetworkDefinition>(&client, "NetworkAttachmentDefinitions").await?;
            let networks = networks
                .into_iter()
                .map(|wire| Network::read(Name::of(&wire.metadata), wire.config()));
            Ok(usage(&networks.collect::<Vec<_>>(), &claims(&cluster).await?))
        }
    }
}

/// Removes our finalizer from all claims, unless a controller runs. A running controller would add the finalizers
/// again, or lose addresses that are in use.
async fn release(client: &Client) -> Result<Answer, connection::Error> {
    if let Some(lease) = controller(client).await? {
        return Ok(Answer {
            remarks: format!("error: a controller renews the Lease {lease:?}: remove the component first\n"),
            code: FAILURE,
            ..Answer::default()
        });
    }
    let removed = finalizers::remove(client, kind::IPAM_CLAIM, names::FINALIZER).await;
    let removed = removed.map_err(|error| connection::Error::of("IPAMClaims", &error))?;
    let mut answer = Answer {
        text: format!("IPAMClaims without the finalizer now: {}\n", removed.count),
        ..Answer::default()
    };
    for (claim, error) in &removed.failures {
        answer.code = FAILURE;
        let (claim, cause) = (object(claim), message(error));
        answer.remarks += &format!("error: IPAMClaim {claim:?} keeps its finalizer: {cause}\n");
    }
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    // The note is a help: users without the right to read webhook configurations do without it.
    if matches!(webhooks.get_opt(names::WEBHOOK).await, Ok(Some(_))) {
        answer.remarks += &format!(
            "note: the webhook configuration {:?} exists: if a controller runs without leader election, it adds the \
             finalizers again only at its next start\n",
            names::WEBHOOK
        );
    }
    Ok(answer)
}

/// The Lease that a running controller renews, if one exists. A renewal changes the Lease, so that no clocks are
/// compared.
async fn controller(client: &Client) -> Result<Option<String>, connection::Error> {
    let leases = || async {
        let parameters = ListParams::default().fields(&format!("metadata.name={}", names::LEASE));
        let listed = Api::<Lease>::all(client.clone()).list(&parameters).await;
        let listed = listed.map_err(|error| connection::Error::of("Leases", &error))?;
        let is_held = |lease: &Lease| {
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref());
            holder.is_some_and(|holder| !holder.is_empty())
        };
        Ok::<_, connection::Error>(listed.items.into_iter().filter(is_held).collect::<Vec<_>>())
    };
    let before = leases().await?;
    if before.is_empty() {
        return Ok(None);
    }
    tokio::time::sleep(RENEWED).await;
    let now = leases().await?;
    let is_renewed = |lease: &&Lease| {
        let version = &lease.metadata.resource_version;
        !before
            .iter()
            .any(|former| former.metadata.resource_version == *version)
    };
    let renewed = now.iter().find(is_renewed);
    Ok(renewed.map(|lease| object(&Name::of(&lease.metadata))))
}

async fn claims(cluster: &Flags) -> Result<Vec<(Name, Claim)>, connection::Error> {
    let client = connection::connect(cluster).await?;
    let claims = all::<WireClaim>(&client, "IPAMClaims").await?;
    let claims = claims
        .into_iter()
        .map(|wire| (Name::of(&wire.metadata), Claim::of(wire)));
    Ok(claims.collect())
}

/// All objects of a kind. Malformed objects are left out.
async fn all<K>(client: &Client, what: &str) -> Result<Vec<K>, connection::Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    let mut pages = Pages::new(api, ListParams::default());
    let mut found = Vec::new();
    loop {
        let page = pages.next().await;
        let Some(page) = page.map_err(|error| connection::Error::of(what, &error))? else {
            return Ok(found);
        };
        found.extend(page.into_iter().filter_map(|DeserializeGuard(item)| item.ok()));
    }
}

fn who(ip: IpAddr, claims: &[(Name, Claim)]) -> Answer {
    let has_it = |(_, claim): &&(Name, Claim)| pool::addresses_of(&claim.ips).any(|address| address == ip);
    let mut rows: Vec<_> = claims
        .iter()
        .filter(has_it)
        .map(|(id, claim)| {
            let machine = if claim.machine.is_empty() {
                "-"
            } else {
                &*claim.machine
            };
            let state = if claim.deleting { "being deleted" } else { "held" };
            [
                claim.network.to_string(),
                object(id),
                machine.to_owned(),
                state.to_owned(),
            ]
        })
        .collect();
    rows.sort();
    if rows.is_empty() {
        return Answer {
            text: format!("no IPAMClaim has {ip}\n"),
            code: FAILURE,
            ..Answer::default()
        };
    }
    Answer {
        text: program::table::table(["NETWORK", "IPAMCLAIM", "VIRTUAL MACHINE", "STATE"], &rows),
        ..Answer::default()
    }
}

fn usage(networks: &[Network], claims: &[(Name, Claim)]) -> Answer {
    // Networks with the same name share their addresses.
    let mut by_name: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for network in networks {
        if let Ok(config) = &network.config
            && config.allow_persistent_ips
            && !config.ranges.is_empty()
        {
            by_name
                .entry(&config.name)
                .or_default()
                .push((&network.id, config));
        }
    }
    let (mut rows, mut full) = (Vec::new(), false);
    for (name, definitions) in by_name {
        let of_network = claims.iter().filter(|(_, claim)| *claim.network == *name);
        let held: Vec<_> = of_network
            .flat_map(|(_, claim)| pool::addresses_of(&claim.ips))
            .collect();
        let mut listed = Vec::new();
        for (id, config) in definitions {
            for range in &config.ranges {
                if listed.contains(&range) {
                    continue;
                }
                listed.push(range);
                let size = range.size();
                let taken = held.iter().filter(|address| range.contains(**address)).count() as u128;
                full |= taken.saturating_mul(100) >= size.saturating_mul(NEARLY_FULL);
                rows.push([
                    name.to_owned(),
                    object(id),
                    range.subnet().to_string(),
                    size.to_string(),
                    taken.to_string(),
                    size.saturating_sub(taken).to_string(),
                ]);
            }
        }
    }
    if rows.is_empty() {
        return Answer {
            text: "no network has persistentIPRanges\n".to_owned(),
            ..Answer::default()
        };
    }
    let heads = ["NETWORK", "DEFINITION", "SUBNET", "ADDRESSES", "TAKEN", "FREE"];
    Answer {
        text: program::table::table(heads, &rows),
        remarks: if full {
            "note: a range is nearly full: widen it, or add another one to the network's persistentIPRanges\n"
                .to_owned()
        } else {
            String::new()
        },
        code: if full { FAILURE } else { 0 },
    }
}
