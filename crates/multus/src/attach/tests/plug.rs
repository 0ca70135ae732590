//! Networks that come and go while the pod runs.

use super::*;
use crate::attach::plug::{NetworkId, Plugged};

/// The error of default networks that cannot be resolved.
const NO_DEFAULTS: &str = "no default networks";

/// The sandbox as a call about one of its interfaces sees it.
fn on(bench: &Bench, ifname: &str) -> Sandbox {
    Sandbox {
        ifname: ifname.into(),
        ..bench.sandbox.clone()
    }
}

/// The outcome of a plug, with the networks that every pod gets.
pub(super) fn outcome(
    bench: &mut Bench,
    delegate: &Delegate,
    defaults: Option<&[Delegate]>,
) -> Result<Plugged, Error> {
    let sandbox = on(bench, delegate.requests.interface.as_deref().unwrap());
    let attacher = Attacher {
        runner: &bench.fake,
        config: &bench.config,
        sandbox: &sandbox,
    };
    let defaults = defaults.map(<[Delegate]>::to_vec);
    let defaults = defaults.ok_or_else(|| Error::internal(NO_DEFAULTS));
    attacher.plug(delegate, defaults, &mut bench.netns)
}

pub(super) fn plug(bench: &mut Bench, delegate: &Delegate) -> Result<CniResult, Error> {
    Ok(outcome(bench, delegate, None)?.result().clone())
}

pub(super) fn unplug(bench: &mut Bench, ifname: &str, asked: &NetworkId) -> Result<(), Error> {
    let sandbox = on(bench, ifname);
    let attacher = Attacher {
        runner: &bench.fake,
        config: &bench.config,
        sandbox: &sandbox,
    };
    attacher.unplug(asked, &mut bench.netns)
}

fn check(bench: &Bench, ifname: &str, asked: &NetworkId, sent: Result<Delegate, Error>) -> Result<(), Error> {
    let sandbox = on(bench, ifname);
    Attacher {
        runner: &bench.fake,
        config: &bench.config,
        sandbox: &sandbox,
    }
    .check_plugged(asked, sent)
}

/// The identity that a caller with the NAD and its configuration sends.
pub(super) fn asked(name: &str) -> NetworkId {
    NetworkId {
        nad: Some(format!("ns/{name}")),
        network: Some(name.into()),
    }
}

/// The identity that the upstream controller sends.
fn unnamed(network: &str) -> NetworkId {
    NetworkId {
        nad: None,
        network: Some(network.into()),
    }
}

/// A NAD whose configuration has the name of others'.
fn sharing(nad: &str, plugin: &str, ifname: &str) -> Delegate {
    let config = json!({"cniVersion": "0.4.0", "name": "shared", "type": plugin});
    let config = Config::parse(config.to_string().as_bytes()).unwrap();
    let mut delegate = Delegate::new(format!("ns/{nad}"), config);
    delegate.requests.interface = Some(ifname.into());
    delegate
}

pub(super) fn named(name: &str, ifname: &str) -> Delegate {
    let mut delegate = single(name);
    delegate.requests.interface = Some(ifname.into());
    delegate
}

fn names(delegates: &[Delegate]) -> Vec<&str> {
    delegates
        .iter()
        .map(|delegate| delegate.display_name.as_str())
        .collect()
}

#[test]
fn plugged_network_is_detached_with_pod() {
    // multus#92
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    let result = plug(&mut bench, &named("c", "hot0")).unwrap();
    assert_eq!(result.interfaces[0].name, "hot0");
    assert_eq!(bench.fake.call("ADD c").variables["CNI_IFNAME"], "hot0");
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/b", "ns/c"]);
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names()[3..], ["DEL c", "DEL b", "DEL a"]);
    let variables = bench.fake.call("DEL c").variables;
    assert_eq!(variables["CNI_IFNAME"], "hot0");
    assert!(bench.results().is_empty() && !bench.scratch().exists());
}

#[test]
fn late_plug_is_undone_only_without_record() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let late = named("c", "hot0");
    let undo = |bench: &Bench| {
        let sandbox = on(bench, "hot0");
        let attacher = Attacher {
            runner: &bench.fake,
            config: &bench.config,
            sandbox: &sandbox,
        };
        attacher.undo_late_plug(&late);
    };
    plug(&mut bench, &late).unwrap();
    // A repeated call may own it.
    undo(&bench);
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c"]);
    // The pod's DEL came before the plugin returned.
    fs::remove_file(bench.scratch()).unwrap();
    undo(&bench);
    assert_eq!(bench.fake.names()[2..], ["DEL c"]);
    assert_eq!(bench.results(), ["a-c1-eth0"]);
}

