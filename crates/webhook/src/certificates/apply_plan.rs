//! Applies a plan: writes Secrets and webhook configurations if they differ.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube_kit::{
    apply::{self, Applier, Upkeep},
    cache::Lookup,
    merge::{self, Change},
    object::ObjectId,
};
use rcgen::KeyPair;
use serde_json::{Map, Value, json};

use super::{
    Identity, Intervals, Pair, Plan, State, Step, bundle, issue, plan,
    read::{self, Certificate},
};

/// Keys of a CA's Secret: certificate, key.
const AUTHORITY_KEYS: [&str; 2] = ["ca.crt", "ca.key"];

/// Keys of a server's Secret.
const SERVING_KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// Prefix of annotations that make cert-manager write the bundles.
const INJECTION: &str = "cert-manager.io/inject-";

/// Prefix of cert-manager's annotations on the Secrets that it issued.
const ISSUED: &str = "cert-manager.io/";

/// Delay after a conflict with another writer, unless a watch reports a change earlier.
const CONFLICT: Duration = Duration::from_secs(1);

/// The objects that hold certificates.
#[derive(Clone, Debug, Hash)]
pub struct Objects {
    /// The rendered Secret of the CA, without data.
    pub authority: Value,
    /// The rendered Secret of the server, without data.
    pub serving: Value,
    /// The webhook configurations; each may be missing.
    pub configurations: Vec<ObjectId>,
}

/// Certificates could not be renewed or repaired.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts document the variants")]
pub enum Error {
    #[error(transparent)]
    Write(#[from] apply::Error),
    /// A Secret is invalid.
    #[error("could not apply {id}: {cause}")]
    Refused { id: ObjectId, cause: merge::Error },
    /// No certificate could be issued for a Secret.
    #[error("could not apply {id}: {cause}")]
    Issue { id: ObjectId, cause: issue::Error },
}

/// The result of a check of certificates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kept {
    /// Time of the next check.
    pub next_check: SystemTime,
    /// Whether the Secrets and the webhook configurations are as they should be. Not after a conflict with another
    /// writer, nor while repairs pause.
    pub in_order: bool,
}

/// Issues, rotates and repairs certificates as necessary. Objects are read from the applier's cache, or from the API
/// server if the cache does not watch them.
///
/// Repairs pause after another client has reverted several within a minute: the log names it.
///
/// # Errors
/// If a request fails. A conflict with another writer is no error: the next check is soon.
pub async fn keep(
    applier: &Applier,
    objects: &Objects,
    identity: &Identity,
    intervals: &Intervals,
) -> Result<Kept, Error> {
    let mut keeper = Keeper::read(applier, objects, identity, intervals).await?;
    keeper.keep(SystemTime::now()).await
}

struct Keeper<'a> {
    applier: &'a Applier,
    objects: &'a Objects,
    identity: &'a Identity,
    intervals: &'a Intervals,
    authority: Secret<'a>,
    serving: Secret<'a>,
    configurations: Vec<Value>,
    has_written: bool,
}

/// A Secret as rendered and as stored.
struct Secret<'a> {
    rendered: &'a Value,
    keys: [&'static str; 2],
    live: Option<Value>,
}

impl<'a> Keeper<'a> {
    async fn read(
        applier: &'a Applier,
        objects: &'a Objects,
        identity: &'a Identity,
        intervals: &'a Intervals,
    ) -> Result<Self, apply::Error> {
        let mut configurations = Vec::new();
        for id in &objects.configurations {
            configurations.extend(live(applier, id).await?);
        }
        Ok(Self {
            applier,
            objects,
            identity,
            intervals,
            authority: Secret::read(applier, &objects.authority, AUTHORITY_KEYS).await?,
            serving: Secret::read(applier, &objects.serving, SERVING_KEYS).await?,
            configurations,
            has_written: false,
        })
    }

