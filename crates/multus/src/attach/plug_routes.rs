//! Default routes that move to a network which is plugged in, and back when one goes (multus.md §5.5, §7.4).
//!
//! What the pod had stands in the record of the network that replaces it; where the pod runs already, before anything is
//! changed. Only what multus itself took away comes back, and only where the pod has no other default route by then.

use super::plug::{Record, RecordError};
use super::{Attacher, PodNetns, RouteError};
use crate::default_route::{self, DefaultRoute, Fate, Fates};
use crate::delegate::Delegate;
use crate::names::MASTER_INTERFACE;
use cni::chain::Runner;
use std::collections::BTreeSet;

const KEEP: Fates = Fates {
    v4: Fate::Keep,
    v6: Fate::Keep,
};

/// The default routes that a network takes over.
pub(super) fn replaced_by(
    delegate: &Delegate,
    netns: &mut impl PodNetns,
) -> Result<Vec<DefaultRoute>, RouteError> {
    let (v4, v6) = default_route::claims(delegate);
    if !v4 && !v6 {
        return Ok(Vec::new());
    }
    let mut routes = netns.defaults()?;
    routes.retain(|route| if route.ipv4 { v4 } else { v6 });
    Ok(routes)
}

impl<R: Runner> Attacher<'_, R> {
    /// The default routes of an interface that its fates take away.
    pub(super) fn taken_away(
        &self,
        ifname: &str,
        mut fates: Fates,
        netns: &mut impl PodNetns,
    ) -> Vec<DefaultRoute> {
        let mut routes = netns.defaults().unwrap_or_else(|error| {
            tracing::warn!(sandbox = %self.sandbox, %error, "a default route can't come back");
            Vec::new()
        });
        routes.retain(|route| route.interface == ifname && *family(&mut fates, route) == Fate::Remove);
        routes
    }

    /// Notes the default routes that went with those networks of an ADD that took them over: one of these may be
    /// unplugged.
    pub(super) fn note_replaced(&self, routes: &[DefaultRoute], delegates: &[Delegate]) {
        if routes.is_empty() {
            return;
        }
        let note = || -> Result<(), RecordError> {
            if let Record::Whole(mut records, _) = self.record()? {
                for (place, delegate) in delegates.iter().enumerate() {
                    let (v4, v6) = default_route::claims(delegate);
                    let mut its = routes.to_vec();
                    its.retain(|route| if route.ipv4 { v4 } else { v6 });
                    records.set_replaced(place, &its)?;
                }
                self.keep(&records)?;
            }
            Ok(())
        };
        if let Err(error) = note() {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "a default route can't come back");
        }
    }

    /// Takes these routes away, in the namespace and in the results of the networks that had them: their place must be
    /// free when the plugin comes that may want it. `known` are the networks of the sandbox.
    pub(super) fn make_way(
        &self,
        routes: &[DefaultRoute],
        known: &[Delegate],
        netns: &mut impl PodNetns,
    ) -> Result<(), RouteError> {
        let interfaces: BTreeSet<_> = routes.iter().map(|route| &*route.interface).collect();
        for interface in interfaces {
            let mut fates = KEEP;
            for route in routes.iter().filter(|route| route.interface == interface) {
                *family(&mut fates, route) = Fate::Remove;
            }
            netns.reroute(interface, fates)?;
            self.edit_result_of(interface, known, fates);
        }
        Ok(())
    }

    /// Gives these routes back, where the pod would be without one.
    pub(super) fn give_back(&self, routes: &[DefaultRoute], known: &[Delegate], netns: &mut impl PodNetns) {
        if routes.is_empty() {
            return;
        }
        let there = match netns.defaults() {
            Ok(there) => there,
            Err(error) => {
                tracing::info!(sandbox = %self.sandbox, %error, "no default route is given back");
                return;
            }
        };
        let is_missing = |route: &&DefaultRoute| there.iter().all(|other| other.ipv4 != route.ipv4);
        for route in routes.iter().filter(is_missing) {
            if let Err(error) = netns.restore(route) {
                let interface = &route.interface;
                tracing::warn!(sandbox = %self.sandbox, interface, %error, "a default route is lost");
                continue;
            }
            if let Some(gateway) = route.gateway {
                let mut fates = KEEP;
                *family(&mut fates, route) = Fate::Replace(gateway);
                self.edit_result_of(&route.interface, known, fates);
            }
        }
    }

    /// Makes the result of an interface's network say what was done to its routes. A pod that is older than multus has
    /// none.
    fn edit_result_of(&self, interface: &str, known: &[Delegate], fates: Fates) {
        let name = |(place, delegate): (usize, &Delegate)| match (&delegate.requests.interface, place) {
            (None, 0) => MASTER_INTERFACE.to_owned(),
            _ => delegate.interface_name(place, self.sandbox),
        };
        let place = known
            .iter()
            .enumerate()
            .map(name)
            .position(|name| name == interface);
        let Some(delegate) = place.and_then(|place| known.get(place)) else {
            return;
        };
        let network = delegate.config.name();
        let edited = self.cache().edit_result(self.key(&network, interface), |result| {
            default_route::edit(result, fates)
        });
        if let Err(error) = edited {
            tracing::warn!(sandbox = %self.sandbox, interface, %error, "a result says the wrong default routes");
        }
    }
}

fn family<'f>(fates: &'f mut Fates, route: &DefaultRoute) -> &'f mut Fate {
    if route.ipv4 { &mut fates.v4 } else { &mut fates.v6 }
}
