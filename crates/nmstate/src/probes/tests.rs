use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;

// nmstate#46
#[test]
fn gateway_is_that_of_the_main_table() {
    let route = |destination: &str, gateway: &str, table: u64| json!({"destination": destination, "next-hop-address": gateway, "next-hop-interface": "eth1", "table-id": table});
    let found = |routes: &[Value]| gateway(&json!({"routes": {"running": routes}}));
    let eth1 = |gateway: &str| Some((gateway.parse().expect("an address"), "eth1".to_owned()));
    assert_eq!(found(&[route("0.0.0.0/0", "192.0.2.1", 200)]), None);
    assert_eq!(found(&[route("192.0.2.0/24", "192.0.2.1", 254)]), None);
    assert_eq!(found(&[route("0.0.0.0/0", "0.0.0.0", 254)]), None);
    assert_eq!(
        found(&[
            route("0.0.0.0/0", "192.0.2.9", 200),
            route("0.0.0.0/0", "192.0.2.1", 254),
            route("0.0.0.0/0", "192.0.2.2", 254)
        ]),
        eth1("192.0.2.1")
    );
    assert_eq!(found(&[route("::/0", "fe80::1", 254)]), eth1("fe80::1"));
    assert_eq!(gateway(&json!({})), None);
}

#[test]
fn running_name_servers_are_probed() {
    let report = json!({"dns-resolver": {"config": {"server": ["192.0.2.1"]}, "running": {"server": ["192.0.2.2", "192.0.2.3"]}}});
    assert_eq!(servers(&report).collect::<Vec<_>>(), ["192.0.2.2", "192.0.2.3"]);
    assert_eq!(servers(&json!({"dns-resolver": {}})).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn dead_name_servers_do_not_delay_an_answer() {
    let ask = |server: &'static str| async move {
        if server == "192.0.2.6" {
            return Ok(());
        }
        sleep(dns::TIMEOUT).await;
        Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
    };
    let servers = [
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.3",
        "192.0.2.4",
        "192.0.2.5",
        "192.0.2.6",
    ];
    let began = tokio::time::Instant::now();
    assert_eq!(any(servers.into_iter(), ask).await, Ok(()));
    assert_eq!(began.elapsed().as_secs(), 0);
    let dead = any(servers.into_iter().take(2), ask).await;
    let causes = ["192.0.2.1: no answer", "192.0.2.2: no answer"].map(str::to_owned);
    assert_eq!(dead, Err(causes.into()));
    assert_eq!(began.elapsed().as_secs(), dns::TIMEOUT.as_secs());
}

/// A prober on a host that reports this, whose number of reports is counted.
fn prober(report: Value) -> (Prober, Arc<AtomicUsize>) {
    let (engine, mut requests) = Engine::channel();
    let reports = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reports);
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            if let crate::engine::Request::Report(back) = request {
                counted.fetch_add(1, Ordering::Relaxed);
                drop(back.send(Ok(report.clone())));
            }
        }
    });
    let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
        std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::convert::Infallible>>()
            .await
    });
    let client = Client::new(service, "default");
    (
        Prober::new(engine, client, "node01".to_owned(), Settings::default()),
        reports,
    )
}

// nmstate#48
#[tokio::test(start_paused = true)]
async fn failed_probe_is_not_waited_for_again() {
    let (prober, reports) = prober(json!({}));
    let started = tokio::time::Instant::now();
    let choose = async || prober.select(&json!({})).await.probes;
    assert_eq!(choose().await, [Probe::ApiServer, Probe::NodeReadiness]);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    let first = reports.load(Ordering::Relaxed);
    // One request for both probes each second; a request at the timeout may be counted late.
    assert!((10..=11).contains(&first), "{first}");
    assert_eq!(choose().await, [Probe::ApiServer, Probe::NodeReadiness]);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    let second = reports.load(Ordering::Relaxed) - first;
    // One request for both, and the late one.
    assert!((1..=2).contains(&second), "{second}");
}

// nmstate#121
#[test]
fn failed_targets_are_not_probed_twice_in_a_row() {
    let now = Instant::now();
    let (gateway, other) = (["192.0.2.1".to_owned()], ["192.0.2.2".to_owned()]);
    let mut history = History {
        failed: true,
        failed_check: Some(FailedCheck {
            targets: gateway.to_vec(),
            at: now,
            cause: "no answer".to_owned(),
        }),
    };
    let soon = now + Duration::from_secs(29);
    assert_eq!(history.recent_cause(&gateway, soon).as_deref(), Some("no answer"));
    assert_eq!(history.recent_cause(&other, soon), None, "another one may answer");
    assert_eq!(history.recent_cause(&[], soon), None);
    assert_eq!(
        history.recent_cause(&gateway, now + Duration::from_secs(30)),
        None
    );
    history.failed = false;
    assert_eq!(
        history.recent_cause(&gateway, soon),
        None,
        "it is still waited for"
    );
    assert_eq!(History::default().recent_cause(&gateway, soon), None);
}

