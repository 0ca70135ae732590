//! `default-route` of networks that are plugged in.

use super::plug::{asked, named, plug, unplug};
use super::*;

/// A network that requests the default route, by these gateways or by its own.
fn asking(name: &str, ifname: &str, gateways: &[&str]) -> Delegate {
    let mut delegate = named(name, ifname);
    let gateways = gateways.iter().map(|gateway| gateway.parse().unwrap());
    delegate.requests.default_route = Some(gateways.collect());
    delegate
}

/// A pod with a default route of each family.
fn running() -> Bench {
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    bench.netns.defaults = vec![
        default_over("eth0", "10.0.0.254"),
        default_over("eth0", "fd00::1"),
    ];
    bench
}

impl Bench {
    fn defaults(&self) -> Vec<(&str, String)> {
        let all = self.netns.defaults.iter();
        all.map(|route| {
            let gateway = route.gateway.map(|gateway| gateway.to_string());
            (&*route.interface, gateway.unwrap_or_default())
        })
        .collect()
    }

    fn cached_routes(&self, file: &str) -> Value {
        let text = fs::read_to_string(self.dir.path().join("multus/results").join(file)).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["result"]["routes"].clone()
    }

    fn replaced(&self) -> Value {
        let text = fs::read_to_string(self.scratch()).unwrap();
        let stored: Value = serde_json::from_str(&text).unwrap();
        stored.as_array().unwrap().last().unwrap()["replacedRoutes"].clone()
    }
}

#[test]
fn default_route_moves_and_is_restored() {
    // multus#54, multus#92 (a network that is plugged in)
    let mut bench = running();
    let result = plug(&mut bench, &asking("c", "hot0", &["10.1.1.254"])).unwrap();
    let v6 = ("eth0", "fd00::1".to_owned());
    assert_eq!(bench.defaults(), [v6.clone(), ("hot0", "10.1.1.254".to_owned())]);
    // Input of the status and the next CHECK.
    assert_eq!(result.routes.len(), 1);
    assert_eq!(result.routes[0].gw, Some("10.1.1.254".parse().unwrap()));
    assert_eq!(bench.cached_routes("a-c1-eth0"), Value::Null);
    assert_eq!(
        bench.cached_routes("c-c1-hot0"),
        json!([{"dst": "0.0.0.0/0", "gw": "10.1.1.254"}])
    );
    // The result of b keeps a default route that net1 does not have.
    assert_eq!(
        bench.cached_routes("b-c1-net1"),
        json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}])
    );
    assert_eq!(
        bench.replaced(),
        json!([{"interface": "eth0", "ipv4": true, "gateway": "10.0.0.254"}])
    );

    bench.netns.defaults.retain(|route| route.interface != "hot0");
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    assert_eq!(bench.defaults(), [v6, ("eth0", "10.0.0.254".to_owned())]);
    assert_eq!(
        bench.cached_routes("a-c1-eth0"),
        json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}])
    );
}

#[test]
fn route_replaced_by_add_is_restored() {
    let mut bench = Bench::new();
    bench.netns.defaults = vec![
        default_over("eth0", "10.0.0.254"),
        default_over("eth0", "fd00::1"),
    ];
    let mut claiming = single("b");
    claiming.requests.default_route = Some(vec!["10.1.1.254".parse().unwrap()]);
    bench.add(&[single("a"), claiming, single("c")]).unwrap();
    let v6 = ("eth0", "fd00::1".to_owned());
    assert_eq!(bench.defaults(), [v6.clone(), ("net1", "10.1.1.254".to_owned())]);
    // Others' end changes nothing about it.
    unplug(&mut bench, "net2", &asked("c")).unwrap();
    assert_eq!(
        bench.replaced(),
        json!([{"interface": "eth0", "ipv4": true, "gateway": "10.0.0.254"}])
    );
    bench.netns.defaults.retain(|route| route.interface != "net1");
    unplug(&mut bench, "net1", &asked("b")).unwrap();
    assert_eq!(bench.defaults(), [v6, ("eth0", "10.0.0.254".to_owned())]);
}

