//! `weft network plan`: the changes that a configuration would cause, and the unsafe ones among them.

use std::path::{Path, PathBuf};

use api::cluster_network::{SINGLETON, config, operator};
use kube_kit::{
    apply::Applier,
    cache::{Cache, Lookup},
    connection::{self, Answer, Flags},
    merge::{Policy, cover},
    object::{self, HOSTED_CONTROL_PLANE, OPENSHIFT_NETWORK, ObjectId},
};
use serde_json::{Value, json};

use super::{Error, named, observe, observe_hosted, operator_id, settings};
use crate::{
    cluster_config, controller,
    facts::{ApiServer, Facts},
    messages::{self, observability as texts},
    names,
    observability::{self, Record, Step, controller as state},
    observe as observed,
    plan::{Input, Plan},
    reconcile::{apply::leftovers, hosted::is_hosted},
    render::{self, Part},
    settings::Settings,
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
    /// Kubeconfig of the cluster that hosts the control plane. Its context
    /// names the namespace of that control plane
    #[arg(long, value_name = "management=FILE", value_parser = crate::extra_cluster)]
    #[arg(conflicts_with = "offline")]
    extra_clusters: Option<PathBuf>,
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
        let applier = Applier::new(client.clone(), Policy::owned_by(OPENSHIFT_NETWORK.kind));
        let (settings, management) = match &args.extra_clusters {
            Some(file) => {
                let (settings, side) = hosted(file).await?;
                (settings, Some(side))
            }
            None => (
                settings(deployment(&applier, &operator_id()).await?.as_ref()),
                None,
            ),
        };
        let cache = observe(&client, &settings).await?;
        let api_server = controller::api_server(&client, &settings).await;
        let cluster = Side {
            applier,
            cache,
            is_management: false,
        };
        let sides = (&cluster, management.as_ref());
        given.against(sides, &api_server, &settings).await
    })
}

async fn deployment(applier: &Applier, id: &ObjectId) -> Result<Option<Value>, Error> {
    let deployment = applier.get(id).await;
    deployment.map_err(|error| Error::Unreadable(error.to_string()))
}

/// The cluster that hosts the control plane, and the settings of the operator there (§18.3).
async fn hosted(kubeconfig: &Path) -> Result<(Settings, Side), Error> {
    let flags = Flags {
        kubeconfig: Some(kubeconfig.to_owned()),
        context: None,
    };
    let client = connection::connect(&flags).await?;
    let namespace = client.default_namespace().to_owned();
    let applier = Applier::new(client.clone(), Policy::owned_by(HOSTED_CONTROL_PLANE.kind));
    let id = object::DEPLOYMENT.object(Some(&namespace), names::HOSTED_OPERATOR);
    let mut settings = settings(deployment(&applier, &id).await?.as_ref());
    let Some(hosted) = &mut settings.hosted else {
        return Err(Error::Unreadable(messages::no_hosted_operator(&namespace)));
    };
    // The operator takes the URL from its own kubeconfig.
    names::HOSTED_API_SERVER.clone_into(&mut hosted.api_server);
    let cache = observe_hosted(&client, hosted).await?;
    let side = Side {
        applier,
        cache,
        is_management: true,
    };
    Ok((settings, side))
}

/// A cluster with which the plan is compared.
struct Side {
    applier: Applier,
    cache: Cache,
    is_management: bool,
}

impl Side {
    fn has(&self, object: &Value) -> bool {
        is_hosted(object) == self.is_management
    }

