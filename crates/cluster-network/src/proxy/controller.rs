//! Completes the status of the cluster-wide proxy, and merges the certificate authorities of the user and of the system
//! (§15.1).

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use api::cluster_network::SINGLETON;
use kube::Client;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube_kit::client::message;
use kube_kit::object::{CLUSTER_NETWORK, CONFIG_MAP, OPENSHIFT_INFRASTRUCTURE, PROXY};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{Infrastructure, Installation, Network, Spec, Status, readiness, status, validate};
use crate::objects::{self, text, texts};
use crate::report::{Failure, Level, Reports};
use crate::settings;
use crate::trust::controller::{BUNDLE_NAME, BUNDLE_NAMESPACE, bundle};
use crate::trust::{self, BUNDLE, COMPONENT, Merged, OWNING_COMPONENT, USER_BUNDLE};

/// Namespace of the users' bundles.
const USER_NAMESPACE: &str = "openshift-config";
/// Namespace, name and key of the configuration of the installer.
const INSTALLATION: (&str, &str, &str) = ("kube-system", "cluster-config-v1", "install-config");
/// File with the certificate authorities that the system trusts.
pub const SYSTEM_BUNDLE: &str = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem";
/// Suffix of the field manager.
const PART: &str = "proxyconfig";
/// SOCKS proxy of konnectivity beside the operator of a hosted cluster. It leads into the hosted cluster's network.
const HOSTED_NETWORK: &str = "127.0.0.1:8090";
const INVALID: &str = "InvalidProxyConfig";
const LONGEST: Duration = Duration::from_mins(5);

/// The observed proxy.
#[derive(Clone, Debug, Default)]
struct Live {
    spec: Spec,
    status: Status,
}

fn live(object: &Value) -> Live {
    let part = |key: &str| text(object, &format!("/status/{key}")).to_owned();
    Live {
        // A malformed spec counts as empty. The API server refuses such objects.
        spec: Spec::deserialize(&object["spec"]).unwrap_or_default(),
        status: Status {
            http_proxy: part("httpProxy"),
            https_proxy: part("httpsProxy"),
            no_proxy: part("noProxy"),
        },
    }
}

fn infrastructure(object: &Value) -> Infrastructure {
    let platform = objects::platform(object);
    let part = |pointer: &str| text(object, pointer).to_owned();
    let of_platform = |key: &str| {
        part(&format!(
            "/status/platformStatus/{}/{key}",
            platform.to_lowercase()
        ))
    };
    Infrastructure {
        name: part("/metadata/name"),
        internal_url: part("/status/apiServerInternalURI"),
        platform: platform.to_owned(),
        region: of_platform("region"),
        azure_cloud: of_platform("cloudName"),
        azure_endpoint: of_platform("armEndpoint"),
        is_hosted: text(object, "/status/controlPlaneTopology") == "External",
        has_proxied_api_server: false,
    }
}

fn network(object: &Value) -> Network {
    let pods = objects::list(object, "/status/clusterNetwork").map(|entry| text(entry, "/cidr").to_owned());
    Network {
        name: text(object, "/metadata/name").to_owned(),
        services: texts(object, "/status/serviceNetwork"),
        pods: pods.collect(),
    }
}

fn installation(object: &Value) -> Installation {
    let (_, _, key) = INSTALLATION;
    let Some(config) = object["data"][key].as_str() else {
        return Installation::NoConfig;
    };
    Installation::read(config).unwrap_or_else(|error| {
        tracing::warn!(%error, "the configuration of the installer is malformed");
        Installation::NoConfig
    })
}

fn stored(object: &Value) -> Merged {
    let user = object["metadata"]["annotations"][USER_BUNDLE].as_str();
    Merged {
        bundle: object["data"][BUNDLE].as_str().map(trust::digest),
        user: user.map(str::to_owned),
    }
}

