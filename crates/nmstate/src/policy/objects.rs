//! Policies and enactments as they are stored: those that we write are kept whole, so that what we do not know of them
//! survives.

use std::collections::BTreeMap;

use api::node_state::{NodeNetworkConfigurationEnactment, NodeNetworkConfigurationPolicy, NodeNetworkState};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, Request};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::selection;
use super::slots::Counts;
use crate::conditions::{self, Condition, Status};
use crate::names::{self, condition};

/// In a policy's status: as of which version of the enactments the conditions are. With it a handler knows whether its
/// own enactment is among them, and need not write. Where the stored definition does not have it, everybody writes.
const OBSERVED: &str = "observedEnactments";

/// The kind of policies.
pub fn policy_resource() -> ApiResource {
    ApiResource::erase::<NodeNetworkConfigurationPolicy>(&())
}

/// The kind of enactments.
pub fn enactment_resource() -> ApiResource {
    ApiResource::erase::<NodeNetworkConfigurationEnactment>(&())
}

/// The kind of reports.
pub fn report_resource() -> ApiResource {
    ApiResource::erase::<NodeNetworkState>(&())
}

/// Policies, whole.
pub fn policies(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &policy_resource())
}

/// Enactments, whole.
pub fn enactments(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &enactment_resource())
}

/// Reports, whole.
pub fn reports(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &report_resource())
}

/// A policy, whole.
#[derive(Clone, Debug)]
pub struct Policy(DynamicObject);

impl Policy {
    /// As the API server gave it.
    pub fn new(mut object: DynamicObject) -> Self {
        object.metadata.managed_fields = None;
        Self(object)
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.0.name_any()
    }

    /// What tells it from another one of its name.
    pub fn uid(&self) -> String {
        self.0.uid().unwrap_or_default()
    }

    /// The version that it was read in.
    pub fn version(&self) -> String {
        self.0.resource_version().unwrap_or_default()
    }

    /// How often what is wanted was changed.
    pub fn generation(&self) -> i64 {
        self.0.metadata.generation.unwrap_or_default()
    }

    /// What is wanted.
    pub fn spec(&self) -> &Value {
        &self.0.data["spec"]
    }

    /// Labels of the nodes that it is for.
    pub fn node_selector(&self) -> BTreeMap<String, String> {
        selection::selector(self.spec())
    }

    /// Whether it is only to be tried.
    pub fn is_dry_run(&self) -> bool {
        crate::dry_run::asked(self.0.annotations())
    }

    /// Aspects of its state.
    pub fn conditions(&self) -> Vec<Condition> {
        readable_conditions(&self.0.data["status"]["conditions"])
    }

    /// How an aspect is; nobody knows it when it was never set.
    pub fn is(&self, kind: &str) -> Status {
        conditions::status(&self.conditions(), kind).unwrap_or(Status::Unknown)
    }

    /// Taken slots.
    pub fn counts(&self) -> Counts {
        let counts = self.0.data["status"]["unavailableNodeCountMap"].as_object();
        let counts = counts.into_iter().flatten();
        counts
            .map(|(key, count)| (key.clone(), count.as_i64().unwrap_or_default()))
            .collect()
    }

    /// As of which version of the enactments its conditions are, where that is stored.
    pub fn observed(&self) -> Option<u64> {
        comparable(self.0.data["status"][OBSERVED].as_str()?)
    }

    /// Generation that its conditions are about, where that is stored.
    pub fn observed_generation(&self) -> Option<i64> {
        self.0.data["status"]["observedGeneration"].as_i64()
    }

    /// The object with another status; what is not given stays. Conditions come with the version of the enactments that
    /// they are as of, where that can be compared.
    pub fn with_status(
        &self,
        conditions: Option<(&[Condition], Option<u64>)>,
        counts: Option<&Counts>,
    ) -> DynamicObject {
        let mut object = self.0.clone();
        object.types = Some(types(&policy_resource()));
        edit_status(&mut object, |status| {
            if let Some((conditions, version)) = conditions {
                status.insert("conditions".to_owned(), json(conditions));
                status.insert("observedGeneration".to_owned(), self.generation().into());
                match version {
                    Some(version) => status.insert(OBSERVED.to_owned(), version.to_string().into()),
                    None => status.shift_remove(OBSERVED),
                };
            }
            if let Some(counts) = counts {
                status.insert("unavailableNodeCountMap".to_owned(), json(counts));
            }
        });
        object
    }

    /// The policy as events name it.
    pub fn reference(&self) -> ObjectReference {
        let resource = policy_resource();
        ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(self.name()),
            uid: self.0.uid(),
            ..ObjectReference::default()
        }
    }
}

/// What is read of enactments of all nodes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Enactment {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The version that it was read in.
    pub version: String,
    /// Generation of the policy that the conditions are about.
    pub generation: i64,
    /// Whether it was applied.
    pub available: Option<Status>,
    /// Whether it failed.
    pub failing: Option<Status>,
    /// Whether it is being applied.
    pub progressing: Option<Status>,
    /// Whether it waits.
    pub pending: Option<Status>,
    /// Whether it is not tried any more.
    pub aborted: Option<Status>,
    /// Failed attempts at this generation.
    pub attempts: i64,
}

