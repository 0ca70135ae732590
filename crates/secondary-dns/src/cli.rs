//! The command line for administrators: `weft dns lookup`, `weft dns records`, and both as a plugin of kubectl.
//!
//! ```text
//! cluster ──> instances, settings ──> Model ──> what is answered, and why not ──> text, exit code
//! ```
//!
//! The output is a server's answer, computed by the server's code from the same objects. The server need not run, and
//! the commands write nothing to the cluster.

use std::collections::BTreeMap;

use clap::{Args as ClapArgs, Subcommand};
use hickory_proto::rr::{Name, RData};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container};
use kube::api::ListParams;
use kube::{Api, Client};
use kube_kit::connection::{self, Answer, Flags};
use kube_kit::pages::Pages;
use program::table::table;

use crate::claims;
use crate::configuration::KEYS;
use crate::launchers::{self, Launchers};
use crate::model::{Model, key};
use crate::names::{self, env};
use crate::settings::{Invalid, Settings};
use crate::vmi::{Refused, Vmi};
use crate::zone::{Found, Owner, Zone, Zones};

/// Shows the names of virtual machines on secondary networks.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Explain the answers for a name
    #[command(after_help = LOOKUP_EXAMPLES)]
    Lookup(Lookup),
    /// Show all names that have an address
    #[command(after_help = RECORDS_EXAMPLES)]
    Records(Records),
}

const LOOKUP_EXAMPLES: &str = "\
Examples:
  weft dns lookup nic1.my-vm.my-namespace.vm
  weft dns lookup my-vm.my-namespace.vm.example.com --context production

Exit code: 0 the name has a record, 1 the name has none, 2 no answer.";

const RECORDS_EXAMPLES: &str = "\
Examples:
  weft dns records
  weft dns records -n my-namespace

Exit code: 0 there are names, 1 there are none, 2 no answer.";

/// Arguments of `weft dns lookup`.
#[derive(Clone, Debug, ClapArgs)]
struct Lookup {
    /// The whole name, such as nic1.my-vm.my-namespace.vm
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    cluster: Flags,
}

/// Arguments of `weft dns records`.
#[derive(Clone, Debug, ClapArgs)]
struct Records {
    /// Namespace of the virtual machines [default: all]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Flags,
}

/// The cause of a failed command. The texts contain advice.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error("{0:?} is not a DNS name\nWrite it as nic1.my-vm.my-namespace.vm.")]
    Name(String),
    #[error("there is no KubeVirt in this cluster, and no virtual machine that could have a name")]
    NoKubevirt,
    #[error("there is a secondary DNS in each of the namespaces {}: remove all but one", .0.join(", "))]
    Several(Vec<String>),
    #[error("the secondary DNS of namespace {namespace} cannot run: {cause}")]
    Settings { namespace: String, cause: Invalid },
}

/// Computes the answer without printing it.
pub fn answer(args: Args) -> Answer {
    connection::answer(async {
        match args.question {
            Question::Lookup(args) => lookup(&args).await,
            Question::Records(args) => records(&args).await,
        }
    })
}

async fn lookup(args: &Lookup) -> Result<Answer, Error> {
    let no_name = || Error::Name(args.name.clone());
    let mut name = Name::from_ascii(&args.name).map_err(|_| no_name())?;
    if args.name.is_empty() {
        return Err(no_name());
    }
    name.set_fqdn(true);
    let client = connection::connect(&args.cluster).await?;
    let known = Known::read(&client).await?;
    let (text, is_found) = known.look_up(&name.to_lowercase());
    Ok(Answer::new(text, &known.notes, is_found))
}

async fn records(args: &Records) -> Result<Answer, Error> {
    let client = connection::connect(&args.cluster).await?;
    let known = Known::read(&client).await?;
    let rows = known.rows(args.namespace.as_deref());
    let text = if rows.is_empty() {
        "there are no records\n".to_owned()
    } else {
        table(["NAME", "TYPE", "ADDRESS"], &rows)
    };
    Ok(Answer::new(text, &known.notes, !rows.is_empty()))
}

/// The knowledge of a server.
struct Known {
    model: Model,
    /// By namespace and name: owners of records, and the unpublished parts with their reasons.
    instances: BTreeMap<(String, String), (Vec<String>, Vec<Refused>)>,
    notes: Vec<String>,
}

