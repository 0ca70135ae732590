//! ADD (multus.md §5.2).

use super::{Caller, Daemon};
use crate::attach::netns::KernelNetns;
use crate::attach::{AddError, Attached, Attacher, NetworkFailure};
use crate::cluster::{ClusterView, Pod};
use crate::execution::in_process::Plugins;
use crate::execution::workers::Part;
use crate::messages::{self, of_pod};
use crate::metrics::step;
use crate::names;
use crate::networks::delegate::Delegate;
use crate::networks::net_conf::MultusConfig;
use crate::networks::resolve::Resolver;
use crate::sandbox::Sandbox;
use crate::store::scratch::Scratch;
use cni::Error;
use cni::result::{CniResult, Interface, IpConfig};
use cni::status::{entries_for, render};
use cni::version::Version;
use ipnet::Ipv4Net;
use kube_kit::events::Kind;
use std::fmt::Display;
use std::io;
use std::net::Ipv4Addr;
use std::time::Instant;

/// Waits for work before the first plugin, unless the caller goes. A runtime that gave up retries with another sandbox:
/// this attachment would be rolled back at once.
async fn unless_gone<T>(
    sandbox: &Sandbox,
    caller: &Caller,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        () = caller.closed() => Err(of_pod(
            sandbox,
            "the runtime closed the connection while the call waited, nothing was attached",
        )),
        done = work => Ok(done),
    }
}

/// Completes when the scratch file is on disk. `None` for a sandbox without a scratch file.
type Synced = Option<Part<io::Result<()>>>;

impl<C: ClusterView + 'static> Daemon<C> {
    pub(super) async fn add(
        &self,
        mut sandbox: Sandbox,
        config: &[u8],
        caller: &Caller,
    ) -> Result<String, Error> {
        let pod_name = format!("[{}/{}]", sandbox.pod.namespace, sandbox.pod.name);
        let answer = async {
            let mut steps = self.own.metrics.steps();
            let config = self.net_conf(config)?;
            self.wait_ready(&config, Some(&sandbox)).await?;
            self.replay_before_add(&sandbox, &config).await;
            let Some(pod) = self.pod(&mut sandbox).await? else {
                tracing::info!("pod {} is gone, nothing is attached", sandbox.pod);
                return Ok(placeholder_result(&sandbox));
            };
            let networks = unless_gone(&sandbox, caller, self.networks(&sandbox, &pod, &config)).await??;
            steps.end(step::LOOK_UP);
            let (attached, synced) = self.attach(&sandbox, config, networks, caller).await?;
            let mut steps = self.own.metrics.steps();
            self.tell(&sandbox, &pod, &attached).await?;
            steps.end(step::STATUS);
            let unsaved =
                |error: &dyn Display| of_pod(&sandbox, &format!("error saving the delegates: {error}"));
            if let Some(synced) = synced {
                let synced = synced.end().await.map_err(|error| unsaved(&error))?;
                synced.map_err(|error| unsaved(&error))?;
            }
            steps.end(step::DISK);
            // The master's result alone is the pod's.
            Ok(attached
                .first()
                .map(|master| master.result.clone())
                .unwrap_or_default())
        };
        let result: CniResult = answer.await.map_err(|error: Error| {
            if self.config.one_shot.is_some() {
                return error;
            }
            error.prefixed(&format!("error configuring pod {pod_name} networking"))
        })?;
        Ok(result.to_json(Version::LATEST)?.to_string())
    }

    /// The pod of the sandbox; `None` when it is gone. Sets the sandbox's UID when the runtime sent none.
    pub(super) async fn pod(&self, sandbox: &mut Sandbox) -> Result<Option<Pod>, Error> {
        let named = sandbox.pod.clone();
        let found = self
            .cluster
            .pod(&named.namespace, &named.name, named.uid.as_deref())
            .await;
        let Some(pod) = found.map_err(|error| of_pod(sandbox, &format!("error waiting for pod: {error}")))?
        else {
            return Ok(None);
        };
        match &named.uid {
            None => sandbox.pod.uid = Some(pod.uid.clone()),
            Some(uid) if *uid != pod.uid && !pod.is_static => {
                let text = format!("expected pod UID \"{uid}\" but got \"{}\" from Kube API", pod.uid);
                return Err(of_pod(sandbox, &text));
            }
            Some(_) => {}
        }
        Ok(Some(pod))
    }

    async fn networks(
        &self,
        sandbox: &Sandbox,
        pod: &Pod,
        config: &MultusConfig,
    ) -> Result<Vec<Delegate>, Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config,
        };
        let mut networks = resolver.networks_of(pod).await.map_err(|error| {
            match error.missing() {
                Some(missing) => self.warn(sandbox, names::REASON_NO_NETWORK, missing.to_string()),
                None => self.warn(sandbox, names::REASON_FAILED, error.to_string()),
            }
            of_pod(sandbox, &error.to_string())
        })?;
        let given = self
            .give_devices(sandbox, pod, &mut networks, &self.workers)
            .await;
        given.map_err(|error| {
            let text = error.to_string();
            self.warn(sandbox, names::REASON_FAILED, text.clone());
            of_pod(sandbox, &text)
        })?;
        Ok(networks)
    }

    /// Attaches all networks. Another thread syncs the scratch file while the plugins run and the status is written;
    /// the returned job completes when the file is on disk.
    async fn attach(
        &self,
        sandbox: &Sandbox,
        config: MultusConfig,
        networks: Vec<Delegate>,
        caller: &Caller,
    ) -> Result<(Vec<Attached>, Synced), Error> {
        let metrics = &self.own.metrics;
        let mut steps = metrics.steps();
        let (slot, gate) = unless_gone(sandbox, caller, self.turn(&sandbox.pod.namespace)).await?;
        steps.end(step::QUEUE);
        let scratch = Scratch::new(&config.cni_dir, &sandbox.container_id);
        let workers = self.workers.clone();
        let given = Instant::now();
        let work = move |attacher: &Attacher<'_, Plugins>| {
            let taken = given.elapsed();
            let mut steps = attacher.config.own.metrics.steps();
            let actions = attacher.prepare(&networks)?;
            let synced = scratch.map(|scratch| workers.start(move || scratch.sync()));
            steps.end(step::RECORD);
            let mut netns = KernelNetns::new(&attacher.sandbox.netns);
            let attached = attacher.add(&networks, &actions, &mut netns)?;
            steps.end(step::PLUGINS);
            if attacher.runner.is_given_up() {
                tracing::warn!(sandbox = %attacher.sandbox, "a plugin returned after its call was given up, rolling back");
                if let Err(error) = attacher.del(&networks) {
                    tracing::error!(sandbox = %attacher.sandbox, %error, "cannot roll back a call that was given up");
                }
                return Err(AddError::Prepare(messages::GIVEN_UP.into()));
            }
            Ok((attached, synced, taken, Instant::now()))
        };
        // The main thread has nothing else to do while a worker attaches.
        self.cluster.expect_write();
        let attached = self
            .on_sandbox_in(slot, &self.workers, sandbox.clone(), config, work)
            .await;
        // From now on GC reads the attachments from the result cache.
        drop(gate);
        match attached? {
            Ok((attached, synced, taken, ended)) => {
                metrics.step(step::THREAD, taken + ended.elapsed());
                Ok((attached, synced))
            }
            Err(AddError::Network(failure)) => {
                let NetworkFailure {
                    display_name,
                    network,
                    ifname,
                    error,
                } = *failure;
                let text = messages::failed_adding(&ifname, &display_name, &error);
                self.warn(sandbox, names::REASON_FAILED, text);
                let prefix = format!(
                    "[{}:{network}]: error adding container to network \"{network}\"",
                    sandbox.pod
                );
                Err(error.prefixed(&prefix))
            }
            Err(AddError::Prepare(text) | AddError::Route(text)) => {
                self.warn(sandbox, names::REASON_FAILED, text.clone());
                Err(of_pod(sandbox, &text))
            }
        }
    }

    /// Reports all networks by log lines, events and one write of the network status.
    async fn tell(&self, sandbox: &Sandbox, pod: &Pod, attached: &[Attached]) -> Result<(), Error> {
        let mut entries = Vec::new();
        for (index, network) in attached.iter().enumerate() {
            self.report_attached(sandbox, network);
            let Attached {
                display_name,
                result,
                device_info,
                ..
            } = network;
            entries.extend(entries_for(display_name, result, index == 0, device_info.clone()));
        }
        if entries.is_empty() {
            return Ok(());
        }
        let written = self.cluster.write_status(pod, &render(&entries)).await;
        written.map_err(|error| of_pod(sandbox, &format!("error setting the networks status: {error}")))
    }

    /// Logs an attached network and publishes an event about the pod.
    pub(super) fn report_attached(&self, sandbox: &Sandbox, attached: &Attached) {
        let Attached {
            display_name,
            network,
            ifname,
            result,
            ..
        } = attached;
        let json = result
            .to_json(Version::LATEST)
            .map(|json| json.to_string())
            .unwrap_or_default();
        let pod = &sandbox.pod;
        tracing::info!(
            "Add: {}:{}:{}:{display_name}({network}):{ifname} {json}",
            pod.namespace,
            pod.name,
            pod.uid.as_deref().unwrap_or_default()
        );
        if let Some(text) = event_text(attached) {
            self.cluster.event(pod, Kind::Normal, names::REASON_ADDED, text);
        }
    }
}

