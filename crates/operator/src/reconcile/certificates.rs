//! Certificates that the operator issues itself (operands §13).

use std::time::SystemTime;

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::cache::Lookup;
use webhook::certificates::{self, Objects};

use super::Reconciler;
use crate::{
    cluster_facts::{Cluster, NodeState},
    components::{Context, kubevirt_ipam_controller::IssuedCertificates},
    general,
    manifest::{self, Manifest},
    resource::Resource,
};

impl Reconciler {
    /// Issues and rotates certificates for what was applied: also while the configuration is rejected, because what
    /// runs goes on. Only what is on record as ours is written, so that it is removed one day.
    pub(super) async fn keep_certificates(&mut self, cr: &Resource) -> Result<(), String> {
        // The plan reports a record that can't be read.
        let Ok(Ok(applied)) = self.applied(cr) else {
            return Ok(());
        };
        let (Some(spec), Some(inventory)) = (applied.spec, applied.inventory) else {
            return Ok(());
        };
        let Some(issued) = self.issued(&spec).map_err(|error| error.to_string())? else {
            return Ok(());
        };
        if !issued.objects().iter().all(|id| inventory.contains(id)) {
            return Ok(());
        }
        // Not to be had: a watch will tell.
        if self.cache().lookup(&issued.configuration) == Lookup::Absent {
            return Ok(());
        }
        let stamp = cr.stamp(&self.settings);
        let stamped = |mut secret: Manifest| {
            stamp.put_on(&mut secret)?;
            Ok::<_, manifest::Error>(secret.into_value())
        };
        let secrets =
            stamped(issued.authority).and_then(|authority| Ok((authority, stamped(issued.serving)?)));
        let (authority, serving) = secrets.map_err(|error| error.to_string())?;
        let objects = Objects {
            authority,
            serving,
            configurations: vec![issued.configuration],
        };
        let intervals = general::intervals(&spec);
        let look_again = certificates::keep(&self.applier, &objects, &issued.identity, &intervals).await;
        self.look_again = Some(look_again.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// When certificates have to be looked at again, even if nothing changes.
    pub fn look_again(&self) -> Option<SystemTime> {
        self.look_again
    }

    fn issued(&self, spec: &NetworkAddonsConfigSpec) -> Result<Option<IssuedCertificates>, manifest::Error> {
        let cluster = Cluster {
            platform: self.platform,
            openshift_network: None,
        };
        IssuedCertificates::of(&Context {
            spec,
            cluster: &cluster,
            images: &self.settings.images,
            namespace: &self.settings.operand_namespace,
            prometheus: &self.settings.prometheus,
            node_state: &NodeState::default(),
        })
    }
}