#[test]
fn unplug_removes_record_and_keeps_other_interfaces() {
    // multus#78 (the daemon's part)
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b"), single("c")]).unwrap();
    unplug(&mut bench, "net1", &asked("b")).unwrap();
    let stored = bench.stored();
    assert_eq!(names(&stored), ["ns/a", "ns/c"]);
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names()[3..], ["DEL b", "DEL c", "DEL a"]);
    assert_eq!(bench.fake.call("DEL b").variables["CNI_IFNAME"], "net1");
    assert_eq!(bench.fake.call("DEL c").variables["CNI_IFNAME"], "net2");
    assert_eq!(bench.fake.call("DEL a").variables["CNI_IFNAME"], "eth0");
}

#[test]
fn unplug_uses_recorded_configuration() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    // Its definition has another configuration by now, none that is of use, or is gone.
    let nothing_usable = NetworkId {
        network: None,
        ..asked("c")
    };
    let renamed = NetworkId {
        network: Some("renamed".into()),
        ..asked("c")
    };
    for (count, now) in [asked("c"), renamed, nothing_usable, NetworkId::default()]
        .iter()
        .enumerate()
    {
        plug(&mut bench, &named("c", "hot0")).unwrap();
        unplug(&mut bench, "hot0", now).unwrap();
        assert_eq!(bench.fake.names()[2 + 2 * count..], ["DEL c"], "{now:?}");
    }
    assert_eq!(bench.fake.call("DEL c").config["kubeconfig"], "/k");
}

#[test]
fn networks_with_same_configuration_name_are_distinguished() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &sharing("b", "b", "hot0")).unwrap();
    bench.netns.taken.insert("hot0");
    // A caller that fails to plug in the other one, and undoes that.
    let error = plug(&mut bench, &sharing("c", "c", "hot0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface hot0 is attached to network ns/b, not to ns/c"
    );
    let other = NetworkId {
        network: Some("shared".into()),
        ..asked("c")
    };
    let error = unplug(&mut bench, "hot0", &other).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface hot0 is attached to network ns/b, not to ns/c"
    );
    let error = check(&bench, "hot0", &other, Ok(sharing("c", "c", "hot0"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface hot0 is attached to network ns/b, not to ns/c"
    );
    // The same without anything but a name: the plugins of the other one are not these.
    let nothing_else = NetworkId {
        network: None,
        ..asked("c")
    };
    unplug(&mut bench, "hot0", &nothing_else).unwrap_err();
    let mut upstream = sharing("c", "c", "hot0");
    upstream.display_name = "shared".into();
    plug(&mut bench, &upstream).unwrap_err();
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b"]);
    // Where only the name of the configuration is known, that counts.
    unplug(&mut bench, "hot0", &unnamed("shared")).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL b"]);
}

#[test]
fn plug_records_cluster_network_too() {
    // The pod was attached while multus was not on the node.
    let mut bench = Bench::new();
    bench.netns.taken.insert("eth0");
    let hot = named("c", "hot0");
    assert_eq!(outcome(&mut bench, &hot, None).unwrap_err().msg, NO_DEFAULTS);
    assert!(bench.fake.names().is_empty());
    let defaults = [single("a")];
    outcome(&mut bench, &hot, Some(&defaults)).unwrap();
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names(), ["ADD c", "DEL c", "DEL a"]);
    assert_eq!(bench.fake.call("DEL a").variables["CNI_IFNAME"], "eth0");
    // A failed ADD leaves no record of its own.
    bench.fake.failing.insert("ADD c");
    outcome(&mut bench, &hot, Some(&defaults)).unwrap_err();
    assert!(!bench.scratch().exists());
}