#[test]
fn other_default_route_prevents_restore() {
    let mut bench = running();
    plug(&mut bench, &asking("c", "hot0", &["10.1.1.254"])).unwrap();
    bench.netns.defaults = vec![default_over("tun0", "10.9.9.9")];
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    assert_eq!(bench.defaults(), [("tun0", "10.9.9.9".to_owned())]);
}

#[test]
fn route_is_removed_before_plugin_runs() {
    let mut bench = running();
    plug(&mut bench, &asking("c", "hot0", &[])).unwrap();
    // The plugin of this test installs none in the namespace.
    assert_eq!(bench.defaults(), []);
    assert_eq!(
        bench.cached_routes("c-c1-hot0"),
        json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}])
    );
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    assert_eq!(bench.defaults().len(), 2);
}

#[test]
fn failed_attachment_restores_default_route() {
    for failing in [&["ADD c"][..], &["ADD c", "DEL c"]] {
        let mut bench = running();
        bench.fake.failing.extend(failing);
        plug(&mut bench, &asking("c", "hot0", &["10.1.1.254", "fd01::1"])).unwrap_err();
        let rerouted: Vec<_> = bench
            .netns
            .rerouted
            .iter()
            .map(|(interface, _)| &**interface)
            .collect();
        assert_eq!(rerouted, ["eth0"]);
        assert_eq!(
            bench.defaults(),
            [("eth0", "10.0.0.254".to_owned()), ("eth0", "fd00::1".to_owned())]
        );
        assert_eq!(
            bench.cached_routes("a-c1-eth0"),
            json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}, {"dst": "::0/0", "gw": "fd00::1"}])
        );
    }
}

#[test]
fn route_removed_by_killed_daemon_is_restored() {
    let mut bench = running();
    plug(&mut bench, &asking("c", "hot0", &["10.1.1.254"])).unwrap();
    // Killed after it made way, before there was an interface.
    bench.netns.defaults = vec![default_over("eth0", "fd00::1")];
    plug(&mut bench, &named("c", "hot0")).unwrap();
    assert_eq!(bench.fake.names()[2..], ["ADD c", "DEL c", "ADD c"]);
    assert_eq!(
        bench.defaults(),
        [("eth0", "fd00::1".to_owned()), ("eth0", "10.0.0.254".to_owned())]
    );
}

#[test]
fn second_gateway_among_all_networks_is_error() {
    // multus#55 (of a pod that runs)
    let mut bench = Bench::new();
    let mut first = single("b");
    first.requests.default_route = Some(vec!["10.1.1.254".parse().unwrap()]);
    bench.add(&[single("a"), first]).unwrap();
    let before = fs::read(bench.scratch()).unwrap();
    let error = plug(&mut bench, &asking("c", "hot0", &["10.2.2.254"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "multus does not support ECMP for default-route"
    );
    assert_eq!(fs::read(bench.scratch()).unwrap(), before);
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b"]);
    plug(&mut bench, &asking("c", "hot0", &["fd02::1"])).unwrap();
    // A network without a request gets no default route beside networks with one.
    plug(&mut bench, &named("d", "hot1")).unwrap();
    let last = bench.netns.rerouted.last().unwrap();
    let removed = RouteActions {
        v4: RouteAction::Remove,
        v6: RouteAction::Remove,
    };
    assert_eq!(last, &("hot1".to_owned(), removed));
    assert_eq!(bench.cached_routes("d-c1-hot1"), Value::Null);
}

#[test]
fn unclaimed_routes_are_not_read() {
    // multus#56 (of a pod that runs)
    let mut bench = running();
    plug(&mut bench, &named("c", "hot0")).unwrap();
    assert!(bench.netns.rerouted.is_empty());
    assert_eq!(bench.replaced(), Value::Null);
}