/// Runs until the shutdown. `system` is the file with the system's bundle, which may be missing.
pub async fn run(
    client: Client,
    system: PathBuf,
    hosted: Option<&settings::Hosted>,
    reports: &Reports,
    shutdown: &Shutdown,
) {
    let queue = reports.queue("proxyconfig", LONGEST);
    queue.add(());
    let mut controller = Controller::start(client, system, hosted, &queue);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next_when(|| controller.has_begun()) => {}
        }
        let reconciled = tokio::select! {
            () = shutdown.wait() => return,
            reconciled = controller.reconcile() => reconciled,
        };
        let failure = reconciled.err();
        reports.set(Level::ProxyConfig, failure.as_ref());
        match failure {
            None => queue.succeeded(&()),
            Some(failure) => {
                let pause = queue.failed(());
                tracing::warn!(reason = failure.reason, error = failure.message, retry = ?pause, "proxy not completed");
            }
        }
    }
}

fn invalid(error: &dyn std::error::Error) -> Failure {
    Failure::at_once(
        INVALID,
        format!(
            "The configuration is invalid for proxy '{SINGLETON}' ({error}). Use 'oc edit proxy.config.openshift.io \
             {SINGLETON}' to fix."
        ),
    )
}

struct Controller {
    client: Client,
    system: PathBuf,
    /// The operator of a hosted cluster is in another network than the proxies.
    is_hosted: bool,
    has_proxied_api_server: bool,
    proxy: Store<Name, Live>,
    infrastructure: Store<Name, Infrastructure>,
    network: Store<Name, Network>,
    installation: Store<Name, Installation>,
    /// Bundles of the users.
    bundles: Store<Name, Option<String>>,
    /// The merged bundle of the cluster.
    merged: Store<Name, Merged>,
    /// The proxy whose endpoints answered, and the bundle for TLS at that time.
    probed: Option<(Spec, trust::Digest)>,
    _watches: Waking<()>,
}

impl Controller {
    fn start(client: Client, system: PathBuf, hosted: Option<&settings::Hosted>, queue: &Queue<()>) -> Self {
        let mut watches = Waking::new(client.clone(), queue);
        let one = Options::all().named(SINGLETON);
        let (namespace, name, _) = INSTALLATION;
        let installer = Options::all().named(name);
        let merged = Options::all().named(BUNDLE_NAME);
        Self {
            client,
            system,
            is_hosted: hosted.is_some(),
            has_proxied_api_server: hosted.is_some_and(|hosted| hosted.has_proxied_api_server),
            proxy: watches.start(&PROXY, None, &one, (), live),
            infrastructure: watches.start(&OPENSHIFT_INFRASTRUCTURE, None, &one, (), infrastructure),
            network: watches.start(&CLUSTER_NETWORK, None, &one, (), network),
            installation: watches.start(&CONFIG_MAP, Some(namespace), &installer, (), installation),
            bundles: watches.start(&CONFIG_MAP, Some(USER_NAMESPACE), &Options::all(), (), bundle),
            merged: watches.start(&CONFIG_MAP, Some(BUNDLE_NAMESPACE), &merged, (), stored),
            probed: None,
            _watches: watches,
        }
    }

    fn has_begun(&self) -> bool {
        has_begun(&self.proxy)
            && has_begun(&self.infrastructure)
            && has_begun(&self.network)
            && has_begun(&self.installation)
            && has_begun(&self.bundles)
            && has_begun(&self.merged)
    }

    async fn reconcile(&mut self) -> Result<(), Failure> {
        let key = Name::new("", SINGLETON);
        let Some(live) = self.proxy.get(&key) else {
            // The cluster lacks this API, or has no proxy. A deleted proxy withdraws the authorities of its user.
            if self.proxy.is_synced() && self.before().user.is_some() {
                self.merge("").await?;
            }
            return Ok(());
        };
        validate(&live.spec).map_err(|error| invalid(&error))?;
        let bundle = self.merge(&live.spec.trusted_ca.name).await?;
        self.probe(&live.spec, &bundle).await?;
        let mut infrastructure = self.infrastructure.get(&key).unwrap_or_else(|| Infrastructure {
            name: SINGLETON.to_owned(),
            ..Infrastructure::default()
        });
        infrastructure.has_proxied_api_server = self.has_proxied_api_server;
        let network = self.network.get(&key).unwrap_or_else(|| Network {
            name: SINGLETON.to_owned(),
            ..Network::default()
        });
        let (namespace, name, _) = INSTALLATION;
        let installation = self.installation.get(&Name::new(namespace, name));
        let installation = installation.unwrap_or(Installation::Unknown);
        let wanted = status(&live.spec, &infrastructure, &installation, &network).map_err(|error| {
            Failure::debounced(
                "StatusError",
                format!("Could not update proxy '{SINGLETON}' status: {error}"),
            )
        })?;
        if wanted != live.status {
            self.write(&wanted).await.map_err(|error| {
                Failure::debounced(
                    "StatusError",
                    format!("Could not update proxy '{SINGLETON}' status: {error}"),
                )
            })?;
        }
        Ok(())
    }

