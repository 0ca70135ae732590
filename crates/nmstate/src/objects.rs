//! Policies and enactments as the API server stores them. Objects that the handler writes are kept whole, so that
//! fields that it does not know survive.

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

use crate::conditions::{self, Condition, Status};
use crate::names::{self, condition};
use crate::policy::{enactment, selection};

/// Taken slots by generation of the policy in decimal.
pub(crate) type Counts = BTreeMap<String, i64>;

/// Field of a policy's status: `resourceVersion` of the enactments that the conditions include. It shows a handler
/// whether its own enactment is included; then it need not write. Without the field in the stored CRD, every handler
/// writes.
const OBSERVED: &str = "observedEnactments";

/// The kind `NodeNetworkConfigurationPolicy`.
pub(crate) fn policy_resource() -> ApiResource {
    ApiResource::erase::<NodeNetworkConfigurationPolicy>(&())
}

/// The kind `NodeNetworkConfigurationEnactment`.
pub(crate) fn enactment_resource() -> ApiResource {
    ApiResource::erase::<NodeNetworkConfigurationEnactment>(&())
}

/// The kind `NodeNetworkState`.
pub(crate) fn report_resource() -> ApiResource {
    ApiResource::erase::<NodeNetworkState>(&())
}

/// Whole policies.
pub(crate) fn policies(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &policy_resource())
}

/// Whole enactments.
pub(crate) fn enactments(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &enactment_resource())
}

/// Whole reports.
pub(crate) fn reports(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &report_resource())
}

/// A whole policy.
#[derive(Clone, Debug)]
pub(crate) struct Policy(DynamicObject);

impl Policy {
    /// Wraps an object from the API server.
    pub(crate) fn new(mut object: DynamicObject) -> Self {
        object.metadata.managed_fields = None;
        Self(object)
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.0.name_any()
    }

    /// UID, which differs from that of a deleted policy of the same name.
    pub(crate) fn uid(&self) -> String {
        self.0.uid().unwrap_or_default()
    }

    /// `resourceVersion`.
    pub(crate) fn version(&self) -> String {
        self.0.resource_version().unwrap_or_default()
    }

    /// Number of changes of the spec.
    pub(crate) fn generation(&self) -> i64 {
        self.0.metadata.generation.unwrap_or_default()
    }

    /// The desired state.
    pub(crate) fn spec(&self) -> &Value {
        &self.0.data["spec"]
    }

    /// Labels of the nodes that the policy selects.
    pub(crate) fn node_selector(&self) -> BTreeMap<String, String> {
        selection::selector(self.spec())
    }

    /// Whether the policy requests a dry run.
    pub(crate) fn is_dry_run(&self) -> bool {
        crate::dry_run::is_requested(self.0.annotations())
    }

    /// Conditions of the status.
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        readable_conditions(&self.0.data["status"]["conditions"])
    }

    /// Status of a condition; Unknown if it was never set.
    pub(crate) fn is(&self, kind: &str) -> Status {
        conditions::status(&self.conditions(), kind).unwrap_or(Status::Unknown)
    }

    /// Taken slots by generation.
    pub(crate) fn counts(&self) -> Counts {
        let counts = self.0.data["status"]["unavailableNodeCountMap"].as_object();
        let counts = counts.into_iter().flatten();
        counts
            .map(|(key, count)| (key.clone(), count.as_i64().unwrap_or_default()))
            .collect()
    }

    /// `resourceVersion` of the enactments that the conditions include, if it is stored.
    pub(crate) fn observed(&self) -> Option<u64> {
        comparable(self.0.data["status"][OBSERVED].as_str()?)
    }

    /// Generation of the conditions, if it is stored.
    pub(crate) fn observed_generation(&self) -> Option<i64> {
        self.0.data["status"]["observedGeneration"].as_i64()
    }

    /// The object with another status; a part that is `None` stays. Conditions come with the `resourceVersion` of the
    /// enactments that they include, if it is comparable.
    pub(crate) fn with_status(
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

    /// The enactments of this policy, without those of a deleted policy of the same name.
    pub(crate) fn own(&self, enactments: &[Enactment]) -> Vec<Enactment> {
        let uid = self.uid();
        let own = enactments.iter().filter(|one| one.is_of(&uid));
        own.cloned().collect()
    }

    /// The reference of events to the policy.
    pub(crate) fn reference(&self) -> ObjectReference {
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

/// The parts of an enactment that handlers of all nodes read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Enactment {
    /// Object name.
    pub name: String,
    /// Node name.
    pub node: String,
    /// `resourceVersion`.
    pub version: String,
    /// UID of the policy; empty if its handler did not record it.
    pub policy_uid: String,
    /// Generation of the policy that the conditions concern.
    pub generation: i64,
    /// Condition Available.
    pub available: Option<Status>,
    /// Condition Failing.
    pub failing: Option<Status>,
    /// Condition Progressing.
    pub progressing: Option<Status>,
    /// Condition Pending.
    pub pending: Option<Status>,
    /// Condition Aborted.
    pub aborted: Option<Status>,
    /// Failed attempts at this generation.
    pub attempts: i64,
}

impl Enactment {
    /// Whether the enactment belongs to the policy with this UID, and not to a deleted policy of the same name. An
    /// enactment without a UID does: creation times come from different clocks.
    pub(crate) fn is_of(&self, policy_uid: &str) -> bool {
        self.policy_uid.is_empty() || self.policy_uid == policy_uid
    }

    /// Whether the policy failed for good.
    pub(crate) fn is_failed(&self) -> bool {
        self.failing == Some(Status::True) && self.progressing == Some(Status::False)
    }

    /// Whether the policy failed and is retried.
    pub(crate) fn is_retrying(&self) -> bool {
        self.failing == Some(Status::True) && self.progressing == Some(Status::True)
    }

    /// Whether the enactment holds a slot: its policy is being applied, or failed then. A failure to render held none.
    pub(crate) fn holds_slot(&self) -> bool {
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
            #[serde(rename = "policyUID")]
            policy_uid: Value,
            policy_generation: Value,
            conditions: Value,
            retry_count: Value,
        }
        let Stored { metadata, status } = Stored::deserialize(deserializer)?;
        Ok(Self::read(
            metadata.name,
            metadata.resource_version,
            &metadata.labels,
            &status.policy_uid,
            &status.policy_generation,
            &status.conditions,
            &status.retry_count,
        ))
    }
}

