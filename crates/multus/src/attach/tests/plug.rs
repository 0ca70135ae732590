//! Networks that come and go while the pod runs.

use super::*;

/// The sandbox as a call about one of its interfaces sees it.
fn on(bench: &Bench, ifname: &str) -> Sandbox {
    Sandbox {
        ifname: ifname.into(),
        ..bench.sandbox.clone()
    }
}

fn plug(bench: &mut Bench, delegate: &Delegate, others: &[Delegate]) -> Result<CniResult, Error> {
    let sandbox = on(bench, delegate.requests.interface.as_deref().unwrap());
    let attacher = Attacher {
        runner: &bench.fake,
        config: &bench.config,
        sandbox: &sandbox,
    };
    attacher.plug(delegate, others, &mut bench.netns)
}

fn unplug(bench: &Bench, ifname: &str, asked: Option<&Delegate>) -> Result<(), Error> {
    let sandbox = on(bench, ifname);
    Attacher {
        runner: &bench.fake,
        config: &bench.config,
        sandbox: &sandbox,
    }
    .unplug(asked)
}

fn named(name: &str, ifname: &str) -> Delegate {
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
fn what_is_plugged_in_is_detached_with_the_pod() {
    // multus#92
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    let result = plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
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
fn what_is_unplugged_is_forgotten_and_others_keep_their_interfaces() {
    // multus#78 (the daemon's part)
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b"), single("c")]).unwrap();
    unplug(&bench, "net1", Some(&single("b"))).unwrap();
    let stored = bench.stored();
    assert_eq!(names(&stored), ["ns/a", "ns/c"]);
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names()[3..], ["DEL b", "DEL c", "DEL a"]);
    assert_eq!(bench.fake.call("DEL b").variables["CNI_IFNAME"], "net1");
    assert_eq!(bench.fake.call("DEL c").variables["CNI_IFNAME"], "net2");
    assert_eq!(bench.fake.call("DEL a").variables["CNI_IFNAME"], "eth0");
}

#[test]
fn a_network_is_unplugged_as_it_was_plugged_in() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
    // Its definition is another one by now, or gone.
    let config = json!({"cniVersion": "0.4.0", "name": "c", "type": "other"});
    let now = Delegate::new(
        "ns/c".into(),
        Config::parse(config.to_string().as_bytes()).unwrap(),
    );
    unplug(&bench, "hot0", Some(&now)).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL c"]);
    plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
    unplug(&bench, "hot0", None).unwrap();
    assert_eq!(bench.fake.names()[4..], ["DEL c"]);
    assert_eq!(bench.fake.call("DEL c").config["kubeconfig"], "/k");
}

#[test]
fn the_cluster_network_is_not_forgotten_for_a_plugged_one() {
    // The pod was attached while multus was not on the node.
    let mut bench = Bench::new();
    assert!(bench.attacher().known().is_none());
    plug(&mut bench, &named("c", "hot0"), &[single("a")]).unwrap();
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names(), ["ADD c", "DEL c", "DEL a"]);
    assert_eq!(bench.fake.call("DEL a").variables["CNI_IFNAME"], "eth0");
}

#[test]
fn a_failing_plugin_leaves_nothing_recorded_unless_it_can_not_be_undone() {
    let mut bench = Bench::new().failing("ADD c");
    bench.add(&[single("a")]).unwrap();
    let error = plug(&mut bench, &named("c", "hot0"), &[]).unwrap_err();
    assert_eq!(error.code, code::TRY_AGAIN_LATER);
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c", "DEL c"]);
    assert_eq!(names(&bench.stored()), ["ns/a"]);

    let mut bench = bench.failing("DEL c");
    plug(&mut bench, &named("c", "hot0"), &[]).unwrap_err();
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
    // The next attempt replaces that record.
    bench.fake.failing.clear();
    plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/c"]);
}

#[test]
fn an_answer_that_was_missed_is_given_again() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let first = plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
    bench.netns.taken.insert("hot0");
    let again = plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
    assert_eq!(again.ips, first.ips);
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c"]);
    // Another wish is another matter.
    let mut other = named("c", "hot0");
    other.requests.ips = vec!["10.1.1.1/24".into()];
    let error = plug(&mut bench, &other, &[]).unwrap_err();
    assert!(
        error
            .msg
            .ends_with("validateIfName: interface name hot0 already exists"),
        "{error}"
    );
    assert_eq!(bench.fake.names(), ["ADD a", "ADD c"]);
}

#[test]
fn an_interface_of_somebody_else_is_left_alone() {
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    // multus#35: one of another network, and one that nobody here attached
    for taken in ["net1", "tun0"] {
        bench.netns.taken.insert(taken);
        plug(&mut bench, &named("c", taken), &[]).unwrap_err();
    }
    assert_eq!(names(&bench.stored()), ["ns/a", "ns/b"]);
    // A caller that undoes what failed.
    let error = unplug(&bench, "net1", Some(&single("c"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interface net1 is attached to network ns/b, not to ns/c"
    );
    unplug(&bench, "tun0", Some(&single("c"))).unwrap();
    // The master has no name in the record and is not to be had.
    unplug(&bench, "eth0", Some(&single("a"))).unwrap();
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b"]);
}

#[test]
fn what_the_established_daemon_plugged_in_is_unplugged_from_its_result_cache() {
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    let before = fs::read(bench.scratch()).unwrap();
    plug(&mut bench, &named("c", "hot0"), &[]).unwrap();
    // It records nothing.
    fs::write(bench.scratch(), before).unwrap();
    unplug(&bench, "hot0", Some(&single("c"))).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL c"]);
    assert_eq!(bench.results(), ["a-c1-eth0"]);
}
