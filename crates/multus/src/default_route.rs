//! `default-route` of the networks annotation: one network's gateway becomes the pod's only default route of its family
//! (multus.md §5.5).

use crate::delegate::Delegate;
use cni::json::{self, Object};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::net::IpAddr;

/// What happens to the default routes of one network, a family each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They stay as the network's plugin made them.
    Keep,
    /// They are removed.
    Remove,
    /// They are replaced by one over this gateway.
    Replace(IpAddr),
}

/// The fate of a network's default routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fates {
    /// Of IPv4 routes.
    pub v4: Fate,
    /// Of IPv6 routes.
    pub v6: Fate,
}

impl Fates {
    /// Whether nothing is touched.
    pub fn keeps_all(self) -> bool {
        self.v4 == Fate::Keep && self.v6 == Fate::Keep
    }

    /// As scratch files have it: whether the network's own IPv4 and IPv6 default routes go.
    pub fn filters(self) -> (bool, bool) {
        (self.v4 == Fate::Remove, self.v6 == Fate::Remove)
    }
}

/// A default route as a pod has it, in the main table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultRoute {
    /// The interface that it leads out of.
    pub interface: String,
    /// Whether it is one for IPv4, else for IPv6.
    pub ipv4: bool,
    /// Over which gateway; without one everything is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Lower wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

/// More than one gateway of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("multus does not support ECMP for default-route")]
pub struct Ecmp;

/// Decides for all networks of a pod at once. A family that no network claims is left alone; a network claims one by a
/// gateway, or by an empty list, which keeps the route that its own configuration installs.
pub fn plan(delegates: &[Delegate]) -> Result<Vec<Fates>, Ecmp> {
    let family = |is_v4: bool| -> Result<Vec<Fate>, Ecmp> {
        let claims: Vec<_> = delegates.iter().map(|delegate| claim(delegate, is_v4)).collect();
        let gateways = claims
            .iter()
            .flatten()
            .filter(|claim| matches!(claim, Fate::Replace(_)))
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
        let others = if unclaimed { Fate::Keep } else { Fate::Remove };
        Ok(claims.into_iter().map(|claim| claim.unwrap_or(others)).collect())
    };
    let (v4, v6) = (family(true)?, family(false)?);
    Ok(v4.into_iter().zip(v6).map(|(v4, v6)| Fates { v4, v6 }).collect())
}

/// Which default routes of others a network takes over: those of IPv4, those of IPv6.
pub fn claims(delegate: &Delegate) -> (bool, bool) {
    (claim(delegate, true).is_some(), claim(delegate, false).is_some())
}

fn claim(delegate: &Delegate, is_v4: bool) -> Option<Fate> {
    let asked = delegate.requests.default_route.as_ref()?;
    if asked.is_empty() {
        return Some(Fate::Keep);
    }
    asked
        .iter()
        .find(|gateway| gateway.is_ipv4() == is_v4)
        .map(|gateway| Fate::Replace(*gateway))
}

/// Makes a cached result say what was done to the routes.
pub fn edit(result: &mut Object, fates: Fates) -> Result<(), json::Error> {
    let version: String = result.read("cniVersion")?.unwrap_or_default();
    match version.as_str() {
        "" | "0.1.0" | "0.2.0" => {
            for (key, fate, default) in [("ip4", fates.v4, "0.0.0.0/0"), ("ip6", fates.v6, "::/0")] {
                if let Some(address) = result.get(key) {
                    let mut address = Object::parse(address.get().as_bytes())?;
                    edit_routes(&mut address, &[(fate, default)])?;
                    result.set(key, &address)?;
                }
            }
            Ok(())
        }
        "0.3.0" | "0.3.1" | "0.4.0" => edit_routes(result, &[(fates.v4, "0.0.0.0/0"), (fates.v6, "::0/0")]),
        newer
            if newer
                .split('.')
                .next()
                .and_then(|major| major.parse::<u64>().ok())
                .is_some_and(|major| major >= 1) =>
        {
            edit_routes(result, &[(fates.v4, "0.0.0.0/0"), (fates.v6, "::0/0")])
        }
        other => Err(serde::de::Error::custom(format!(
            "not supported version: {other}"
        ))),
    }
}