    async fn keep(&mut self, now: SystemTime) -> Result<Kept, Error> {
        let plan = self.plan(now);
        if (!plan.steps.is_empty() || self.needs_tidying())
            && let Some(until) = self.pause(&plan.steps, now).await
        {
            return Ok(Kept {
                next_check: until,
                in_order: false,
            });
        }
        let in_order = self.work(plan, now).await?;
        self.upkeep(|upkeep| {
            if self.has_written {
                upkeep.wrote(now);
            }
            if let Some(due) = in_order {
                upkeep.in_order(due);
            }
        });
        Ok(Kept {
            next_check: in_order.unwrap_or(now + CONFLICT),
            in_order: in_order.is_some(),
        })
    }

    /// Runs the plan, and returns the time of the next check; `None` after a conflict with another writer.
    async fn work(&mut self, mut plan: Plan, now: SystemTime) -> Result<Option<SystemTime>, Error> {
        /// One plan is enough unless there are other writers.
        const PLANS: usize = 2;
        for _ in 0..PLANS {
            if plan.steps.is_empty() {
                break;
            }
            let taken = self.take(&plan.steps, now).await;
            if is_conflict(&taken) {
                break;
            }
            taken?;
            plan = self.plan(now);
        }
        let tidied = self.tidy(now).await;
        if is_conflict(&tidied) {
            return Ok(None);
        }
        tidied?;
        Ok(plan.steps.is_empty().then_some(plan.next_check))
    }

    /// Until when repairs pause because another client reverts them.
    async fn pause(&self, steps: &[Step], now: SystemTime) -> Option<SystemTime> {
        let pause = self.upkeep(|upkeep| upkeep.pause(now))?;
        if pause.opponent.is_none() {
            let opponent = self.applier.blame(&self.suspects(steps, now)).await;
            tracing::warn!(
                opponent,
                "another client reverts each repair of certificates, retrying with back-off"
            );
            self.upkeep(|upkeep| upkeep.name(opponent));
        }
        Some(pause.until)
    }

    /// The back-off, which is reset for a new configuration of the same name and for changed settings.
    fn upkeep<T>(&self, with: impl FnOnce(&mut Upkeep) -> T) -> T {
        let configurations = self.configurations.iter();
        let uids: Vec<_> = configurations.map(|live| live.pointer("/metadata/uid")).collect();
        let purpose = (self.objects, self.identity, self.intervals, uids);
        self.applier
            .upkeep(&ObjectId::of(self.serving.rendered), &purpose, with)
    }

    /// Fields that another client may have changed.
    fn suspects(&self, steps: &[Step], now: SystemTime) -> Vec<(ObjectId, String)> {
        let authority = self.authority.pair().and_then(|pair| read::authority(&pair, now));
        let mut suspects = Vec::new();
        for live in &self.configurations {
            let odd = webhooks(live)
                .into_iter()
                .flatten()
                .position(|webhook| other_bundle(webhook, authority.as_ref(), now).is_some());
            let bundle = odd.map(|index| format!("webhooks.{index}.clientConfig.caBundle"));
            let annotation = injection(live).map(|key| format!("metadata.annotations.{key}"));
            let paths = bundle.into_iter().chain(annotation);
            suspects.extend(paths.map(|path| (ObjectId::of(live), path)));
        }
        for (step, secret) in [(Step::Serving, &self.serving), (Step::Authority, &self.authority)] {
            let path = if steps.contains(&step) {
                Some("data".to_owned())
            } else {
                secret.untidy(self.applier.policy())
            };
            suspects.extend(path.map(|path| (ObjectId::of(secret.rendered), path)));
        }
        suspects
    }

    fn plan(&self, now: SystemTime) -> Plan {
        plan(&self.state(), self.identity, self.intervals, now)
    }

    fn state(&self) -> State {
        let webhooks = self.configurations.iter().filter_map(webhooks);
        State {
            authority: self.authority.pair(),
            serving: self.serving.pair(),
            bundles: webhooks.flatten().map(ca_bundle).collect(),
        }
    }

