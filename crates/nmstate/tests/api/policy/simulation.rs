//! Many handlers at once: the requests of a policy to the API server.
//!
//! `WEFT_SIMULATED_NODES=200 cargo test --locked -p weft-nmstate --test api policy::simulation -- --nocapture` prints
//! lines that begin with `simulation:`.

use std::collections::BTreeMap;
use std::fmt;

use super::*;

/// Number of nodes unless the environment sets another one.
const NODES: usize = 40;

/// How long many handlers in one process may take on a slow machine.
const LONG: Duration = Duration::from_mins(10);

/// The requests of all handlers since a mark in the audit log.
struct Cost {
    /// Writes of the policy's status that were accepted.
    policy_writes: usize,
    /// Writes of the policy's status with a conflict.
    conflicts: usize,
    /// Writes of enactments.
    enactment_writes: usize,
    /// Lists of enactments, nodes, pods and everything else.
    lists: usize,
    gets: usize,
}

impl Cost {
    fn since(stage: &Stage, mark: u64) -> Self {
        let requests = stage.requests_since(mark);
        let mut by = BTreeMap::<(&str, &str, u64), usize>::new();
        for request in &requests {
            let kind = ["policies", "enactments", "states", "events"]
                .into_iter()
                .find(|kind| request.uri.contains(kind))
                .unwrap_or("others");
            let verb = match request.verb.as_str() {
                "create" | "update" | "patch" | "delete" => "write",
                "list" => "list",
                _ => "get",
            };
            *by.entry((kind, verb, request.code)).or_default() += 1;
        }
        let count = |wanted: &dyn Fn(&(&str, &str, u64)) -> bool| {
            by.iter()
                .filter(|(key, _)| wanted(key))
                .map(|(_, count)| count)
                .sum()
        };
        println!("{by:#?}");
        Self {
            policy_writes: count(&|(kind, verb, code)| (*kind, *verb, *code) == ("policies", "write", 200)),
            conflicts: count(&|(kind, verb, code)| (*kind, *verb, *code) == ("policies", "write", 409)),
            enactment_writes: count(&|(kind, verb, _)| (*kind, *verb) == ("enactments", "write")),
            lists: count(&|(_, verb, _)| *verb == "list"),
            gets: count(&|(_, verb, _)| *verb == "get"),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy_writes,
            conflicts,
            enactment_writes,
            lists,
            gets,
        } = self;
        write!(
            f,
            "{policy_writes} writes of policies, {conflicts} conflicts, {enactment_writes} writes of enactments, {lists} \
             lists, {gets} gets"
        )
    }
}