/// Takes default routes of the families out of `routes`, and adds those that replace them. The key goes when nothing is
/// left.
fn edit_routes(holder: &mut Object, families: &[(Fate, &str)]) -> Result<(), json::Error> {
    let mut routes: Vec<Box<RawValue>> = match holder.get("routes") {
        Some(routes) => serde_json::from_str(routes.get())?,
        None => Vec::new(),
    };
    for (fate, default) in families {
        if *fate == Fate::Keep {
            continue;
        }
        let is_v4 = default.starts_with('0');
        routes.retain(|route| !is_default(route, is_v4));
        if let Fate::Replace(gateway) = fate {
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
    use crate::delegate::Config;

    fn delegates(asked: &[Option<&[&str]>]) -> Vec<Delegate> {
        let delegate = |asked: Option<&[&str]>| {
            let mut delegate = Delegate::new("n".into(), Config::parse(br#"{"type":"a"}"#).unwrap());
            delegate.requests.default_route =
                asked.map(|asked| asked.iter().map(|ip| ip.parse().unwrap()).collect());
            delegate
        };
        asked.iter().copied().map(delegate).collect()
    }

    fn v4(plan: &[Fates]) -> Vec<Fate> {
        plan.iter().map(|fates| fates.v4).collect()
    }

    fn v6(plan: &[Fates]) -> Vec<Fate> {
        plan.iter().map(|fates| fates.v6).collect()
    }

    #[test]
    fn nobody_asks_nothing_happens() {
        // multus#56
        let plan = plan(&delegates(&[None, None])).unwrap();
        assert!(plan.iter().all(|fates| fates.keeps_all()));
    }

    #[test]
    fn the_others_lose_theirs() {
        let plan = plan(&delegates(&[None, Some(&["10.1.1.254"]), None])).unwrap();
        let gateway = "10.1.1.254".parse().unwrap();
        assert_eq!(v4(&plan), [Fate::Remove, Fate::Replace(gateway), Fate::Remove]);
        assert_eq!(v6(&plan), [Fate::Keep; 3]);
    }

    #[test]
    fn one_gateway_a_family() {
        // multus#55
        let split = plan(&delegates(&[None, Some(&["10.1.1.254"]), Some(&["fd00::1"])])).unwrap();
        let (gateway, gateway6) = ("10.1.1.254".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(v4(&split), [Fate::Remove, Fate::Replace(gateway), Fate::Remove]);
        assert_eq!(v6(&split), [Fate::Remove, Fate::Remove, Fate::Replace(gateway6)]);
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
    fn an_empty_list_keeps_the_networks_own() {
        let plan = plan(&delegates(&[None, Some(&[])])).unwrap();
        assert_eq!(v4(&plan), [Fate::Remove, Fate::Keep]);
        assert_eq!(v6(&plan), [Fate::Remove, Fate::Keep]);
    }

    fn edited(result: &Value, fates: Fates) -> Value {
        let mut object = Object::parse(result.to_string().as_bytes()).unwrap();
        edit(&mut object, fates).unwrap();
        serde_json::from_str(&object.to_json()).unwrap()
    }

    const REMOVE: Fates = Fates {
        v4: Fate::Remove,
        v6: Fate::Keep,
    };

    fn replace(gateway: &str) -> Fates {
        let gateway: IpAddr = gateway.parse().unwrap();
        let (v4, v6) = if gateway.is_ipv4() {
            (Fate::Replace(gateway), Fate::Keep)
        } else {
            (Fate::Keep, Fate::Replace(gateway))
        };
        Fates { v4, v6 }
    }

    #[test]
    fn every_default_route_goes_and_the_others_stay() {
        // multus#58
        let routes = json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}, {"dst": "10.1.1.0/24"}, {"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let left = edited(&json!({"cniVersion": "0.3.1", "routes": routes, "x": 1}), REMOVE);
        assert_eq!(
            left,
            json!({"cniVersion": "0.3.1", "routes": [{"dst": "10.1.1.0/24"}, {"dst": "::/0"}], "x": 1})
        );
    }

    #[test]
    fn every_version_of_a_result() {
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
