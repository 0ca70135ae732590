//! Addresses of instances whose guests have reported none yet (`KSD_EARLY_ADDRESSES`): the addresses of their claims,
//! or of their pods.
//!
//! ```text
//! VMI ── networks ──> names of claims ──┐
//! list, watch ──> IPAMClaim ────────────┤
//! list, watch ──> Pod ── Launchers ─────┴──> the instance has other addresses: it is published once more
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::ipam_claim::{IPAMClaim, claim_name};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use kube_kit::connection;
use kube_kit::pages::Pages;
use kube_kit::watch::{self, DeserializeGuard, Name, Options, Store, Trouble, Watch};

use crate::launchers::Launchers;
use crate::vmi::Vmi;

/// Claims per page of a list.
const PAGE: u32 = 250;
/// Interval of the checks for a refused list.
const PAUSE: Duration = Duration::from_millis(100);

/// The read fields of a claim.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Claim {
    addresses: Box<[IpAddr]>,
    /// UIDs of the owners.
    owners: Box<[Box<str>]>,
}

impl Claim {
    fn of(claim: &IPAMClaim) -> Self {
        let texts = claim.status.iter().flat_map(|status| &status.ips);
        let address = |text: &String| text.split('/').next()?.parse().ok();
        let owners = claim.owner_references().iter();
        Self {
            addresses: texts.filter_map(address).collect(),
            owners: owners.map(|owner| owner.uid.as_str().into()).collect(),
        }
    }

    /// The addresses, if the claim may be the instance's: a claim with other owners is of an earlier virtual machine of
    /// the same name.
    fn addresses_of(&self, vmi: &Vmi) -> &[IpAddr] {
        let is_ours = |uid: &str| self.owners.iter().any(|owner| **owner == *uid);
        if self.owners.is_empty() || vmi.uids().any(is_ours) {
            &self.addresses
        } else {
            &[]
        }
    }
}

/// Claims of the cluster by name.
pub(crate) type Claims = Store<Name, Claim>;

/// Starts the watch of claims, and waits for the first list.
pub(crate) async fn watch(client: Client) -> Watch<Name, Claim> {
    let api: Api<DeserializeGuard<IPAMClaim>> = Api::all(client);
    let watch = watch::start_named(api, &Options::all().page(PAGE), |claim: IPAMClaim| {
        Claim::of(&claim)
    });
    first_list(&watch, "IPAMClaims").await;
    watch
}