    /// The name of an object. The part before the first slash of a name with two slashes is the cluster.
    fn named(&self, id: &ObjectId) -> String {
        match &id.namespace {
            Some(namespace) if self.is_management => {
                format!("{} {}/{namespace}/{}", id.kind, names::MANAGEMENT, id.name)
            }
            _ => named(id),
        }
    }
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
        (cluster, management): (&Side, Option<&Side>),
        api_server: &ApiServer,
        settings: &Settings,
    ) -> Result<Answer, Error> {
        let cache = &cluster.cache;
        let facts = observed::facts(cache, management.map(|side| &side.cache), settings, api_server);
        if let Some(hosted) = &settings.hosted
            && facts.management.is_none()
        {
            let name = format!("{}/{}", hosted.namespace, hosted.name);
            return Ok(rejected(&messages::no_hosted_control_plane(&name)));
        }
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
            let side = management.filter(|side| side.has(object)).unwrap_or(cluster);
            text += &line(side, object).await?;
        }
        text += &self.observability(cluster, &facts).await?;
        if let Lookup::Present(operator) = cache.lookup(&observed::operator_config_id()) {
            text += &superfluous(cluster, &plan, &operator["metadata"]["uid"]);
        }
        if let Some((side, facts)) = management.zip(facts.management.as_ref()) {
            text += &superfluous(side, &plan, &json!(facts.control_plane.uid));
        }
        Ok(changed(text))
    }

    /// Objects with which the operator would install network observability.
    async fn observability(&self, side: &Side, facts: &Facts) -> Result<String, Error> {
        let live = |id: &ObjectId| match side.cache.lookup(id) {
            Lookup::Present(object) => Some(object),
            Lookup::Absent | Lookup::Unknown => None,
        };
        // A new operator configuration gets the conditions of the ClusterOperator.
        let operator = live(&observed::operator_config_id()).map(|it| Record::of(&it));
        let operator = operator.filter(|record| record.has_status);
        let inherited = || live(&observed::cluster_operator_id()).map(|it| Record::of(&it));
        let record = operator.or_else(inherited).unwrap_or_default();
        let given = self.operator.as_ref();
        let is_unmanaged = given.is_some_and(|it| it.management_state == names::UNMANAGED);
        let Some(cluster) = self.cluster.as_ref().filter(|_| !is_unmanaged) else {
            return Ok(String::new());
        };
        let policy = cluster.network_observability.as_ref();
        let policy = policy.map_or("", |it| it.installation_policy.as_str());
        let infrastructure = live(&object::OPENSHIFT_INFRASTRUCTURE.object(None, SINGLETON));
        let topology = infrastructure.map(|it| observability::topology(&it));
        let has_gate = facts.gate(names::OBSERVABILITY_GATE);
        let failed = |error: &str| Ok(format!("! observability: {error}\n"));
        match observability::wish(policy, has_gate, topology.as_deref(), &record) {
            Ok(true) => {}
            Ok(false) => return Ok(String::new()),
            Err(error) => return failed(&error),
        }
        let client = side.applier.client();
        let unreadable = |error: kube::Error| Error::Unreadable(kube_kit::client::message(&error));
        let mut objects = Vec::new();
        match state::observe(client).await.map_err(unreadable)?.step() {
            Step::Install if state::is_served(client).await.map_err(unreadable)? => {
                objects.extend(render::observability::operator().unwrap_or_default());
            }
            Step::Install => return failed(&texts::not_installed(texts::NO_OLM)),
            Step::Fail(error) => return failed(&error),
            Step::Wait(_) | Step::Collect => {}
        }
        if !state::has_collector(client).await.map_err(unreadable)? {
            objects.extend(render::observability::collector().unwrap_or_default());
        }
        let mut text = String::new();
        for object in &objects {
            text += &line(side, object).await?;
        }
        Ok(text)
    }
}

/// Difference between a desired object and the live one. Empty without a difference.
async fn line(side: &Side, object: &Value) -> Result<String, Error> {
    let id = ObjectId::of(object);
    let known = match side.cache.lookup(&id) {
        Lookup::Present(live) => Some(Value::clone(&live)),
        // The object may exist without the operator's label.
        Lookup::Absent | Lookup::Unknown => match side.applier.get(&id).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() || error.is_unknown_kind() => None,
            Err(error) => return Err(Error::Unreadable(error.to_string())),
        },
    };
    let Some(live) = known else {
        return Ok(format!("+ {}\n", side.named(&id)));
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
    let mut text = format!("~ {}\n", side.named(&id));
    for path in paths {
        text += &format!("    {path}\n");
    }
    Ok(text)
}

/// Objects that the operator would prune. `owner` is the UID of their owner.
fn superfluous(side: &Side, plan: &Plan, owner: &Value) -> String {
    let leftovers = leftovers(&plan.rendered, &side.cache, side.is_management, owner);
    let line = |id: &ObjectId| format!("- {}\n", side.named(id));
    leftovers.iter().map(line).collect()
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
