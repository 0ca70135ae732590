//! `default-route` of the networks annotation: one network's gateway becomes the pod's only default route of its family
//! (multus.md §5.5).

use crate::networks::delegate::Delegate;
use cni::json::{self, Object};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::net::IpAddr;

/// The action on a network's default routes of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAction {
    /// Keep the routes of the network's plugin.
    Keep,
    /// Remove them.
    Remove,
    /// Replace them by one route over this gateway.
    Replace(IpAddr),
}

/// The actions on a network's default routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteActions {
    /// Action on IPv4 routes.
    pub v4: RouteAction,
    /// Action on IPv6 routes.
    pub v6: RouteAction,
}

impl RouteActions {
    /// Whether no route changes.
    pub fn keeps_all(self) -> bool {
        self.v4 == RouteAction::Keep && self.v6 == RouteAction::Keep
    }

    /// The form of scratch files: whether the network's own IPv4 and IPv6 default routes are removed.
    pub fn filters(self) -> (bool, bool) {
        (self.v4 == RouteAction::Remove, self.v6 == RouteAction::Remove)
    }
}

/// A default route of a pod, in the main table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultRoute {
    /// The outgoing interface.
    pub interface: String,
    /// IPv4, else IPv6.
    pub ipv4: bool,
    /// The gateway; `None` for a route on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The metric; lower values win.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

/// Several gateways of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("multus does not support ECMP for default-route")]
pub struct Ecmp;

/// Decides the actions for all networks of a pod. A network claims a family by a gateway, or by an empty list, which
/// keeps the route of its own configuration. Routes of an unclaimed family are kept.
pub fn plan(delegates: &[Delegate]) -> Result<Vec<RouteActions>, Ecmp> {
    let family = |is_v4: bool| -> Result<Vec<RouteAction>, Ecmp> {
        let claims: Vec<_> = delegates.iter().map(|delegate| claim(delegate, is_v4)).collect();
        let gateways = claims
            .iter()
            .flatten()
            .filter(|claim| matches!(claim, RouteAction::Replace(_)))
            .count();
        let asked = delegates
            .iter()
            .filter_map(|delegate| delegate.requests.default_route.as_ref());
        if gateways > 1
            || asked
                .flatten()
                .filter(|gateway| gateway.is_ipv4() == is_v4)
                .count()
                > 1
        {
            return Err(Ecmp);
        }
        let unclaimed = claims.iter().all(Option::is_none);
        let others = if unclaimed {
            RouteAction::Keep
        } else {
            RouteAction::Remove
        };
        Ok(claims.into_iter().map(|claim| claim.unwrap_or(others)).collect())
    };
    let (v4, v6) = (family(true)?, family(false)?);
    Ok(v4
        .into_iter()
        .zip(v6)
        .map(|(v4, v6)| RouteActions { v4, v6 })
        .collect())
}

/// Whether a network claims the pod's IPv4 and IPv6 default routes.
pub fn claims(delegate: &Delegate) -> (bool, bool) {
    (claim(delegate, true).is_some(), claim(delegate, false).is_some())
}

fn claim(delegate: &Delegate, is_v4: bool) -> Option<RouteAction> {
    let asked = delegate.requests.default_route.as_ref()?;
    if asked.is_empty() {
        return Some(RouteAction::Keep);
    }
    asked
        .iter()
        .find(|gateway| gateway.is_ipv4() == is_v4)
        .map(|gateway| RouteAction::Replace(*gateway))
}

/// Applies the actions to the routes of a cached result.
pub fn edit(result: &mut Object, actions: RouteActions) -> Result<(), json::Error> {
    let version: String = result.read("cniVersion")?.unwrap_or_default();
    match version.as_str() {
        "" | "0.1.0" | "0.2.0" => {
            for (key, action, default) in [("ip4", actions.v4, "0.0.0.0/0"), ("ip6", actions.v6, "::/0")] {
                if let Some(address) = result.get(key) {
                    let mut address = Object::parse(address.get().as_bytes())?;
                    edit_routes(&mut address, &[(action, default)])?;
                    result.set(key, &address)?;
                }
            }
            Ok(())
        }
        "0.3.0" | "0.3.1" | "0.4.0" => {
            edit_routes(result, &[(actions.v4, "0.0.0.0/0"), (actions.v6, "::0/0")])
        }
        newer
            if newer
                .split('.')
                .next()
                .and_then(|major| major.parse::<u64>().ok())
                .is_some_and(|major| major >= 1) =>
        {
            edit_routes(result, &[(actions.v4, "0.0.0.0/0"), (actions.v6, "::0/0")])
        }
        other => Err(serde::de::Error::custom(format!(
            "not supported version: {other}"
        ))),
    }
}

/// Removes the default routes of these families from `routes`, and adds their replacements. Removes an empty key.
fn edit_routes(holder: &mut Object, families: &[(RouteAction, &str)]) -> Result<(), json::Error> {
    let mut routes: Vec<Box<RawValue>> = match holder.get("routes") {
        Some(routes) => serde_json::from_str(routes.get())?,
        None => Vec::new(),
    };
    for (action, default) in families {
        if *action == RouteAction::Keep {
            continue;
        }
        let is_v4 = default.starts_with('0');
        routes.retain(|route| !is_default(route, is_v4));
        if let RouteAction::Replace(gateway) = action {
            routes.push(serde_json::value::to_raw_value(
                &json!({"dst": default, "gw": gateway}),
            )?);
        }
    }
    if routes.is_empty() {
        holder.remove("routes");
        Ok(())
    } else {
        holder.set("routes", &routes)
    }
}

