//! The default routes of a network's interface: moves the pod's default route to a network that requests it, and
//! restores it when that network is detached (multus.md §5.5, §7.4).
//!
//! The replaced routes are recorded with the network that replaces them; for a running pod before anything changes.
//! Only routes that multus itself removed are restored, and only if the pod has no other default route by then.

use super::Attacher;
use super::netns::{PodNetns, RouteError};
use super::recorded::{RecordError, ScratchRecord};
use crate::names::MASTER_INTERFACE;
use crate::networks::default_route::{self, DefaultRoute, RouteAction, RouteActions};
use crate::networks::delegate::Delegate;
use cni::chain::Runner;
use cni::result::CniResult;
use cni::version::Version;
use std::collections::BTreeSet;

const KEEP: RouteActions = RouteActions {
    v4: RouteAction::Keep,
    v6: RouteAction::Keep,
};

/// The pod's default routes that a network replaces.
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
    /// Applies the actions to a network's default routes, in the namespace and in its cached result. Returns the new
    /// result.
    pub(super) fn reroute(
        &self,
        delegate: &Delegate,
        ifname: &str,
        actions: RouteActions,
        netns: &mut impl PodNetns,
    ) -> Result<CniResult, String> {
        netns
            .reroute(ifname, actions)
            .map_err(|error| error.to_string())?;
        let name = delegate.config.name();
        let key = self.key(&name, ifname);
        let mut text = String::new();
        let edited = self.cache().edit_result(key, |result| {
            default_route::edit(result, actions)?;
            text = result.to_json();
            Ok(())
        });
        let failed = |cause: &dyn std::fmt::Display| {
            let replaces = [actions.v4, actions.v6]
                .iter()
                .any(|action| matches!(action, default_route::RouteAction::Replace(_)));
            format!(
                "error {} default gateway in cache: {cause}",
                if replaces { "setting" } else { "deleting" }
            )
        };
        match edited {
            Ok(true) => {
                // The cache holds results in a version that this program knows.
                CniResult::parse(text.as_bytes(), Version::LATEST).map_err(|error| failed(&error))
            }
            Ok(false) => Err(failed(&"cannot get result from cache")),
            Err(error) => Err(failed(&error)),
        }
    }

    /// The default routes of an interface that the actions remove.
    pub(super) fn removed_routes(
        &self,
        ifname: &str,
        mut actions: RouteActions,
        netns: &mut impl PodNetns,
    ) -> Vec<DefaultRoute> {
        let mut routes = netns.defaults().unwrap_or_else(|error| {
            tracing::warn!(sandbox = %self.sandbox, %error, "cannot record a replaced default route, it will not be restored");
            Vec::new()
        });
        routes
            .retain(|route| route.interface == ifname && *family(&mut actions, route) == RouteAction::Remove);
        routes
    }

    /// Records the replaced default routes with the networks of an ADD that replace them: such a network may be
    /// unplugged later.
    pub(super) fn record_replaced(&self, routes: &[DefaultRoute], delegates: &[Delegate]) {
        if routes.is_empty() {
            return;
        }
        let note = || -> Result<(), RecordError> {
            if let ScratchRecord::Whole(mut records, _) = self.record()? {
                for (index, delegate) in delegates.iter().enumerate() {
                    let (v4, v6) = default_route::claims(delegate);
                    let mut replaced = routes.to_vec();
                    replaced.retain(|route| if route.ipv4 { v4 } else { v6 });
                    records.set_replaced(index, &replaced)?;
                }
                self.keep(&records)?;
            }
            Ok(())
        };
        if let Err(error) = note() {
            let error = kube_kit::client::chain(&error);
            tracing::warn!(sandbox = %self.sandbox, error, "cannot record a replaced default route, it will not be restored");
        }
    }

    /// Removes these routes from the namespace and from the cached results of their networks, so that the plugin of
    /// the new network can install its own. `known` are the networks of the sandbox.
    pub(super) fn remove_replaced(
        &self,
        routes: &[DefaultRoute],
        known: &[Delegate],
        netns: &mut impl PodNetns,
    ) -> Result<(), RouteError> {
        let interfaces: BTreeSet<_> = routes.iter().map(|route| &*route.interface).collect();
        for interface in interfaces {
            let mut actions = KEEP;
            for route in routes.iter().filter(|route| route.interface == interface) {
                *family(&mut actions, route) = RouteAction::Remove;
            }
            netns.reroute(interface, actions)?;
            self.update_result(interface, known, actions);
        }
        Ok(())
    }

    /// Restores these routes, unless the pod has another default route of that family.
    pub(super) fn restore_routes(
        &self,
        routes: &[DefaultRoute],
        known: &[Delegate],
        netns: &mut impl PodNetns,
    ) {
        if routes.is_empty() {
            return;
        }
        let existing = match netns.defaults() {
            Ok(existing) => existing,
            Err(error) => {
                tracing::info!(sandbox = %self.sandbox, %error, "cannot read the default routes, none is restored");
                return;
            }
        };
        let is_missing = |route: &&DefaultRoute| existing.iter().all(|other| other.ipv4 != route.ipv4);
        for route in routes.iter().filter(is_missing) {
            if let Err(error) = netns.restore(route) {
                let interface = &route.interface;
                tracing::warn!(sandbox = %self.sandbox, interface, %error, "cannot restore a default route");
                continue;
            }
            if let Some(gateway) = route.gateway {
                let mut actions = KEEP;
                *family(&mut actions, route) = RouteAction::Replace(gateway);
                self.update_result(&route.interface, known, actions);
            }
        }
    }

    /// Updates the routes in the cached result of an interface's network. A pod that is older than multus has no
    /// cached result.
    fn update_result(&self, interface: &str, known: &[Delegate], actions: RouteActions) {
        let name = |(index, delegate): (usize, &Delegate)| match (&delegate.requests.interface, index) {
            (None, 0) => MASTER_INTERFACE.to_owned(),
            _ => delegate.interface_name(index, self.sandbox),
        };
        let index = known
            .iter()
            .enumerate()
            .map(name)
            .position(|name| name == interface);
        let Some(delegate) = index.and_then(|index| known.get(index)) else {
            return;
        };
        let network = delegate.config.name();
        let edited = self.cache().edit_result(self.key(&network, interface), |result| {
            default_route::edit(result, actions)
        });
        if let Err(error) = edited {
            tracing::warn!(sandbox = %self.sandbox, interface, %error, "cannot update the default routes in the cached result");
        }
    }
}

fn family<'f>(actions: &'f mut RouteActions, route: &DefaultRoute) -> &'f mut RouteAction {
    if route.ipv4 {
        &mut actions.v4
    } else {
        &mut actions.v6
    }
}
