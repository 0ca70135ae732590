//! Carries out what is planned: Secrets and webhook configurations, each compared before it is written.

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

/// Keys of an authority's Secret: certificate, key.
const AUTHORITY_KEYS: [&str; 2] = ["ca.crt", "ca.key"];

/// Keys of a server's Secret.
const SERVING_KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// Annotations by which cert-manager is asked to write the bundles begin so.
const INJECTION: &str = "cert-manager.io/inject-";

/// What cert-manager tells about a Secret that it issued begins so.
const ISSUED: &str = "cert-manager.io/";

/// How long to leave alone what somebody else writes at the same time, unless a watch tells sooner.
const CONFLICT: Duration = Duration::from_secs(1);

/// What certificates are kept in.
#[derive(Clone, Debug, Hash)]
pub struct Objects {
    /// The Secret of the authority as it is rendered, without its data.
    pub authority: Value,
    /// The Secret of the server as it is rendered, without its data.
    pub serving: Value,
    /// The configurations of the webhooks; none of them need be there.
    pub configurations: Vec<ObjectId>,
}

/// Why certificates could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object can't be read or written.
    #[error(transparent)]
    Write(#[from] apply::Error),
    /// A Secret could never be written.
    #[error("could not apply {id}: {cause}")]
    Refused {
        /// Which.
        id: ObjectId,
        /// Why.
        cause: merge::Error,
    },
    /// There is nothing to write into a Secret.
    #[error("could not apply {id}: {cause}")]
    Issue {
        /// Which.
        id: ObjectId,
        /// Why.
        cause: issue::Error,
    },
}

/// Issues, rotates and repairs certificates where that is due, and returns when to look again. Objects are read from the
/// applier's cache, and from the API server where the cache does not know them.
///
/// Nothing is repaired for a while when another client has reverted several repairs within a minute: the log names it.
///
/// # Errors
/// When the API server refuses something or does not answer. That somebody else wrote at the same time is no error:
/// then it is soon time to look again.
pub async fn keep(
    applier: &Applier,
    objects: &Objects,
    identity: &Identity,
    intervals: &Intervals,
) -> Result<SystemTime, Error> {
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
    /// Whether anything was written.
    has_written: bool,
}

