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
    /// Issues and rotates the certificates of the applied components, also while the configuration is rejected: the
    /// components still run. Only Secrets in the inventory are written, so that each is deleted one day. Returns whether
    /// all certificates are in order.
    pub(super) async fn rotate_certificates(&mut self, cr: &Resource) -> Result<bool, String> {
        // The plan reports an unreadable record.
        let Ok(Ok(applied)) = self.applied(cr) else {
            return Ok(false);
        };
        let (Some(spec), Some(inventory)) = (applied.spec, applied.inventory) else {
            return Ok(false);
        };
        let Some(issued) = self.issued(&spec).map_err(|error| error.to_string())? else {
            return Ok(true);
        };
        if !issued.objects().iter().all(|id| inventory.contains(id)) {
            return Ok(false);
        }
        // The configuration does not exist. A watch reports its creation.
        if self.cache().lookup(&issued.configuration) == Lookup::Absent {
            return Ok(false);
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
        let kept = certificates::keep(&self.applier, &objects, &issued.identity, &intervals).await;
        let kept = kept.map_err(|error| error.to_string())?;
        self.certificates_due = Some(kept.next_check);
        Ok(kept.in_order)
    }

    /// Time of the next check of certificates.
    pub(crate) fn look_again(&self) -> Option<SystemTime> {
        self.certificates_due
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
