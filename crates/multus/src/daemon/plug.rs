//! `/delegate`: attaches, detaches or checks one network of a running pod (multus.md §7.4).

use super::{Daemon, NODE_WORK, failed, on_chain};
use crate::attach::Attacher;
use crate::attach::netns::KernelNetns;
use crate::attach::plug::{NetworkId, Plugged};
use crate::cluster::ClusterView;
use crate::execution::in_process::Plugins;
use crate::messages::{self, of_pod};
use crate::names;
use crate::networks::delegate::{self, Config, Delegate};
use crate::networks::net_conf::MultusConfig;
use crate::networks::resolve::{PodError, Resolver};
use crate::sandbox::{PodVerb, Sandbox};
use cni::Error;
use cni::error::code;
use cni::json::Object;
use cni::names::key;
use cni::result::CniResult;
use cni::selection::NetworkSelection;
use cni::version::Version;

impl<C: ClusterView + 'static> Daemon<C> {
    /// ADD, DEL or CHECK of one network.
    pub(super) async fn network_call(
        &self,
        verb: PodVerb,
        sandbox: Sandbox,
        config: &[u8],
        attributes: &NetworkSelection,
    ) -> Result<Option<String>, Error> {
        match verb {
            PodVerb::Add => {
                let pod_name = format!("[{}/{}]", sandbox.pod.namespace, sandbox.pod.name);
                let result = self.plug(sandbox, config, attributes).await.map_err(|error| {
                    error.prefixed(&format!("error configuring pod {pod_name} networking"))
                })?;
                Ok(Some(result.to_json(Version::LATEST)?.to_string()))
            }
            PodVerb::Del => self.unplug(sandbox, config, attributes).await.map(|()| None),
            PodVerb::Check => self
                .check_network(sandbox, config, attributes)
                .await
                .map(|()| None),
        }
    }

    async fn plug(
        &self,
        mut sandbox: Sandbox,
        config: &[u8],
        attributes: &NetworkSelection,
    ) -> Result<CniResult, Error> {
        let multus = self.own_conf()?;
        if self.pod(&mut sandbox).await?.is_none() {
            return Err(of_pod(&sandbox, "the pod is gone"));
        }
        let target = &attributes.namespace;
        // Without a NAD there is no namespace to check.
        if !target.is_empty() && !multus.permits(&sandbox.pod.namespace, target) {
            let refused = PodError::Isolation {
                pod: sandbox.pod.namespace.clone(),
                target: target.clone(),
            };
            self.warn(&sandbox, names::REASON_FAILED, refused.to_string());
            return Err(of_pod(&sandbox, &refused.to_string()));
        }
        let delegate = network(config, attributes, Some(&sandbox.ifname), &multus)?;
        match self.plug_known(&sandbox, &delegate, &multus).await {
            Ok(plugged) => {
                if let Plugged::Now(attached) = &plugged {
                    self.report_attached(&sandbox, attached);
                }
                Ok(plugged.result().clone())
            }
            Err(error) => {
                let text = messages::failed_adding(&sandbox.ifname, &delegate.display_name, &error);
                self.warn(&sandbox, names::REASON_FAILED, text);
                let network = delegate.config.name();
                Err(error.prefixed(&format!(
                    "[{}:{network}]: error adding container to network \"{network}\"",
                    sandbox.pod
                )))
            }
        }
    }

    /// Attaches the network. For a sandbox without records, also records the network that every pod gets.
    async fn plug_known(
        &self,
        sandbox: &Sandbox,
        delegate: &Delegate,
        multus: &MultusConfig,
    ) -> Result<Plugged, Error> {
        let defaults = self.defaults_to_record(sandbox, multus).await;
        let delegate = delegate.clone();
        let work = move |attacher: &Attacher<'_, Plugins>| {
            let mut netns = KernelNetns::new(&attacher.sandbox.netns);
            let plugged = attacher.plug(&delegate, defaults, &mut netns);
            if attacher.runner.is_given_up() && matches!(plugged, Ok(Plugged::Now(_))) {
                tracing::warn!(sandbox = %attacher.sandbox, "a plugin returned after its call was given up");
                attacher.undo_late_plug(&delegate);
                return Err(of_pod(attacher.sandbox, messages::GIVEN_UP));
            }
            plugged
        };
        let (slot, _gate) = self.turn(&sandbox.pod.namespace).await;
        self.on_sandbox_in(slot, &self.workers, sandbox.clone(), multus.clone(), work)
            .await?
    }

    /// The network that every pod gets, for a sandbox without a record. With a record it is not needed, and not looked
    /// up.
    async fn defaults_to_record(
        &self,
        sandbox: &Sandbox,
        multus: &MultusConfig,
    ) -> Result<Vec<Delegate>, Error> {
        let has_record = Attacher {
            runner: &self.invoker(multus),
            config: multus,
            sandbox,
        }
        .has_record();
        if has_record {
            return Err(of_pod(sandbox, "the pod's own network is unknown"));
        }
        let resolver = Resolver {
            cluster: &*self.cluster,
            config: multus,
        };
        let defaults = resolver.defaults(None).await;
        defaults.map_err(|error| of_pod(sandbox, &error.to_string()))
    }

    async fn unplug(
        &self,
        sandbox: Sandbox,
        config: &[u8],
        attributes: &NetworkSelection,
    ) -> Result<(), Error> {
        let multus = self.own_conf()?;
        let asked = asked(config, attributes);
        let prefix = format!("[{}]: error deleting interface {}", sandbox.pod, sandbox.ifname);
        let unplugged = self.on_sandbox(&self.detachers, sandbox, multus, move |attacher| {
            attacher.unplug(&asked, &mut KernelNetns::new(&attacher.sandbox.netns))
        });
        unplugged.await?.map_err(|error| error.prefixed(&prefix))
    }

    async fn check_network(
        &self,
        sandbox: Sandbox,
        config: &[u8],
        attributes: &NetworkSelection,
    ) -> Result<(), Error> {
        let multus = self.own_conf()?;
        let asked = asked(config, attributes);
        // May be an error: it is not needed when the network is recorded.
        let sent = network(config, attributes, Some(&sandbox.ifname), &multus);
        self.on_sandbox(&self.workers, sandbox, multus, move |attacher| {
            attacher.check_plugged(&asked, sent)
        })
        .await?
    }

    /// STATUS of a network that is to be attached.
    pub(super) async fn network_status(
        &self,
        config: &[u8],
        attributes: &NetworkSelection,
    ) -> Result<(), Error> {
        let multus = self.own_conf()?;
        let delegate = network(config, attributes, None, &multus)?;
        let invoker = self.invoker(&multus);
        let work = move || {
            on_chain(&delegate, &invoker, &multus.cni_dir, |network, chain| {
                chain.status(network)
            })
        };
        self.workers.run(NODE_WORK, work).await.map_err(failed)?
    }
}