// nmstate#121
#[tokio::test(start_paused = true)]
async fn failed_gateway_is_probed_again_after_a_while() {
    // Nothing is sent: there is no such interface.
    let (prober, _) = prober(json!({ "routes": { "running": [{
        "destination": "0.0.0.0/0", "next-hop-address": "192.0.2.1", "next-hop-interface": "nosuch0",
        "table-id": 254,
    }] } }));
    let last = || {
        let history = kube_kit::lock(&prober.histories[0]);
        let failed_check = history.failed_check.as_ref().expect("no answer");
        (failed_check.targets.clone(), failed_check.at)
    };
    let began = Instant::now();
    prober.select(&json!({})).await;
    let (asked, first) = last();
    assert_eq!(asked, ["192.0.2.1", "nosuch0"]);
    assert!(first >= began + Duration::from_secs(8), "each second, up to 10 s");
    sleep(Duration::from_secs(5)).await;
    prober.select(&json!({})).await;
    assert_eq!(last().1, first, "not repeated");
    sleep(Duration::from_secs(30)).await;
    prober.select(&json!({})).await;
    assert_eq!(last().1, Instant::now(), "repeated");
    // A change that leaves the targets alone does not bring it back, another one may.
    let before = last().1;
    sleep(Duration::from_secs(1)).await;
    prober.pass(&[], 1).await.expect("nothing to pass");
    prober.select(&json!({})).await;
    assert_eq!(last().1, before);
    prober.pass(&[], CHECKS).await.expect("nothing to pass");
    prober.select(&json!({})).await;
    assert_eq!(last().1, Instant::now());
}

// nmstate#119
#[tokio::test(start_paused = true)]
async fn concurrent_checks_share_a_report() {
    let (prober, reports) = prober(json!({}));
    let probes = [Probe::Ping, Probe::Dns];
    let first = timeout(Duration::from_millis(1), prober.pass(&probes, CHECKS)).await;
    assert!(first.is_err(), "neither passes");
    assert_eq!(
        reports.load(Ordering::Relaxed),
        1,
        "the first look comes at once, and is one for both"
    );
    let failed = prober.pass(&probes, CHECKS).await.expect_err("neither passes");
    assert_eq!(
        (failed.probe, failed.cause.as_str()),
        (Probe::Ping, "default gw missing (for 120 s)")
    );
    // One request each second, of both attempts; a request at the timeout may be counted late.
    let all = reports.load(Ordering::Relaxed);
    assert!((121..=122).contains(&all), "{all}");
}

// nmstate#119
#[tokio::test(start_paused = true)]
async fn probe_never_uses_a_report_twice() {
    let (prober, reports) = prober(json!({}));
    let checks = prober.reports();
    let pause = prober.settings.pause;
    assert_eq!(checks.recent().await, Ok(Arc::new(json!({}))));
    sleep(pause / 5).await;
    assert_eq!(checks.recent().await, Ok(Arc::new(json!({}))));
    assert_eq!(reports.load(Ordering::Relaxed), 1, "another probe's look");
    sleep(pause * 4 / 5).await;
    assert_eq!(checks.recent().await, Ok(Arc::new(json!({}))));
    assert_eq!(reports.load(Ordering::Relaxed), 2, "the next look");
    // Reports of earlier probes do not count after the change.
    assert_eq!(prober.reports().recent().await, Ok(Arc::new(json!({}))));
    assert_eq!(reports.load(Ordering::Relaxed), 3);
}

// nmstate#120
#[tokio::test(start_paused = true)]
async fn change_that_keeps_the_targets_needs_one_check() {
    let address = json!({ "enabled": true, "dhcp": true });
    let (mut prober, _) =
        prober(json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "ipv4": address }] }));
    let bridge = |port: &str| {
        json!({ "interfaces": [{ "name": "br1", "type": "linux-bridge", "state": "up",
            "bridge": { "port": [{ "name": port }] } }] })
    };
    // From now on, no probe waits.
    prober.select(&json!({})).await;
    assert_eq!(prober.select(&bridge("eth2")).await.checks, 1);
    assert_eq!(prober.select(&bridge("eth1")).await.checks, 2);
    prober.settings.backend = Backend::Kernel;
    assert_eq!(
        prober.select(&bridge("eth2")).await.checks,
        2,
        "the kernel may give it an address"
    );
}

// nmstate#120
#[tokio::test(start_paused = true)]
async fn unreadable_host_needs_two_checks() {
    let (engine, _nobody_answers) = Engine::channel();
    let client = prober(json!({})).0.client;
    let prober = Prober::new(engine, client, "node01".to_owned(), Settings::default());
    let bridge = json!({ "interfaces": [{ "name": "br1", "type": "linux-bridge", "state": "up" }] });
    assert_eq!(prober.select(&bridge).await.checks, 2);
}

// nmstate#47
#[tokio::test(start_paused = true)]
async fn stale_report_after_a_change_is_not_trusted() {
    let second = Duration::from_secs(1);
    let after = async |outcomes: &[bool], checks| {
        let mut outcomes = outcomes.iter();
        let outcomes = std::cell::RefCell::new(&mut outcomes);
        let check = async || match outcomes.borrow_mut().next() {
            Some(true) => Ok(()),
            _ => Err("no name servers".to_owned()),
        };
        let started = tokio::time::Instant::now();
        let outcome = until(checks, 5 * second, second, check).await;
        (outcome, started.elapsed().as_secs())
    };
    assert_eq!(after(&[true, true], 2).await, (Ok(()), 1));
    assert_eq!(after(&[false, true, false, true, true], 2).await, (Ok(()), 4));
    let broken = Err("no name servers (for 5 s)".to_owned());
    assert_eq!(after(&[true], 2).await, (broken, 5));
    // Before a change, one check is enough.
    assert_eq!(after(&[true], 1).await, (Ok(()), 0));
}
