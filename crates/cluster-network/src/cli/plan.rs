//! `weft network plan`: the changes that a configuration would cause, and the unsafe ones among them.

use std::collections::BTreeSet;

use api::cluster_network::{config, operator};
use kube_kit::{
    apply::Applier,
    cache::{Cache, Lookup},
    connection::{self, Answer, Flags},
    merge::{Policy, cover},
    object::{self, ObjectId},
};
use serde_json::Value;

use super::{Error, named, observe, operator_id, settings};
use crate::{
    cluster_config, controller,
    facts::{ApiServer, Facts},
    messages, names, observe as observed,
    plan::{Input, Plan},
    render::Part,
    settings::Settings,
    watches,
};

/// Last text of `weft network plan --help`.
const EXAMPLES: &str = "\
The file holds a Network of config.openshift.io/v1, one of
operator.openshift.io/v1, or both. The cluster supplies the other one. Marks show
the effect on each object: + created, ~ changed, - deleted, ! not applied.
Offline, the command lists all objects. It writes nothing.

Examples:
  weft network plan -f network.yaml
  weft network plan -f network.yaml --offline

Exit code: 0 no changes, 1 changes or a rejected configuration, 2 no answer.";

/// Arguments of `weft network plan`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File with the configuration; - is standard input
    #[arg(short, long, value_name = "FILE")]
    filename: String,
    /// Plan for a new cluster, without access to one
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    cluster: Flags,
}

/// Runs the command. The caller prints the answer.
pub fn answer(args: &Args) -> Answer {
    connection::answer(async {
        let given = Given::read(&args.filename)?;
        if args.offline {
            let facts = Facts {
                host_mtu: Some(1500),
                api_server: ApiServer {
                    host: "localhost".to_owned(),
                    port: "6443".to_owned(),
                },
                ..Facts::default()
            };
            return Ok::<_, Error>(given.offline(&facts, &settings(None)));
        }
        let client = connection::connect(&args.cluster).await?;
        let applier = Applier::new(client.clone(), Policy::owned_by("Network"));
        let deployment = applier.get(&operator_id()).await;
        let deployment = deployment.map_err(|error| Error::Unreadable(error.to_string()))?;
        let settings = settings(deployment.as_ref());
        let cache = observe(&client, &settings).await?;
        let api_server = controller::api_server(&client, &settings).await;
        given.against(&applier, &cache, &api_server, &settings).await
    })
}

/// Configurations in the file.
#[derive(Debug, Default)]
struct Given {
    cluster: Option<config::NetworkSpec>,
    operator: Option<operator::NetworkSpec>,
}

impl Given {
    fn read(file: &str) -> Result<Self, Error> {
        let unreadable = |cause: String| Error::File {
            file: file.to_owned(),
            cause,
        };
        let text = if file == "-" {
            std::io::read_to_string(std::io::stdin())
        } else {
            std::fs::read_to_string(file)
        };
        let text = text.map_err(|error| unreadable(error.to_string()))?;
        Self::parse(&text)
            .map_err(unreadable)?
            .ok_or_else(|| Error::NoNetwork(file.to_owned()))
    }

    /// Parses a stream of YAML. `None` without a Network.
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
        let mut given = Self::default();
        for document in documents.iter().filter(|document| document["kind"] == "Network") {
            let spec = document
                .get("spec")
                .cloned()
                .unwrap_or_else(|| Value::Object(serde_json::Map::new()));
            let wrong = |error: serde_json::Error| format!("Network of {}: {error}", document["apiVersion"]);
            match document["apiVersion"].as_str() {
                Some("config.openshift.io/v1") => {
                    given.cluster = Some(serde_json::from_value(spec).map_err(wrong)?);
                }
                Some("operator.openshift.io/v1") => {
                    given.operator = Some(serde_json::from_value(spec).map_err(wrong)?);
                }
                _ => {}
            }
        }
        Ok((given.cluster.is_some() || given.operator.is_some()).then_some(given))
    }

    /// The plan, or the message of the rejection.
    fn plan(
        &self,
        previous: Option<&operator::NetworkSpec>,
        facts: &Facts,
        settings: &Settings,
    ) -> Result<Plan, String> {
        let mut spec = self.operator.clone().unwrap_or_default();
        if let Some(cluster) = &self.cluster {
            cluster_config::validate(cluster, facts)
                .map_err(|error| messages::invalid_cluster_config(&error))?;
            cluster_config::merge(cluster, &mut spec);
        }
        let diagnostics = self
            .cluster
            .as_ref()
            .map(|cluster| cluster.network_diagnostics.clone());
        let input = Input {
            spec: &spec,
            previous,
            diagnostics: &diagnostics.unwrap_or_default(),
            facts,
            settings,
        };
        Plan::of(&input).map_err(|rejection| rejection.to_string())
    }

    fn offline(&self, facts: &Facts, settings: &Settings) -> Answer {
        match self.plan(None, facts, settings) {
            Ok(plan) => {
                let mut text = failures(&plan);
                for object in &plan.rendered.objects {
                    text += &format!("+ {}\n", named(&ObjectId::of(object)));
                }
                changed(text)
            }
            Err(rejection) => rejected(&rejection),
        }
    }

    async fn against(
        mut self,
        applier: &Applier,
        cache: &Cache,
        api_server: &ApiServer,
        settings: &Settings,
    ) -> Result<Answer, Error> {
        let facts = observed::facts(cache, None, settings, api_server);
        let unreadable = |error: observed::Unreadable| Error::Unreadable(error.to_string());
        if self.cluster.is_none() {
            self.cluster = observed::cluster_config(cache)
                .map_err(unreadable)?
                .map(|stored| stored.spec);
        }
        if self.operator.is_none() {
            self.operator = observed::operator_config(cache)
                .map_err(unreadable)?
                .map(|stored| stored.spec);
        }
        let previous = observed::previous(cache, &settings.namespace).map_err(Error::Unreadable)?;
        let plan = match self.plan(previous.as_ref(), &facts, settings) {
            Ok(plan) => plan,
            Err(rejection) => return Ok(rejected(&rejection)),
        };
        let mut text = failures(&plan);
        for object in &plan.rendered.objects {
            text += &line(applier, cache, object).await?;
        }
        text += &superfluous(cache, &plan);
        Ok(changed(text))
    }
}