impl Enactment {
    /// It failed, and is not tried any more.
    pub fn is_failed(&self) -> bool {
        self.failing == Some(Status::True) && self.progressing == Some(Status::False)
    }

    /// It failed, and is about to be tried again.
    pub fn is_retrying(&self) -> bool {
        self.failing == Some(Status::True) && self.progressing == Some(Status::True)
    }

    /// It stands for a slot: it is being applied, or was and failed. A document that could not even be made had none.
    pub fn holds_slot(&self) -> bool {
        self.progressing == Some(Status::True) || (self.is_failed() && self.attempts > 0)
    }
}

impl<'de> Deserialize<'de> for Enactment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Stored {
            metadata: Metadata,
            #[serde(default)]
            status: StoredStatus,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Metadata {
            name: String,
            resource_version: String,
            labels: BTreeMap<String, String>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct StoredStatus {
            policy_generation: Value,
            conditions: Value,
            retry_count: Value,
        }
        let Stored { metadata, status } = Stored::deserialize(deserializer)?;
        Ok(Self::read(
            metadata.name,
            metadata.resource_version,
            &metadata.labels,
            &status.policy_generation,
            &status.conditions,
            &status.retry_count,
        ))
    }
}

impl Enactment {
    /// What is to be read of a whole one.
    pub fn of(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        Self::read(
            object.name_any(),
            object.resource_version().unwrap_or_default(),
            object.labels(),
            &status["policyGeneration"],
            &status["conditions"],
            &status["retryCount"],
        )
    }

    fn read(
        name: String,
        version: String,
        labels: &BTreeMap<String, String>,
        generation: &Value,
        conditions: &Value,
        attempts: &Value,
    ) -> Self {
        let generation = generation.as_i64().unwrap_or_default();
        let policy = labels.get(names::POLICY_LABEL).cloned().unwrap_or_default();
        let of_name = || name.strip_suffix(&format!(".{policy}")).unwrap_or_default();
        let node = labels
            .get(names::NODE_LABEL)
            .map_or_else(of_name, String::as_str)
            .to_owned();
        let conditions = readable_conditions(conditions);
        let is = |kind| conditions::status(&conditions, kind);
        Self {
            node,
            version,
            generation,
            available: is(condition::AVAILABLE),
            failing: is(condition::FAILING),
            progressing: is(condition::PROGRESSING),
            pending: is(condition::PENDING),
            aborted: is(condition::ABORTED),
            attempts: attempts[generation.to_string()].as_i64().unwrap_or_default(),
            name,
        }
    }
}

/// Enactments of a policy, of all nodes, and the version as of which they are so.
///
/// # Errors
/// When they can't be had.
pub async fn enactments_of(client: &Client, policy: &str) -> Result<Listed<Enactment>, kube::Error> {
    let labels = format!("{}={policy}", names::POLICY_LABEL);
    let resource = enactment_resource();
    list(
        client,
        &Request::new(url(&resource)),
        &ListParams::default().labels(&labels),
    )
    .await
}

/// Lists what is read of objects.
///
/// # Errors
/// When they can't be had.
pub async fn list<T: DeserializeOwned>(
    client: &Client,
    requests: &Request,
    params: &ListParams,
) -> Result<Listed<T>, kube::Error> {
    let request = requests.list(params).map_err(kube::Error::BuildRequest)?;
    client.request(request).await
}

/// Objects, and the version as of which they are so.
#[derive(Debug, Deserialize)]
pub struct Listed<T> {
    metadata: ListMeta,
    /// The objects.
    pub items: Vec<T>,
}

impl<T> Listed<T> {
    /// The version as of which the objects are so; nothing when it can't be compared.
    pub fn version(&self) -> Option<u64> {
        comparable(self.metadata.resource_version.as_deref()?)
    }
}

/// Versions of one API server are growing numbers.
pub fn comparable(version: &str) -> Option<u64> {
    version.parse().ok()
}

fn url(resource: &ApiResource) -> String {
    format!("/apis/{}/{}", resource.api_version, resource.plural)
}

/// What an object is sent as.
pub fn types(resource: &ApiResource) -> kube::core::TypeMeta {
    kube::core::TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    }
}

/// Changes the status of an object, which is made where there is none.
pub fn edit_status<T>(object: &mut DynamicObject, edit: impl FnOnce(&mut Map<String, Value>) -> T) -> T {
    let mut status = match object.data["status"].take() {
        Value::Object(status) => status,
        _ => Map::new(),
    };
    let answer = edit(&mut status);
    object.data["status"] = Value::Object(status);
    answer
}

/// Conditions that have the form of one; others are as if they were not there.
pub fn readable_conditions(conditions: &Value) -> Vec<Condition> {
    let conditions = conditions.as_array().into_iter().flatten();
    conditions
        .filter_map(|condition| Condition::deserialize(condition).ok())
        .collect()
}

/// A value of ours as JSON.
pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Value {
    // What we write are maps with names for keys, which always have a form in JSON.
    serde_json::to_value(value).unwrap_or_default()
}