/// A Secret as it should be and as it is.
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

    async fn keep(&mut self, now: SystemTime) -> Result<SystemTime, Error> {
        let plan = self.plan(now);
        if (!plan.steps.is_empty() || self.is_untidy())
            && let Some(until) = self.pause(&plan.steps, now).await
        {
            return Ok(until);
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
        Ok(in_order.unwrap_or(now + CONFLICT))
    }

    /// Does what is planned, and returns until when everything is in order; `None` when somebody else writes at the same
    /// time.
    async fn work(&mut self, mut plan: Plan, now: SystemTime) -> Result<Option<SystemTime>, Error> {
        /// One plan is enough, unless others write too.
        const PLANS: usize = 2;
        for _ in 0..PLANS {
            if plan.steps.is_empty() {
                break;
            }
            let taken = self.take(&plan.steps, now).await;
            if is_beside_others(&taken) {
                break;
            }
            taken?;
            plan = self.plan(now);
        }
        let tidied = self.tidy(now).await;
        if is_beside_others(&tidied) {
            return Ok(None);
        }
        tidied?;
        Ok(plan.steps.is_empty().then_some(plan.look_again))
    }

    /// Until when repairs wait, because another client reverts each.
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

    /// The back-off, which starts anew for another configuration of the same name and for other wishes.
    fn upkeep<T>(&self, with: impl FnOnce(&mut Upkeep) -> T) -> T {
        let configurations = self.configurations.iter();
        let uids: Vec<_> = configurations.map(|live| live.pointer("/metadata/uid")).collect();
        let purpose = (self.objects, self.identity, self.intervals, uids);
        self.applier
            .upkeep(&ObjectId::of(self.serving.rendered), &purpose, with)
    }

    /// What another client may have changed, if something has to be repaired.
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

    /// Labels, owners and annotations: nobody else may write the bundles any more.
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
    fn is_untidy(&self) -> bool {
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
            forget(&mut wanted, "annotations", INJECTION);
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

    /// What the Secret holds; a key that it lacks is empty.
    fn pair(&self) -> Option<Pair> {
        let data = self.live.as_ref()?.get("data");
        let [certificate, key] = self.keys.map(|key| decoded(data.and_then(|data| data.get(key))));
        Some(Pair { certificate, key })
    }

    fn cannot_issue(&self, cause: issue::Error) -> Error {
        let id = ObjectId::of(self.rendered);
        Error::Issue { id, cause }
    }

    /// Writes what was issued, or else only what else is rendered, if it differs. Returns whether it did.
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

    /// The first field that is not as rendered, certificates apart.
    fn untidy(&self, policy: &merge::Policy) -> Option<String> {
        let live = self.live.as_ref()?;
        let rendered = typeless(&self.with_data(data(live)));
        let differences = merge::differences(&rendered, &typeless(live), policy).ok()?;
        differences.into_iter().next().map(|difference| difference.path)
    }

    /// The Secret to send; nothing when it is there already. The rule that certificates in Secrets are nobody's
    /// business (operator §9.1) is not for those who issue them.
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
        // It can't be changed, and nobody who reads the Secret looks at it.
        wanted["type"] = live.get("type").cloned().unwrap_or_default();
        if issued.is_some() {
            forget(&mut wanted, "annotations", ISSUED);
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

/// A new key takes a processor a good part of a second: meanwhile watches and probes have their turn.
async fn new_key() -> Result<KeyPair, issue::Error> {
    tokio::task::spawn_blocking(issue::new_key).await?
}

/// The object as the cache knows it, else as the API server does.
async fn live(applier: &Applier, id: &ObjectId) -> Result<Option<Value>, apply::Error> {
    match applier.cache().lookup(id) {
        Lookup::Present(object) => Ok(Some(Value::clone(&object))),
        Lookup::Absent => Ok(None),
        Lookup::Unknown => applier.get(id).await,
    }
}

/// Whether another client wrote at the same time.
fn is_beside_others(written: &Result<(), Error>) -> bool {
    match written {
        Err(Error::Write(error)) if error.is_conflict() || error.is_not_found() => {
            tracing::info!(%error, "another client writes certificates too, looking again");
            true
        }
        _ => false,
    }
}

/// What a Secret holds.
fn data(secret: &Value) -> Map<String, Value> {
    let data = secret.get("data").and_then(Value::as_object);
    data.cloned().unwrap_or_default()
}

/// The Secret without its type.
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

/// What the webhook's bundle should be, where it is something else.
fn other_bundle(
    webhook: &Value,
    authority: Option<&Certificate>,
    now: SystemTime,
) -> Option<Vec<Certificate>> {
    let found = read::certificates(&ca_bundle(webhook));
    let extended = bundle::extended(authority, &found, now);
    (extended != found).then_some(extended)
}

/// The bytes of a field; what is none holds nothing.
fn decoded(field: Option<&Value>) -> Vec<u8> {
    field
        .and_then(Value::as_str)
        .and_then(|text| STANDARD.decode(text).ok())
        .unwrap_or_default()
}

/// An annotation that asks cert-manager for bundles.
fn injection(configuration: &Value) -> Option<&str> {
    let annotations = configuration.pointer("/metadata/annotations")?.as_object()?;
    let mut keys = annotations.keys().map(String::as_str);
    keys.find(|key| key.starts_with(INJECTION))
}

/// Drops what begins so from a map in the metadata.
fn forget(object: &mut Value, map: &str, beginning: &str) {
    let found = object
        .pointer_mut(&format!("/metadata/{map}"))
        .and_then(Value::as_object_mut);
    if let Some(found) = found {
        found.retain(|key, _| !key.starts_with(beginning));
    }
}

#[cfg(test)]
mod tests;