/// Runs a policy on that many nodes, of which this share in percent may apply it at a time. The first of them finish at
/// the same moment, when all others wait.
fn run(name: &str, share: usize) {
    let count = std::env::var("WEFT_SIMULATED_NODES").ok();
    let count: usize = count.and_then(|count| count.parse().ok()).unwrap_or(NODES);
    let stage = Stage::start();
    let names: Vec<String> = (0..count).map(|number| format!("node{number:04}")).collect();
    let hosts: Vec<Host> = names.iter().map(|_| Host::new(host::two_nics())).collect();
    let gate = Gate::default();
    for (name, host) in names.iter().zip(&hosts) {
        stage.node(name, &[]);
        gate.hold(host);
    }
    let settings = Settings {
        namespace: crate::fixture::NAMESPACE.to_owned(),
        ..Settings::default()
    };
    let simulated: Vec<(String, Host)> = names.iter().cloned().zip(hosts.iter().cloned()).collect();
    let started = stage.mark();
    let _handlers = stage.task(move |client, shutdown| async move {
        let controllers = simulated.into_iter().map(|(node, host)| {
            let shared = shared(&node, &host, client.clone(), settings.clone());
            let pipeline = Pipeline::new(host.engine(), client.clone(), node, unprobed());
            controller::start(shared, Arc::new(pipeline))
        });
        let all = futures::future::join_all(controllers);
        tokio::select! {
            _ = all => {}
            () = shutdown.wait() => {}
        }
    });
    // Each handler cleans up its leftovers once its watches are synced.
    wait::until("the handlers to be up", LONG, || {
        let requests = stage.requests_since(started);
        let up = requests.iter().filter(|request| request.uri.contains("limit=1"));
        match up.count() {
            up if up >= count => Ok(()),
            up => Err(format!("{up} of {count}")),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let mark = stage.mark();
    let began = Instant::now();
    let spec = json!({ "maxUnavailable": format!("{share}%"), "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    let at_once = (count * share).div_ceil(100);
    wait::until("all others to wait", LONG, || {
        let enactments = stage.list(Kind::Enactment);
        let waiting = enactments
            .iter()
            .filter(|one| status_of(one, "Pending") == "True");
        let (at_it, waiting) = (gate.state().now, waiting.count());
        if at_it + waiting == count && at_it >= at_once {
            Ok(())
        } else {
            Err(format!("{at_it} of {count} are at it, {waiting} wait"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(gate.state().most, at_once, "so many may be at it at a time");
    println!("all that may be are at it after {:?}", began.elapsed());
    let opened = Instant::now();
    gate.open();
    let text = format!("{count}/{count} nodes successfully configured");
    let stored = wait::until("the policy to be everywhere", LONG, || {
        let policy = stage.get(Kind::Policy, "p").expect("it");
        match said(&policy) {
            Some(said) if said == configured(&text) => Ok(policy),
            _ => Err(format!("{:#}", policy["status"])),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let (took, settled) = (began.elapsed(), opened.elapsed());
    assert_eq!(stored["status"]["unavailableNodeCountMap"], json!({}));
    let cost = Cost::since(&stage, mark);
    println!(
        "simulation: {name}: {count} nodes, {cost}, {:.1} s to Available, {:.1} s of it after the last node was let go",
        took.as_secs_f64(),
        settled.as_secs_f64(),
    );
    // Each node takes a slot and most release one; further writes must not grow with the number of nodes.
    assert!(cost.policy_writes <= 2 * count + 30, "{}", cost.policy_writes);
    // Without random delays, all nodes at once cause ten to twelve conflicts a node. With them it is less than one
    // on a quiet machine, and more on one that others use too: all handlers share one thread here.
    assert!(cost.conflicts <= 6 * count, "{}", cost.conflicts);
    assert!(cost.enactment_writes <= 6 * count, "{}", cost.enactment_writes);
}

/// For each policy: how many nodes apply it now, and the most that did so at a time.
type AtOnce = Arc<Mutex<BTreeMap<u64, (usize, usize)>>>;

/// The policies set this MTU and those above it.
const FIRST: u32 = 1300;
const POLICIES: usize = 30;

/// Counts the nodes that apply each policy. A change of the host takes 100 ms, so that changes of two hosts can
/// overlap.
fn count(host: &Host, at_once: &AtOnce) {
    let at_once = Arc::clone(at_once);
    host.on_apply(move |desired| {
        let policy = desired["interfaces"][0]["mtu"].as_u64().unwrap_or_default();
        let enter = |by: isize| {
            let mut at_once = at_once.lock().unwrap_or_else(PoisonError::into_inner);
            let (now, most) = at_once.entry(policy).or_default();
            *now = now.saturating_add_signed(by);
            *most = (*most).max(*now);
        };
        enter(1);
        std::thread::sleep(Duration::from_millis(100));
        enter(-1);
        Ok(())
    });
}

// nmstate#105
#[test]
fn thirty_policies_are_applied_on_two_nodes() {
    let stage = Stage::start();
    let at_once = AtOnce::default();
    let nodes = ["node01", "node02"].map(|node| {
        stage.node(node, &[]);
        let host = Host::new(host::two_nics());
        count(&host, &at_once);
        let settings = Settings {
            namespace: crate::fixture::NAMESPACE.to_owned(),
            ..Settings::default()
        };
        let handler = handler_with(&stage, node, &host, settings);
        (host, handler)
    });
    let (mark, began) = (stage.mark(), Instant::now());
    for (number, size) in (FIRST..).take(POLICIES).enumerate() {
        let name = format!("p{number:02}");
        let spec = json!({ "desiredState": mtu(size) });
        stage.create(Kind::Policy, &policy(&name, &spec));
    }
    let all = configured("2/2 nodes successfully configured");
    wait::until("all policies to be Available", LONG, || {
        let policies = stage.list(Kind::Policy);
        let done = policies
            .iter()
            .filter(|policy| said(policy).is_some_and(|said| said == all));
        match done.count() {
            POLICIES => Ok(()),
            done => Err(format!("{done} of {POLICIES}")),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let took = began.elapsed();
    let cost = Cost::since(&stage, mark);
    println!(
        "simulation: {POLICIES} policies on two nodes: {cost}, {:.1} s",
        took.as_secs_f64(),
    );
    let at_once = at_once.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(at_once.len(), POLICIES, "{at_once:?}");
    assert!(
        at_once.values().all(|(_, most)| *most == 1),
        "half of two nodes at a time: {at_once:?}"
    );
    for (host, _) in &nodes {
        assert_eq!(host.applied().len(), POLICIES);
    }
}

// nmstate#22
#[test]
fn rollout_on_many_nodes_respects_the_limit() {
    run("half at a time", 50);
}

#[test]
fn nodes_that_finish_together_write_few_statuses() {
    run("all together", 100);
}
