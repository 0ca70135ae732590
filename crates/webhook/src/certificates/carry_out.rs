//! Carries out what is planned: Secrets and webhook configurations, each compared before it is written.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube_kit::{
    apply::{self, Applier},
    cache::Lookup,
    merge::{self, Change},
    object::ObjectId,
};
use rcgen::KeyPair;
use serde_json::{Map, Value, json};

use super::{Identity, Intervals, Pair, State, Step, bundle, issue, plan, read};

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
#[derive(Clone, Debug)]
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
/// # Errors
/// When the API server refuses something or does not answer. That somebody else wrote at the same time is no error:
/// then it is soon time to look again.
pub async fn keep(
    applier: &Applier,
    objects: &Objects,
    identity: &Identity,
    intervals: &Intervals,
) -> Result<SystemTime, Error> {
    /// One for what is planned, one to see that nothing is left.
    const ROUNDS: usize = 2;
    let mut configurations = Vec::new();
    for id in &objects.configurations {
        configurations.extend(live(applier, id).await?);
    }
    let mut keeper = Keeper {
        applier,
        identity,
        intervals,
        authority: Secret::read(applier, &objects.authority, AUTHORITY_KEYS).await?,
        serving: Secret::read(applier, &objects.serving, SERVING_KEYS).await?,
        configurations,
    };
    let now = SystemTime::now();
    let mut look_again = now + CONFLICT;
    for _ in 0..ROUNDS {
        let plan = plan(&keeper.state(), identity, intervals, now);
        if plan.steps.is_empty() {
            look_again = plan.look_again;
            break;
        }
        match keeper.take(&plan.steps, now).await {
            Err(Error::Write(error)) if error.is_conflict() || error.is_not_found() => {
                tracing::info!(%error, "somebody else writes certificates too, looking again");
                break;
            }
            taken => taken?,
        }
    }
    match keeper.tidy(now).await {
        Err(Error::Write(error)) if error.is_conflict() || error.is_not_found() => {
            look_again = now + CONFLICT;
        }
        tidied => tidied?,
    }
    Ok(look_again)
}

struct Keeper<'a> {
    applier: &'a Applier,
    identity: &'a Identity,
    intervals: &'a Intervals,
    authority: Secret<'a>,
    serving: Secret<'a>,
    configurations: Vec<Value>,
}

/// A Secret as it should be and as it is.
struct Secret<'a> {
    rendered: &'a Value,
    keys: [&'static str; 2],
    live: Option<Value>,
}

impl Keeper<'_> {
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
                    self.authority.write(self.applier, Some(&issued)).await?;
                }
                Step::Bundles => self.write_bundles(now).await?,
                Step::Serving => {
                    let authority = self.authority.pair().unwrap_or_default();
                    let issued = new_key()
                        .await
                        .and_then(|key| issue::serving(&key, &authority, self.identity, self.intervals, now))
                        .map_err(|cause| self.serving.cannot_issue(cause))?;
                    self.serving.write(self.applier, Some(&issued)).await?;
                }
            }
        }
        Ok(())
    }

    /// Labels, owners and annotations: nobody else may write the bundles any more.
    async fn tidy(&mut self, now: SystemTime) -> Result<(), Error> {
        if self.configurations.iter().any(is_injected) {
            self.write_bundles(now).await?;
        }
        for secret in [&mut self.authority, &mut self.serving] {
            secret.write(self.applier, None).await?;
        }
        Ok(())
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
                let found = read::certificates(&ca_bundle(webhook));
                let extended = bundle::extended(authority.as_ref(), &found, now);
                if extended != found {
                    webhook["clientConfig"]["caBundle"] = json!(STANDARD.encode(bundle::to_pem(&extended)));
                }
            }
            forget(&mut wanted, "annotations", INJECTION);
            if wanted != *live {
                *live = self.applier.store(&wanted).await?;
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

    /// Writes what was issued, or else only what else is rendered, if it differs.
    async fn write(&mut self, applier: &Applier, issued: Option<&Pair>) -> Result<(), Error> {
        let wanted = self
            .wanted(issued, applier.policy())
            .map_err(|cause| Error::Refused {
                id: ObjectId::of(self.rendered),
                cause,
            })?;
        if let Some(wanted) = wanted {
            self.live = Some(applier.store(&wanted).await?);
        }
        Ok(())
    }

    /// The Secret to send; nothing when it is there already. The rule that certificates in Secrets are nobody's
    /// business (operator §9.1) is not for those who issue them.
    fn wanted(&self, issued: Option<&Pair>, policy: &merge::Policy) -> Result<Option<Value>, merge::Error> {
        let Some(live) = &self.live else {
            return Ok(issued.map(|pair| self.with_data(self.data(pair))));
        };
        let data = match issued {
            Some(pair) => self.data(pair),
            None => live
                .get("data")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
        };
        let typeless = |object: &Value| {
            let mut object = object.clone();
            if let Some(fields) = object.as_object_mut() {
                fields.shift_remove("type");
            }
            object
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

fn webhooks(configuration: &Value) -> Option<&Vec<Value>> {
    configuration.get("webhooks")?.as_array()
}

fn ca_bundle(webhook: &Value) -> Vec<u8> {
    decoded(webhook.pointer("/clientConfig/caBundle"))
}

/// The bytes of a field; what is none holds nothing.
fn decoded(field: Option<&Value>) -> Vec<u8> {
    field
        .and_then(Value::as_str)
        .and_then(|text| STANDARD.decode(text).ok())
        .unwrap_or_default()
}

fn is_injected(configuration: &Value) -> bool {
    let annotations = configuration
        .pointer("/metadata/annotations")
        .and_then(Value::as_object);
    annotations.is_some_and(|found| found.keys().any(|key| key.starts_with(INJECTION)))
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