impl Known {
    async fn read(client: &Client) -> Result<Self, Error> {
        let (settings, notes) = settings(client).await?;
        let mut known = Self {
            model: Model::new(settings.header, 0),
            instances: BTreeMap::new(),
            notes,
        };
        known
            .notes
            .extend(settings.complaint.map(|complaint| complaint.to_string()));
        let claimed = if settings.early.claims {
            claims::list(client).await?
        } else {
            BTreeMap::new()
        };
        let launchers = if settings.early.network_status {
            launchers::list(client).await?
        } else {
            Launchers::default()
        };
        let api: Api<Vmi> = Api::all(client.clone());
        let mut pages = Pages::new(api, ListParams::default());
        loop {
            let page = match pages.next().await {
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(Error::NoKubevirt),
                page => page.map_err(|error| connection::Error::of("virtual machine instances", &error))?,
            };
            let Some(page) = page else { return Ok(known) };
            for vmi in &page {
                let (namespace, name) = vmi.name();
                let early = |network: &str| {
                    let claim = claimed.get(&claims::claim_of(vmi, network));
                    claims::early(claim, &launchers, vmi, network)
                };
                let published = vmi.publish_with(&settings.policy, early);
                let owners = published.records.iter().map(|record| record.owner.to_string());
                let of = (namespace.to_owned(), name.to_owned());
                known.instances.insert(of, (owners.collect(), published.refused));
                known.model.set(&key(namespace, name), published.records);
            }
        }
    }

    /// The answer for a name, and whether the name has a record.
    fn look_up(&self, name: &Name) -> (String, bool) {
        let mut zones = Zones::default();
        for zone in self.model.zones() {
            zones.put(zone);
        }
        let at = name.to_ascii();
        let zone = match zones.owner(name) {
            Owner::Zone(zone) => zone,
            Owner::Unloaded | Owner::Elsewhere => {
                let origins = self.model.origins().map(|origin| origin.to_ascii());
                let origins: Vec<String> = origins.collect();
                return (
                    format!("{at} is not in the zone {}: REFUSED\n", origins.join(", ")),
                    false,
                );
            }
        };
        match zone.find(name) {
            Some(Found::Records(entries)) if !entries.is_empty() || name == zone.origin() => {
                let data = entries.iter().map(|entry| entry.data.to_rdata());
                let soa = (name == zone.origin()).then(|| RData::SOA(zone.soa().clone()));
                let line = |data: RData| format!("{at} has {} {data}\n", data.record_type());
                (soa.into_iter().chain(data).map(line).collect(), true)
            }
            Some(Found::Missing) | None => {
                let why = self.why(zone, name);
                (format!("{at} does not exist: NXDOMAIN\n{why}"), false)
            }
            Some(Found::Between | Found::Records(_)) => {
                let text =
                    format!("{at} has no record, only names below it have some: NOERROR without an answer\n");
                (text, false)
            }
        }
    }

    /// The reason why an instance with a similar name has no record.
    fn why(&self, zone: &Zone, name: &Name) -> String {
        let labels: Vec<String> = name
            .iter()
            .take(usize::from(
                name.num_labels().saturating_sub(zone.origin().num_labels()),
            ))
            .map(|label| String::from_utf8_lossy(label).into_owned())
            .collect();
        let [instance @ .., namespace] = labels.as_slice() else {
            return String::new();
        };
        if zone.origin() != &self.model.origins().next().unwrap_or_default() || instance.is_empty() {
            return String::new();
        }
        let mut lines = String::new();
        for first in 0..instance.len() {
            let name = instance[first..].join(".");
            let Some((owners, refused)) = self.instances.get(&(namespace.clone(), name.clone())) else {
                continue;
            };
            for refused in refused {
                lines.push_str(&format!("\ninstance {namespace}/{name}: {refused}"));
            }
            if refused.is_empty() && owners.is_empty() {
                lines.push_str(&format!("\ninstance {namespace}/{name} reports no interface"));
            } else if refused.is_empty() {
                let owners = owners.join(", ");
                lines.push_str(&format!("\ninstance {namespace}/{name} has the names {owners}"));
            }
        }
        if lines.is_empty() {
            let name = instance[instance.len().saturating_sub(1).min(1)..].join(".");
            lines = format!("\nthere is no instance {name:?} in namespace {namespace:?}");
        }
        format!("{lines}\n")
    }

    /// Name, type and address of all records, or of the records of one namespace.
    fn rows(&self, namespace: Option<&str>) -> Vec<[String; 3]> {
        let zone = &self.model.header().zone;
        let wanted = |of: &str| namespace.is_none_or(|namespace| namespace == of);
        let records = self.model.records().filter(|(of, _)| wanted(of));
        let row = |(_, record): (&str, &crate::vmi::Record)| {
            let kind = if record.address.is_ipv4() { "A" } else { "AAAA" };
            [
                format!("{}.{zone}.", record.owner),
                kind.to_owned(),
                record.address.to_string(),
            ]
        };
        records.map(row).collect()
    }
}