/// The text of the pod's event. `None` for a plugin that attached nothing, such as one that only changes settings.
fn event_text(attached: &Attached) -> Option<String> {
    let Attached {
        display_name,
        ifname,
        result,
        ..
    } = attached;
    (!result.interfaces.is_empty() || !result.ips.is_empty())
        .then(|| messages::added(ifname, display_name, result))
}

/// The result for a pod that is gone: a placeholder that runtimes accept.
fn placeholder_result(sandbox: &Sandbox) -> CniResult {
    let interface = Interface {
        name: sandbox.ifname.clone(),
        sandbox: Some(sandbox.netns.clone()),
        ..Interface::default()
    };
    let address = IpConfig {
        address: Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 32).into(),
        gateway: Some(Ipv4Addr::UNSPECIFIED.into()),
        interface: None,
    };
    CniResult {
        interfaces: vec![interface],
        ips: vec![address],
        ..CniResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_without_attachment_has_no_event() {
        // multus#32
        let silent = Attached {
            display_name: "ns/a".into(),
            network: "a".into(),
            ifname: "net1".into(),
            result: CniResult::default(),
            device_info: None,
        };
        assert_eq!(event_text(&silent), None);
        let interface = Interface {
            name: "net1".into(),
            ..Interface::default()
        };
        let visible = Attached {
            result: CniResult {
                interfaces: vec![interface],
                ..CniResult::default()
            },
            ..silent
        };
        assert_eq!(event_text(&visible).as_deref(), Some("Add net1 [] from ns/a"));
    }
}