    async fn take(&mut self, steps: &[Step], now: SystemTime) -> Result<(), Error> {
        for step in steps {
            match step {
                Step::Authority => {
                    let issued = new_key()
                        .await
                        .and_then(|key| issue::authority(&key, self.identity, self.intervals, now))
                        .map_err(|cause| self.authority.cannot_issue(cause))?;
                    self.has_written |= self.authority.write(self.applier, Some(&issued)).await?;
                }
                Step::Bundles => self.write_bundles(now).await?,
                Step::Serving => {
                    let authority = self.authority.pair().unwrap_or_default();
                    let issued = new_key()
                        .await
                        .and_then(|key| issue::serving(&key, &authority, self.identity, self.intervals, now))
                        .map_err(|cause| self.serving.cannot_issue(cause))?;
                    self.has_written |= self.serving.write(self.applier, Some(&issued)).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes labels, owners and annotations; removes annotations that make cert-manager write the bundles.
    async fn tidy(&mut self, now: SystemTime) -> Result<(), Error> {
        if self.has_injections() {
            self.write_bundles(now).await?;
        }
        for secret in [&mut self.authority, &mut self.serving] {
            self.has_written |= secret.write(self.applier, None).await?;
        }
        Ok(())
    }

    /// Whether [`Self::tidy`] has something to write.
    fn needs_tidying(&self) -> bool {
        let policy = self.applier.policy();
        let secrets = [&self.authority, &self.serving];
        self.has_injections() || secrets.iter().any(|secret| secret.untidy(policy).is_some())
    }

    fn has_injections(&self) -> bool {
        self.configurations.iter().any(|live| injection(live).is_some())
    }

    async fn write_bundles(&mut self, now: SystemTime) -> Result<(), Error> {
        let authority = self.authority.pair().and_then(|pair| read::authority(&pair, now));
        for live in &mut self.configurations {
            let mut wanted = live.clone();
            for webhook in wanted
                .get_mut("webhooks")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if let Some(other) = other_bundle(webhook, authority.as_ref(), now) {
                    webhook["clientConfig"]["caBundle"] = json!(STANDARD.encode(bundle::to_pem(&other)));
                }
            }
            remove_prefixed(&mut wanted, "annotations", INJECTION);
            if wanted != *live {
                *live = self.applier.store(&wanted).await?;
                self.has_written = true;
            }
        }
        Ok(())
    }
}

impl<'a> Secret<'a> {
    async fn read(
        applier: &Applier,
        rendered: &'a Value,
        keys: [&'static str; 2],
    ) -> Result<Self, apply::Error> {
        Ok(Self {
            rendered,
            keys,
            live: live(applier, &ObjectId::of(rendered)).await?,
        })
    }

    /// The Secret's data; a missing key is empty.
    fn pair(&self) -> Option<Pair> {
        let data = self.live.as_ref()?.get("data");
        let [certificate, key] = self.keys.map(|key| decoded(data.and_then(|data| data.get(key))));
        Some(Pair { certificate, key })
    }

    fn cannot_issue(&self, cause: issue::Error) -> Error {
        let id = ObjectId::of(self.rendered);
        Error::Issue { id, cause }
    }

    /// Writes the issued certificate, or only the other rendered fields, if they differ. Returns whether they did.
    async fn write(&mut self, applier: &Applier, issued: Option<&Pair>) -> Result<bool, Error> {
        let wanted = self
            .wanted(issued, applier.policy())
            .map_err(|cause| Error::Refused {
                id: ObjectId::of(self.rendered),
                cause,
            })?;
        let Some(wanted) = wanted else {
            return Ok(false);
        };
        self.live = Some(applier.store(&wanted).await?);
        Ok(true)
    }

    /// The first field that differs from the rendered Secret, apart from certificates.
    fn untidy(&self, policy: &merge::Policy) -> Option<String> {
        let live = self.live.as_ref()?;
        let rendered = typeless(&self.with_data(data(live)));
        let differences = merge::differences(&rendered, &typeless(live), policy).ok()?;
        differences.into_iter().next().map(|difference| difference.path)
    }

    /// The Secret to store; `None` if it is up to date. The rule to leave certificates in Secrets alone (operator §9.1)
    /// does not apply to their issuer.
    fn wanted(&self, issued: Option<&Pair>, policy: &merge::Policy) -> Result<Option<Value>, merge::Error> {
        let Some(live) = &self.live else {
            return Ok(issued.map(|pair| self.with_data(self.data(pair))));
        };
        let data = match issued {
            Some(pair) => self.data(pair),
            None => data(live),
        };
        let rendered = typeless(&self.with_data(data));
        let change = merge::plan(&rendered, Some(&typeless(live)), policy)?;
        let (Change::Create(mut wanted) | Change::Update(mut wanted) | Change::Recreate(mut wanted)) = change
        else {
            return Ok(None);
        };
        // The type is immutable, and no reader of the Secret uses it.
        wanted["type"] = live.get("type").cloned().unwrap_or_default();
        if issued.is_some() {
            remove_prefixed(&mut wanted, "annotations", ISSUED);
        }
        Ok(Some(wanted))
    }

    fn data(&self, pair: &Pair) -> Map<String, Value> {
        let [certificate, key] = self.keys;
        let encoded = |bytes: &[u8]| json!(STANDARD.encode(bytes));
        Map::from_iter([
            (certificate.to_owned(), encoded(&pair.certificate)),
            (key.to_owned(), encoded(&pair.key)),
        ])
    }

    fn with_data(&self, data: Map<String, Value>) -> Value {
        let mut secret = self.rendered.clone();
        secret["data"] = Value::Object(data);
        secret
    }
}

/// Generating a key takes up to a second of CPU time, so it runs on another thread.
async fn new_key() -> Result<KeyPair, issue::Error> {
    tokio::task::spawn_blocking(issue::new_key).await?
}

/// The object from the cache, or from the API server if the cache does not watch it.
async fn live(applier: &Applier, id: &ObjectId) -> Result<Option<Value>, apply::Error> {
    match applier.cache().lookup(id) {
        Lookup::Present(object) => Ok(Some(Value::clone(&object))),
        Lookup::Absent => Ok(None),
        Lookup::Unknown => applier.get(id).await,
    }
}

/// Whether a write conflicted with another client.
fn is_conflict(written: &Result<(), Error>) -> bool {
    match written {
        Err(Error::Write(error)) if error.is_conflict() || error.is_not_found() => {
            tracing::info!(%error, "another client changed a certificate object, retrying");
            true
        }
        _ => false,
    }
}

fn data(secret: &Value) -> Map<String, Value> {
    let data = secret.get("data").and_then(Value::as_object);
    data.cloned().unwrap_or_default()
}

fn typeless(secret: &Value) -> Value {
    let mut secret = secret.clone();
    if let Some(fields) = secret.as_object_mut() {
        fields.shift_remove("type");
    }
    secret
}

fn webhooks(configuration: &Value) -> Option<&Vec<Value>> {
    configuration.get("webhooks")?.as_array()
}

fn ca_bundle(webhook: &Value) -> Vec<u8> {
    decoded(webhook.pointer("/clientConfig/caBundle"))
}

/// The webhook's desired bundle, if it differs.
fn other_bundle(
    webhook: &Value,
    authority: Option<&Certificate>,
    now: SystemTime,
) -> Option<Vec<Certificate>> {
    let found = read::certificates(&ca_bundle(webhook));
    let extended = bundle::extended(authority, &found, now);
    (extended != found).then_some(extended)
}

/// The bytes of a base64 field; empty if it is missing or invalid.
fn decoded(field: Option<&Value>) -> Vec<u8> {
    field
        .and_then(Value::as_str)
        .and_then(|text| STANDARD.decode(text).ok())
        .unwrap_or_default()
}

/// An annotation that makes cert-manager write bundles.
fn injection(configuration: &Value) -> Option<&str> {
    let annotations = configuration.pointer("/metadata/annotations")?.as_object()?;
    let mut keys = annotations.keys().map(String::as_str);
    keys.find(|key| key.starts_with(INJECTION))
}

/// Removes keys with a prefix from a map in the metadata.
fn remove_prefixed(object: &mut Value, map: &str, beginning: &str) {
    let found = object
        .pointer_mut(&format!("/metadata/{map}"))
        .and_then(Value::as_object_mut);
    if let Some(found) = found {
        found.retain(|key, _| !key.starts_with(beginning));
    }
}

#[cfg(test)]
mod tests;