/// Settings of the deployed secondary DNS in any namespace, and remarks about them.
async fn settings(client: &Client) -> Result<(Settings, Vec<String>), Error> {
    let named = ListParams::default().fields(&format!("metadata.name={}", names::CONFIG_MAP));
    let maps: Api<ConfigMap> = Api::all(client.clone());
    let maps = maps.list(&named).await;
    let maps = maps.map_err(|error| connection::Error::of("the settings of the secondary DNS", &error))?;
    let mut maps = maps.items;
    if maps.len() > 1 {
        let namespaces = maps.into_iter().filter_map(|map| map.metadata.namespace);
        return Err(Error::Several(namespaces.collect()));
    }
    let mut notes = Vec::new();
    let map = maps.pop();
    if map.is_none() {
        notes.push(NOT_INSTALLED.to_owned());
    }
    let map = map.unwrap_or_default();
    let namespace = map.metadata.namespace.unwrap_or_default();
    let map = map.data.unwrap_or_default();
    let mut deployment = None;
    if !namespace.is_empty() {
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let found = api.get_opt(names::DEPLOYMENT).await;
        deployment =
            found.map_err(|error| connection::Error::of("the Deployment of the secondary DNS", &error))?;
    }
    let variables = variables(map, deployment);
    let settings = Settings::read(|name| variables.get(name).cloned());
    let settings = settings.map_err(|cause| Error::Settings { namespace, cause })?;
    Ok((settings, notes))
}

const NOT_INSTALLED: &str =
    "there is no secondary DNS in this cluster: the output shows the answers of one without a domain";

/// The settings as the server in the Deployment finds them. Without a Deployment, they are those of upstream's.
fn variables(mut map: BTreeMap<String, String>, deployment: Option<Deployment>) -> BTreeMap<String, String> {
    let Some(deployment) = deployment else {
        map.retain(|key, _| [env::DOMAIN, env::NAME_SERVER_IP].contains(&key.as_str()));
        return map;
    };
    let spec = deployment.spec.and_then(|spec| spec.template.spec);
    let containers = spec.map(|spec| spec.containers).unwrap_or_default();
    let mut variables = BTreeMap::new();
    for variable in containers
        .iter()
        .flat_map(|container| container.env.iter().flatten())
    {
        let source = variable.value_from.as_ref();
        let key = source.and_then(|source| source.config_map_key_ref.as_ref());
        let referred = key
            .filter(|key| key.name == names::CONFIG_MAP)
            .and_then(|key| map.get(&key.key));
        if let Some(value) = variable.value.as_ref().or(referred) {
            variables.insert(variable.name.clone(), value.clone());
        }
    }
    if containers.iter().any(follows_settings) {
        map.retain(|key, _| KEYS.contains(&key.as_str()));
        variables.append(&mut map);
    }
    variables
}

/// Whether a container has the flag `--config`, also in Go's style.
fn follows_settings(container: &Container) -> bool {
    let mut arguments = container.command.iter().chain(&container.args).flatten();
    arguments.any(|argument| {
        let flag = argument.split('=').next().unwrap_or_default();
        flag == "--config" || flag == "-config"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Domain, TTL, prefixes and IPv6 of a server with these arguments.
    fn found(arguments: &[&str]) -> [Option<String>; 4] {
        let map = [
            ("DOMAIN", "map"),
            ("KSD_TTL", "60"),
            ("KSD_ALLOWED_PREFIXES", "192.168.0.0/16"),
            ("KSD_IPV6", "off"),
        ];
        let map = map.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let deployment = json!({ "spec": {
            "selector": {},
            "template": { "spec": { "containers": [
                { "name": "server", "args": ["-conf", "/etc/Corefile"] },
                { "name": "monitor", "args": arguments, "env": [
                    { "name": "DOMAIN", "valueFrom": {
                        "configMapKeyRef": { "name": "secondary-dns", "key": "DOMAIN" } } },
                    { "name": "NAME_SERVER_IP", "valueFrom": {
                        "configMapKeyRef": { "name": "secondary-dns", "key": "NAME_SERVER_IP" } } },
                    { "name": "KSD_ALLOWED_PREFIXES", "value": "10.0.0.0/8" },
                ] },
            ] } },
        } });
        let deployment = serde_json::from_value(deployment).expect("a Deployment");
        let variables = variables(BTreeMap::from(map), Some(deployment));
        [env::DOMAIN, env::TTL, env::ALLOWED, env::IPV6].map(|name| variables.get(name).cloned())
    }

    #[test]
    fn settings_have_the_precedence_of_the_server() {
        let text = |text: &str| Some(text.to_owned());
        // The server knows what its variables refer to.
        let expected = [text("map"), None, text("10.0.0.0/8"), None];
        assert_eq!(found(&["monitor"]), expected);
        // The keys that the server follows count before its variables.
        let expected = [text("map"), text("60"), text("192.168.0.0/16"), None];
        assert_eq!(found(&["monitor", "--config", "/settings"]), expected);
        assert_eq!(found(&["-config=/settings"]), expected);
    }
}