#[test]
fn network_plugged_by_upstream_is_not_master() {
    // It recorded nothing but a result, in a pod that is older than both.
    let mut bench = Bench::new();
    bench.add(&[single("a"), named("b", "hot0")]).unwrap();
    fs::remove_file(bench.scratch()).unwrap();
    fs::remove_file(bench.dir.path().join("multus/results/a-c1-eth0")).unwrap();
    bench.netns.taken = ["eth0", "hot0"].into();
    let hot = named("c", "hot1");
    assert_eq!(outcome(&mut bench, &hot, None).unwrap_err().msg, NO_DEFAULTS);
    outcome(&mut bench, &hot, Some(&[single("a")])).unwrap();
    assert_eq!(names(&bench.stored()), ["ns/a", "b", "ns/c"]);
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names()[3..], ["DEL c", "DEL b", "DEL a"]);
    assert_eq!(bench.fake.call("DEL b").variables["CNI_IFNAME"], "hot0");
    assert_eq!(bench.fake.call("DEL a").variables["CNI_IFNAME"], "eth0");
}

#[test]
fn detached_sandbox_gets_no_network() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    let error = outcome(&mut bench, &named("c", "hot0"), Some(&[single("a")])).unwrap_err();
    assert_eq!(error.code, code::UNKNOWN_CONTAINER, "{error}");
    assert_eq!(bench.fake.names(), ["ADD a", "DEL a"]);
    assert!(!bench.scratch().exists());
}

#[test]
fn unreadable_namespace_is_error() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &named("c", "hot0")).unwrap();
    bench.netns.gone = true;
    let error = plug(&mut bench, &named("c", "hot0")).unwrap_err();
    assert!(error.msg.contains("no net namespace /gone found"), "{error}");
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c"]);
    // A recorded attachment can be detached without the namespace; without a record it is gone with the namespace.
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL c"]);
}

#[test]
fn master_interface_is_refused() {
    let is_refused = |bench: &mut Bench, ifname: &str| {
        let own = format!("interface {ifname} is the pod's own");
        for what in [asked("a"), NetworkId::default()] {
            assert_eq!(unplug(bench, ifname, &what).unwrap_err().to_string(), own);
        }
        assert_eq!(plug(bench, &named("c", ifname)).unwrap_err().to_string(), own);
        let sent = Ok(named("c", ifname));
        assert_eq!(
            check(bench, ifname, &asked("c"), sent).unwrap_err().to_string(),
            own
        );
        assert_eq!(bench.fake.names(), ["ADD a"]);
    };
    // Without a name in the record.
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    is_refused(&mut bench, "eth0");
    // With one, such as the default-network annotation gives.
    for name in ["eth0", "own0"] {
        let mut bench = Bench::new();
        bench.add(&[named("a", name)]).unwrap();
        is_refused(&mut bench, name);
    }
    // From the result cache.
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    fs::remove_file(bench.scratch()).unwrap();
    is_refused(&mut bench, "eth0");
    plug(&mut bench, &named("c", "hot0")).unwrap();
    assert_eq!(bench.stored()[0].requests.interface, None, "as ADD records it");
    unplug(&mut bench, "eth0", &NetworkId::default()).unwrap_err();
}

#[test]
fn failed_plug_keeps_record_only_if_rollback_fails() {
    let mut bench = Bench::new().failing("ADD c");
    bench.add(&[single("a")]).unwrap();
    let error = plug(&mut bench, &named("c", "hot0")).unwrap_err();
    assert_eq!(error.code, code::TRY_AGAIN_LATER);
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c", "DEL c"]);
    assert_eq!(names(&bench.stored()), ["ns/a"]);

    let mut bench = bench.failing("DEL c");
    plug(&mut bench, &named("c", "hot0")).unwrap_err();
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
    // As long as it can't be detached nothing takes its place, not even itself.
    plug(&mut bench, &named("c", "hot0")).unwrap_err();
    plug(&mut bench, &named("d", "hot0")).unwrap_err();
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
    assert_eq!(bench.fake.names()[3..], ["ADD c", "DEL c", "DEL c", "DEL c"]);
    // The next attempt detaches what is left, then attaches: this network or another one.
    bench.fake.failing.clear();
    plug(&mut bench, &named("d", "hot0")).unwrap();
    assert_eq!(bench.fake.names()[7..], ["DEL c", "ADD d"]);
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/d"]);
}