fn is_default(route: &RawValue, is_v4: bool) -> bool {
    let route: Value = serde_json::from_str(route.get()).unwrap_or_default();
    let destination = route.get("dst").and_then(Value::as_str).unwrap_or_default();
    if is_v4 {
        destination == "0.0.0.0/0"
    } else {
        matches!(destination, "::0/0" | "::/0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::delegate::Config;

    fn delegates(asked: &[Option<&[&str]>]) -> Vec<Delegate> {
        let delegate = |asked: Option<&[&str]>| {
            let mut delegate = Delegate::new("n".into(), Config::parse(br#"{"type":"a"}"#).unwrap());
            delegate.requests.default_route =
                asked.map(|asked| asked.iter().map(|ip| ip.parse().unwrap()).collect());
            delegate
        };
        asked.iter().copied().map(delegate).collect()
    }

    fn v4(plan: &[RouteActions]) -> Vec<RouteAction> {
        plan.iter().map(|actions| actions.v4).collect()
    }

    fn v6(plan: &[RouteActions]) -> Vec<RouteAction> {
        plan.iter().map(|actions| actions.v6).collect()
    }

    #[test]
    fn unclaimed_routes_are_kept() {
        // multus#56
        let plan = plan(&delegates(&[None, None])).unwrap();
        assert!(plan.iter().all(|actions| actions.keeps_all()));
    }

    #[test]
    fn claimed_family_removes_routes_of_others() {
        let plan = plan(&delegates(&[None, Some(&["10.1.1.254"]), None])).unwrap();
        let gateway = "10.1.1.254".parse().unwrap();
        assert_eq!(
            v4(&plan),
            [
                RouteAction::Remove,
                RouteAction::Replace(gateway),
                RouteAction::Remove
            ]
        );
        assert_eq!(v6(&plan), [RouteAction::Keep; 3]);
    }

    #[test]
    fn second_gateway_of_family_is_error() {
        // multus#55
        let split = plan(&delegates(&[None, Some(&["10.1.1.254"]), Some(&["fd00::1"])])).unwrap();
        let (gateway, gateway6) = ("10.1.1.254".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(
            v4(&split),
            [
                RouteAction::Remove,
                RouteAction::Replace(gateway),
                RouteAction::Remove
            ]
        );
        assert_eq!(
            v6(&split),
            [
                RouteAction::Remove,
                RouteAction::Remove,
                RouteAction::Replace(gateway6)
            ]
        );
        let on_two: [Option<&[&str]>; 2] = [Some(&["10.1.1.254"]), Some(&["10.1.2.254"])];
        let on_one: [Option<&[&str]>; 1] = [Some(&["10.1.1.254", "10.1.2.254"])];
        for two in [&on_two[..], &on_one[..]] {
            let error = plan(&delegates(two)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "multus does not support ECMP for default-route"
            );
        }
    }

    #[test]
    fn empty_list_keeps_routes_of_network() {
        let plan = plan(&delegates(&[None, Some(&[])])).unwrap();
        assert_eq!(v4(&plan), [RouteAction::Remove, RouteAction::Keep]);
        assert_eq!(v6(&plan), [RouteAction::Remove, RouteAction::Keep]);
    }

    fn edited(result: &Value, actions: RouteActions) -> Value {
        let mut object = Object::parse(result.to_string().as_bytes()).unwrap();
        edit(&mut object, actions).unwrap();
        serde_json::from_str(&object.to_json()).unwrap()
    }

    const REMOVE: RouteActions = RouteActions {
        v4: RouteAction::Remove,
        v6: RouteAction::Keep,
    };

    fn replace(gateway: &str) -> RouteActions {
        let gateway: IpAddr = gateway.parse().unwrap();
        let (v4, v6) = if gateway.is_ipv4() {
            (RouteAction::Replace(gateway), RouteAction::Keep)
        } else {
            (RouteAction::Keep, RouteAction::Replace(gateway))
        };
        RouteActions { v4, v6 }
    }

    #[test]
    fn default_routes_are_removed_and_others_kept() {
        // multus#58
        let routes = json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}, {"dst": "10.1.1.0/24"}, {"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let left = edited(&json!({"cniVersion": "0.3.1", "routes": routes, "x": 1}), REMOVE);
        assert_eq!(
            left,
            json!({"cniVersion": "0.3.1", "routes": [{"dst": "10.1.1.0/24"}, {"dst": "::/0"}], "x": 1})
        );
    }

    #[test]
    fn routes_are_edited_in_every_result_version() {
        // multus#57
        for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let before = json!({"cniVersion": version, "routes": [{"dst": "0.0.0.0/0"}]});
            assert_eq!(edited(&before, REMOVE), json!({"cniVersion": version}));
            let after = edited(&before, replace("10.1.1.254"));
            assert_eq!(after["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.1.254"}]));
            let after = edited(&before, replace("fd00::1"));
            assert_eq!(
                after["routes"],
                json!([{"dst": "0.0.0.0/0"}, {"dst": "::0/0", "gw": "fd00::1"}])
            );
        }
        let before = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.1/24", "routes": [{"dst": "0.0.0.0/0"}]},
            "ip6": {"ip": "fd00::2/64"}});
        assert_eq!(edited(&before, REMOVE)["ip4"], json!({"ip": "10.0.0.1/24"}));
        let after = edited(&before, replace("fd00::1"));
        assert_eq!(after["ip6"]["routes"], json!([{"dst": "::/0", "gw": "fd00::1"}]));
        let mut unknown = Object::parse(br#"{"cniVersion":"0.9.0"}"#).unwrap();
        assert_eq!(
            edit(&mut unknown, REMOVE).unwrap_err().to_string(),
            "not supported version: 0.9.0"
        );
    }
}