/// Difference between a desired object and the live one. Empty without a difference.
async fn line(applier: &Applier, cache: &Cache, object: &Value) -> Result<String, Error> {
    let id = ObjectId::of(object);
    let known = match cache.lookup(&id) {
        Lookup::Present(live) => Some(Value::clone(&live)),
        // The object may exist without the operator's label.
        Lookup::Absent | Lookup::Unknown => match applier.get(&id).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() || error.is_unknown_kind() => None,
            Err(error) => return Err(Error::Unreadable(error.to_string())),
        },
    };
    let Some(live) = known else {
        return Ok(format!("+ {}\n", named(&id)));
    };
    if object["metadata"]["annotations"]
        .get(names::CREATE_ONLY)
        .is_some()
    {
        return Ok(String::new());
    }
    let paths = cover::uncovered(object, &live);
    if paths.is_empty() {
        return Ok(String::new());
    }
    let mut text = format!("~ {}\n", named(&id));
    for path in paths {
        text += &format!("    {path}\n");
    }
    Ok(text)
}

/// Objects that the operator would prune.
fn superfluous(cache: &Cache, plan: &Plan) -> String {
    let wanted: Vec<ObjectId> = plan.rendered.objects.iter().map(ObjectId::of).collect();
    let failed: Vec<&str> = plan
        .rendered
        .failed
        .iter()
        .map(|(part, _)| part.label())
        .collect();
    let mut lines = BTreeSet::new();
    for kind in watches::RENDERED.into_iter().chain(watches::RENDERED_IF_SERVED) {
        for object in cache.list(kind) {
            let part = object["metadata"]["labels"][names::PART_LABEL]
                .as_str()
                .unwrap_or_default();
            let is_kept = failed.contains(&part) && part != Part::AdditionalNetworks.label();
            let id = ObjectId::of(&object);
            let stays = wanted
                .iter()
                .chain(&plan.rendered.kept)
                .any(|other| other.same(&id));
            let is_ours = object::owned_by(&object, object::OPENSHIFT_NETWORK.kind);
            if !part.is_empty() && !is_kept && !stays && is_ours {
                lines.insert(id);
            }
        }
    }
    let line = |id: &ObjectId| format!("- {}\n", named(id));
    lines.iter().map(line).collect()
}

/// Parts that cannot be rendered.
fn failures(plan: &Plan) -> String {
    let line = |(part, error): &(Part, String)| format!("! {}: {error}\n", part.label());
    plan.rendered.failed.iter().map(line).collect()
}

fn rejected(text: &str) -> Answer {
    Answer {
        text: format!("{text}\n"),
        code: 1,
        ..Answer::default()
    }
}

fn changed(text: String) -> Answer {
    let code = u8::from(!text.is_empty());
    let text = if text.is_empty() {
        "nothing would change\n".to_owned()
    } else {
        text
    };
    Answer {
        text,
        code,
        ..Answer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offline(text: &str) -> Answer {
        let given = Given::parse(text).expect("YAML").expect("a Network");
        given.offline(&Facts::default(), &settings(None))
    }

    #[test]
    fn file_of_an_example_is_planned() {
        let answer = offline(include_str!("../manifests/example.cr.yaml"));
        assert_eq!(answer.code, 1);
        for line in [
            "+ DaemonSet weft-pod-network/pod-network\n",
            "+ DaemonSet openshift-multus/multus\n",
        ] {
            assert!(answer.text.contains(line), "{}", answer.text);
        }
        assert!(!answer.text.contains('!'), "{}", answer.text);
    }

    #[test]
    fn invalid_network_prints_the_message_of_the_condition() {
        let answer =
            offline("{apiVersion: config.openshift.io/v1, kind: Network, spec: {serviceNetwork: [1q]}}");
        assert_eq!(
            (answer.text.as_str(), answer.code),
            (
                "The cluster configuration is invalid (could not parse spec.serviceNetwork 1q: invalid CIDR address: 1q). \
                 Use 'oc edit network.config.openshift.io cluster' to fix.\n",
                1
            )
        );
        assert!(Given::parse("{kind: Pod}").expect("YAML").is_none());
        assert!(
            Given::parse("{apiVersion: config.openshift.io/v1, kind: Network, spec: {networkType: 1}}")
                .is_err()
        );
    }
}