#[test]
fn invalid_call_changes_nothing() {
    let mut bench = Bench::new().failing("ADD c").failing("DEL c");
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &named("c", "hot0")).unwrap_err();
    let before = fs::read(bench.scratch()).unwrap();
    bench.fake.failing.clear();
    // Neither the record of what is left there, nor a plugin's.
    let mut nameless = Delegate::new("ns/n".into(), Config::parse(br#"{"type":"n"}"#).unwrap());
    nameless.requests.interface = Some("hot0".into());
    plug(&mut bench, &nameless).unwrap_err();
    let error = plug(&mut bench, &named("d", "an-interface-name-that-is-too-long")).unwrap_err();
    assert_eq!(error.code, code::INVALID_ENVIRONMENT, "{error}");
    assert_eq!(fs::read(bench.scratch()).unwrap(), before);
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c", "DEL c"]);
}

#[test]
fn repeated_plug_returns_cached_result() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let first = plug(&mut bench, &named("c", "hot0")).unwrap();
    bench.netns.taken.insert("hot0");
    let again = outcome(&mut bench, &named("c", "hot0"), None).unwrap();
    let Plugged::Before(again) = again else {
        panic!("{again:?}")
    };
    assert_eq!(again.ips, first.ips);
    // Another request neither changes the attachment nor removes it from the pod.
    let mut other = named("c", "hot0");
    other.requests.ips = vec!["10.1.1.1/24".into()];
    assert_eq!(plug(&mut bench, &other).unwrap().ips, first.ips);
    // Nor by another text of its definition.
    let config = Config::parse(br#"{"cniVersion":"0.4.0","name":"c","type":"other"}"#).unwrap();
    other.config = config;
    assert_eq!(plug(&mut bench, &other).unwrap().ips, first.ips);
    // Two definitions of one text are two networks.
    let mut twin = named("c", "hot0");
    twin.display_name = "ns/twin".into();
    let error = plug(&mut bench, &twin).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface hot0 is attached to network ns/c, not to ns/twin"
    );
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c"]);
}

#[test]
fn network_of_add_counts_as_attached() {
    // Recorded with a device, a version or flags about routes that a later call does not have.
    let mut bench = Bench::new();
    let mut with_device = single("b");
    with_device.set_device("0000:00:01.0".into()).unwrap();
    with_device.resource_name = Some("x.io/r".into());
    with_device.requests.default_route = Some(vec!["10.1.1.254".parse().unwrap()]);
    let versionless = Config::parse(br#"{"name":"c","type":"c"}"#).unwrap();
    bench
        .add(&[
            single("a"),
            with_device,
            Delegate::new("ns/c".into(), versionless.clone()),
        ])
        .unwrap();
    bench.netns.taken = ["eth0", "net1", "net2"].into();
    let mut with_version = versionless;
    with_version.set("cniVersion", "0.4.0").unwrap();
    let mut later = Delegate::new("ns/c".into(), with_version);
    later.requests.interface = Some("net2".into());
    for delegate in [&named("b", "net1"), &later] {
        let again = outcome(&mut bench, delegate, None).unwrap();
        assert!(matches!(again, Plugged::Before(_)), "{again:?}");
        // A caller that names no NAD, only its configuration.
        let mut upstream = delegate.clone();
        upstream.display_name = upstream.config.name();
        let again = outcome(&mut bench, &upstream, None).unwrap();
        assert!(matches!(again, Plugged::Before(_)), "{again:?}");
    }
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b", "ADD c"]);
}

#[test]
fn interrupted_attachment_is_detached_first() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &named("c", "hot0")).unwrap();
    // The pod has removed the interface, so its result is stale.
    let again = outcome(&mut bench, &named("c", "hot0"), None).unwrap();
    assert!(matches!(again, Plugged::Now(_)), "{again:?}");
    assert_eq!(bench.fake.names()[2..], ["DEL c", "ADD c"]);
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
    // Another network gets that interface only then.
    plug(&mut bench, &named("d", "hot0")).unwrap();
    assert_eq!(bench.fake.names()[4..], ["DEL c", "ADD d"]);
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/d"]);
    // Killed before there was an answer.
    fs::remove_file(bench.dir.path().join("multus/results/d-c1-hot0")).unwrap();
    bench.netns.taken.insert("hot0");
    plug(&mut bench, &named("d", "hot0")).unwrap_err();
    assert_eq!(
        bench.fake.names()[6..],
        ["DEL d"],
        "its interface stays in this test"
    );
    bench.netns.taken.clear();
    plug(&mut bench, &named("d", "hot0")).unwrap();
    assert_eq!(bench.fake.names()[7..], ["ADD d"]);
}