impl Enactment {
    /// Reads the parts of a whole enactment.
    pub(crate) fn of(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        Self::read(
            object.name_any(),
            object.resource_version().unwrap_or_default(),
            object.labels(),
            &status[enactment::POLICY_UID],
            &status["policyGeneration"],
            &status["conditions"],
            &status["retryCount"],
        )
    }

    fn read(
        name: String,
        version: String,
        labels: &BTreeMap<String, String>,
        policy_uid: &Value,
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
            policy_uid: policy_uid.as_str().unwrap_or_default().to_owned(),
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

/// Lists the enactments of a policy on all nodes.
pub(crate) async fn enactments_of(client: &Client, policy: &str) -> Result<Listed<Enactment>, kube::Error> {
    let labels = format!("{}={policy}", names::POLICY_LABEL);
    let resource = enactment_resource();
    list(
        client,
        &Request::new(url(&resource)),
        &ListParams::default().labels(&labels),
    )
    .await
}

/// Lists parts of objects.
pub(crate) async fn list<T: DeserializeOwned>(
    client: &Client,
    requests: &Request,
    params: &ListParams,
) -> Result<Listed<T>, kube::Error> {
    let request = requests.list(params).map_err(kube::Error::BuildRequest)?;
    client.request(request).await
}

/// A list of objects and its `resourceVersion`.
#[derive(Debug, Deserialize)]
pub(crate) struct Listed<T> {
    metadata: ListMeta,
    /// The listed objects.
    pub items: Vec<T>,
}

impl<T> Listed<T> {
    /// `resourceVersion` of the list, if it is comparable.
    pub(crate) fn version(&self) -> Option<u64> {
        comparable(self.metadata.resource_version.as_deref()?)
    }
}

/// A `resourceVersion` as a number: they grow within one API server.
pub(crate) fn comparable(version: &str) -> Option<u64> {
    version.parse().ok()
}

fn url(resource: &ApiResource) -> String {
    format!("/apis/{}/{}", resource.api_version, resource.plural)
}

/// `apiVersion` and `kind` of an object.
pub(crate) fn types(resource: &ApiResource) -> kube::core::TypeMeta {
    kube::core::TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    }
}

/// Edits the status of an object; creates an empty one if there is none.
pub(crate) fn edit_status<T>(
    object: &mut DynamicObject,
    edit: impl FnOnce(&mut Map<String, Value>) -> T,
) -> T {
    let mut status = match object.data["status"].take() {
        Value::Object(status) => status,
        _ => Map::new(),
    };
    let answer = edit(&mut status);
    object.data["status"] = Value::Object(status);
    answer
}

/// The well-formed ones of some conditions.
pub(crate) fn readable_conditions(conditions: &Value) -> Vec<Condition> {
    let conditions = conditions.as_array().into_iter().flatten();
    conditions
        .filter_map(|condition| Condition::deserialize(condition).ok())
        .collect()
}

/// Serializes a value of ours as JSON.
pub(crate) fn json<T: serde::Serialize + ?Sized>(value: &T) -> Value {
    // These are maps with string keys, which JSON can always represent.
    serde_json::to_value(value).unwrap_or_default()
}