/// The identity of an attached network in a call. The sent configuration may have become unusable since; only its
/// name is read.
fn asked(config: &[u8], attributes: &NetworkSelection) -> NetworkId {
    let nad = nad(attributes);
    let network = Object::parse(config).ok().map(|config| {
        let name = config.text(key::NAME).filter(|name| !name.is_empty());
        name.unwrap_or_else(|| attributes.name.clone())
    });
    NetworkId {
        nad,
        network: network.filter(|name| !name.is_empty()),
    }
}

/// The display name of the NAD that the caller names.
fn nad(attributes: &NetworkSelection) -> Option<String> {
    let NetworkSelection { namespace, name, .. } = attributes;
    (!namespace.is_empty() && !name.is_empty()).then(|| format!("{namespace}/{name}"))
}

/// The network of a call with its requested attributes. A configuration without a version gets multus' own.
fn network(
    config: &[u8],
    attributes: &NetworkSelection,
    ifname: Option<&str>,
    multus: &MultusConfig,
) -> Result<Delegate, Error> {
    let mut config = Config::parse_named(config, &attributes.name).map_err(|error| unusable(&error))?;
    if config.cni_version().is_empty() && !multus.cni_version.is_empty() {
        config
            .set(key::CNI_VERSION, &multus.cni_version)
            .map_err(|error| unusable(&error))?;
    }
    let mut delegate = Delegate::new(nad(attributes).unwrap_or_else(|| config.name()), config);
    delegate.ask(attributes).map_err(|error| unusable(&error))?;
    delegate.requests.interface = ifname.map(str::to_owned);
    Ok(delegate)
}

fn unusable(error: &delegate::Error) -> Error {
    Error::new(code::INVALID_NETWORK_CONFIG, format!("Multus: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_definition_still_has_name() {
        let attributes = |namespace: &str, name: &str| NetworkSelection {
            namespace: namespace.into(),
            name: name.into(),
            ..NetworkSelection::default()
        };
        let expected = |nad: Option<&str>, network: Option<&str>| NetworkId {
            nad: nad.map(Into::into),
            network: network.map(Into::into),
        };
        for (config, network) in [
            ("", None),
            ("{", None),
            ("{}", Some("n")),
            (r#"{"name":"x","plugins":[]}"#, Some("x")),
            (r#"{"name":"x","type":""}"#, Some("x")),
            (r#"{"name":7}"#, Some("n")),
        ] {
            assert_eq!(
                asked(config.as_bytes(), &attributes("ns", "n")),
                expected(Some("ns/n"), network),
                "{config}"
            );
        }
        // The upstream controller names nothing.
        assert_eq!(asked(b"{}", &attributes("", "")), expected(None, None));
        assert_eq!(
            asked(br#"{"name":"x"}"#, &attributes("", "")),
            expected(None, Some("x"))
        );
    }
}