#[test]
fn network_without_interface_counts_as_attached() {
    // Such as those of user-space switches.
    let mut bench = Bench::new();
    bench.fake.silent.insert("c");
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &named("c", "hot0")).unwrap();
    let again = outcome(&mut bench, &named("c", "hot0"), None).unwrap();
    assert!(matches!(again, Plugged::Before(_)), "{again:?}");
    let error = plug(&mut bench, &named("d", "hot0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface hot0 is attached to network ns/c, not to ns/d"
    );
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c"]);
}

#[test]
fn stale_result_is_not_used_for_new_attachment() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &named("c", "hot0")).unwrap();
    // Its end failed half-way, as the pod's would that took the interface along.
    bench.fake.failing.insert("DEL c");
    unplug(&mut bench, "hot0", &asked("c")).unwrap_err();
    bench.fake.failing = ["ADD c"].into();
    plug(&mut bench, &named("c", "hot0")).unwrap_err();
    assert_eq!(bench.fake.names()[3..], ["DEL c", "ADD c", "DEL c"]);
    assert_eq!(bench.results(), ["a-c1-eth0"]);
}

#[test]
fn foreign_interface_is_not_touched() {
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    // multus#35: one of another network, and one of unknown origin
    for taken in ["net1", "tun0"] {
        bench.netns.taken.insert(taken);
        plug(&mut bench, &named("c", taken)).unwrap_err();
    }
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/b"]);
    // A caller that undoes what failed.
    let error = unplug(&mut bench, "net1", &asked("c")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface net1 is attached to network ns/b, not to ns/c"
    );
    // An existing interface is not reported as gone.
    let error = unplug(&mut bench, "tun0", &asked("c")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface tun0 is there, and no network is known that it belongs to"
    );
    unplug(&mut bench, "tun1", &asked("c")).unwrap();
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b"]);
}

#[test]
fn network_plugged_by_upstream_is_unplugged_by_cache() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let before = fs::read(bench.scratch()).unwrap();
    plug(&mut bench, &named("c", "hot0")).unwrap();
    // It records nothing.
    fs::write(bench.scratch(), before).unwrap();
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL c"]);
    assert_eq!(bench.results(), ["a-c1-eth0"]);
}

#[test]
fn reading_corrupt_record_keeps_it() {
    // multus#46 (a call about one network comes before the pod's DEL)
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    fs::write(bench.scratch(), "[{\"Conf\":").unwrap();
    unplug(&mut bench, "hot0", &asked("c")).unwrap();
    check(&bench, "hot0", &asked("c"), Ok(named("c", "hot0"))).unwrap();
    assert!(bench.scratch().exists());
    // A network more needs a record that can be read: what is known goes into it.
    plug(&mut bench, &named("c", "hot0")).unwrap();
    assert_eq!(names(&bench.stored()), ["a", "ns/c"]);
    assert!(bench.dir.path().join("multus/.c1.corrupt").exists());
}

#[test]
fn check_calls_plugin_like_add() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let config = json!({"cniVersion": "0.4.0", "name": "c", "type": "c", "capabilities": {"ips": true}});
    let mut hot = Delegate::new(
        "ns/c".into(),
        Config::parse(config.to_string().as_bytes()).unwrap(),
    );
    hot.requests.interface = Some("hot0".into());
    hot.requests.ips = vec!["10.1.1.7/24".into()];
    plug(&mut bench, &hot).unwrap();
    // Its definition became unusable.
    let unusable = || Err(Error::internal("unusable"));
    check(&bench, "hot0", &asked("c"), unusable()).unwrap();
    let config = bench.fake.call("CHECK c").config;
    assert_eq!(config["runtimeConfig"], json!({"ips": ["10.1.1.7/24"]}));
    assert_eq!(config["prevResult"]["interfaces"][0]["name"], "hot0");
    let error = check(&bench, "hot1", &asked("c"), unusable()).unwrap_err();
    assert_eq!(error.to_string(), "unusable");
    // A version without CHECK is not checked.
    let old = Config::parse(br#"{"cniVersion":"0.3.1","name":"old","type":"o"}"#).unwrap();
    let mut old = Delegate::new("ns/old".into(), old);
    old.requests.interface = Some("hot1".into());
    plug(&mut bench, &old).unwrap();
    check(&bench, "hot1", &asked("old"), unusable()).unwrap();
    assert!(!bench.fake.names().contains(&"CHECK o".to_owned()));
}