    /// Probes the endpoints through the proxy. An unchanged proxy is probed once.
    async fn probe(&mut self, spec: &Spec, bundle: &str) -> Result<(), Failure> {
        if !spec.is_set() || spec.readiness_endpoints.is_empty() {
            return Ok(());
        }
        let probed = Some((spec.clone(), trust::digest(bundle)));
        if self.probed == probed {
            return Ok(());
        }
        readiness::check(spec, bundle, self.is_hosted.then_some(HOSTED_NETWORK))
            .await
            .map_err(|error| invalid(&error))?;
        self.probed = probed;
        Ok(())
    }

    /// Applies the merged bundle of the cluster, and returns it.
    async fn merge(&self, user: &str) -> Result<String, Failure> {
        let system = fs::read_to_string(&self.system).unwrap_or_default();
        let of_user = if user.is_empty() {
            None
        } else {
            let bundle = self.bundles.get(&Name::new(USER_NAMESPACE, user)).flatten();
            let missing = || {
                let text = format!(
                    "ConfigMap {USER_NAMESPACE}/{user} of trustedCA has no key {BUNDLE}, or does not exist"
                );
                Failure::debounced(INVALID, text)
            };
            Some(bundle.ok_or_else(missing)?)
        };
        let merged = trust::merge(of_user.as_deref(), &system).map_err(|error| {
            let text = format!(
                "ConfigMap {USER_NAMESPACE}/{user} of trustedCA holds no bundle of certificates: {error}"
            );
            Failure::debounced(INVALID, text)
        })?;
        let before = self.before();
        let Some(wanted) = before.wanted(user, &merged).filter(|wanted| *wanted != before) else {
            return Ok(merged);
        };
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": BUNDLE_NAME, "namespace": BUNDLE_NAMESPACE,
                "annotations": { OWNING_COMPONENT: COMPONENT },
            },
            "data": { BUNDLE: &merged },
        });
        if let Some(user) = &wanted.user {
            object["metadata"]["annotations"][USER_BUNDLE] = json!(user);
        }
        let applied = objects::apply(&self.client, &CONFIG_MAP, PART, &object).await;
        let applied = applied.map_err(|error| {
            let text = format!(
                "cannot apply ConfigMap {BUNDLE_NAMESPACE}/{BUNDLE_NAME}: {}",
                message(&error)
            );
            Failure::at_once("EnsureProxyConfigFailure", text)
        })?;
        let key = Name::new(BUNDLE_NAMESPACE, BUNDLE_NAME);
        self.merged.put(key, objects::version(&applied), wanted);
        Ok(merged)
    }

    fn before(&self) -> Merged {
        let key = Name::new(BUNDLE_NAMESPACE, BUNDLE_NAME);
        self.merged.get(&key).unwrap_or_default()
    }

    async fn write(&self, wanted: &Status) -> Result<(), String> {
        let api = objects::api(&self.client, &PROXY, "");
        let mut object: DynamicObject = api.get(SINGLETON).await.map_err(|error| message(&error))?;
        let old = object.data["status"].take();
        let mut status = if old.is_object() { old } else { json!({}) };
        for (key, value) in [
            ("httpProxy", &wanted.http_proxy),
            ("httpsProxy", &wanted.https_proxy),
            ("noProxy", &wanted.no_proxy),
        ] {
            status[key] = json!(value);
        }
        object.data["status"] = status;
        let written = api
            .replace_status(SINGLETON, &PostParams::default(), &object)
            .await;
        let written = written.map_err(|error| message(&error))?;
        let object = serde_json::to_value(written).unwrap_or_default();
        let key = Name::new("", SINGLETON);
        self.proxy.put(key, objects::version(&object), live(&object));
        tracing::info!(no_proxy = wanted.no_proxy, "status of the proxy written");
        Ok(())
    }
}