/// Waits for the first list of a watch. If the kind is not served, or the account may not read it, logs that and does
/// not wait: names then appear with the reports of guests.
pub(crate) async fn first_list<T: Clone>(watch: &Watch<Name, T>, kind: &str) {
    let store = watch.store();
    let refused = async {
        loop {
            match store.trouble(Duration::ZERO) {
                Some(Trouble::NotServed) => break tracing::info!(kind, "not served yet, watching later"),
                Some(Trouble::Refused(verb)) => {
                    break tracing::error!(kind, verb, "the API server does not let this account read them");
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tokio::select! {
        () = store.synced() => {}
        () = refused => {}
    }
}

/// Reads the claims once. Empty if the kind is not served.
///
/// # Errors
/// If the claims cannot be read.
pub(crate) async fn list(client: &Client) -> Result<BTreeMap<Name, Claim>, connection::Error> {
    let api: Api<IPAMClaim> = Api::all(client.clone());
    let mut pages = Pages::new(api, ListParams::default().limit(PAGE));
    let mut all = BTreeMap::new();
    loop {
        let page = match pages.next().await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(all),
            page => page.map_err(|error| connection::Error::of("claims of addresses", &error))?,
        };
        let Some(page) = page else { return Ok(all) };
        let claims = page.iter();
        all.extend(claims.map(|claim| (Name::of(&claim.metadata), Claim::of(claim))));
    }
}

/// Addresses on a network of an instance: the addresses of its claim, otherwise of its pod.
pub(crate) fn early(claim: Option<&Claim>, launchers: &Launchers, vmi: &Vmi, network: &str) -> Vec<IpAddr> {
    match claim.map(|claim| claim.addresses_of(vmi)) {
        None | Some([]) => launchers.addresses(vmi, network),
        Some(claimed) => claimed.to_vec(),
    }
}

/// Instances, and their possible claims and pods.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// `None` if claims are not a source.
    pub(crate) claims: Option<Claims>,
    pub(crate) launchers: Launchers,
    instances: BTreeMap<Arc<str>, Vmi>,
    /// Keys of instances by the names of claims.
    owners: BTreeMap<Name, Arc<str>>,
}

impl Early {
    /// Applies an event of an instance.
    pub(crate) fn observe(&mut self, key: &Arc<str>, vmi: &Vmi) {
        self.gone(key);
        for network in vmi.secondary_networks() {
            self.owners.insert(claim_of(vmi, network), Arc::clone(key));
        }
        self.instances.insert(Arc::clone(key), vmi.clone());
    }

    /// Removes an instance.
    pub(crate) fn gone(&mut self, key: &Arc<str>) {
        if let Some(before) = self.instances.remove(key) {
            for network in before.secondary_networks() {
                self.owners.remove(&claim_of(&before, network));
            }
        }
    }

    /// The instance of a claim.
    pub(crate) fn owner(&self, claim: &Name) -> Option<Vmi> {
        self.instances.get(self.owners.get(claim)?).cloned()
    }

    /// The instance with this key.
    pub(crate) fn instance(&self, key: &str) -> Option<Vmi> {
        self.instances.get(key).cloned()
    }

    /// Addresses on a network of an instance.
    pub(crate) fn addresses(&self, vmi: &Vmi, network: &str) -> Vec<IpAddr> {
        let claims = self.claims.as_ref();
        let claim = claims.and_then(|claims| claims.get(&claim_of(vmi, network)));
        early(claim.as_ref(), &self.launchers, vmi, network)
    }
}

/// The name of the claim for a network of an instance.
pub(crate) fn claim_of(vmi: &Vmi, network: &str) -> Name {
    let (namespace, name) = vmi.name();
    Name::new(namespace, claim_name(name, network))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_of_a_claim_are_those_without_prefix_length_that_are_some() {
        let claim = json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": { "name": "a.b" },
            "spec": { "network": "n", "interface": "" },
            "status": { "ips": ["10.84.0.50/24", "fd00::50/64", "x", ""] },
        });
        let claim: IPAMClaim = serde_json::from_value(claim).unwrap();
        let expected: [IpAddr; 2] = ["10.84.0.50".parse().unwrap(), "fd00::50".parse().unwrap()];
        assert_eq!(*Claim::of(&claim).addresses, expected);
    }

    #[test]
    fn claim_of_an_earlier_machine_has_no_addresses() {
        // secondary-dns#72, the decision
        let vmi: Vmi = serde_json::from_value(json!({ "metadata": {
            "name": "a", "namespace": "ns1", "uid": "vmi", "ownerReferences": [
                { "kind": "Other", "uid": "other" }, { "kind": "VirtualMachine", "uid": "vm", "controller": true },
            ],
        } }))
        .unwrap();
        let count = |owners: &[&str]| {
            let claim = Claim {
                addresses: [IpAddr::from([10, 84, 0, 50])].into(),
                owners: owners.iter().map(|owner| (*owner).into()).collect(),
            };
            early(Some(&claim), &Launchers::default(), &vmi, "b").len()
        };
        for owners in [&[][..], &["vmi"], &["vm"], &["earlier", "vm"]] {
            assert_eq!(count(owners), 1, "{owners:?}");
        }
        for owners in [&["earlier"], &["other"], &[""]] {
            assert_eq!(count(owners), 0, "{owners:?}");
        }
    }
}
