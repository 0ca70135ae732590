//! Changes of a host by any program cause events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use linux::netns::unshare_network;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use weft_nmstate::changes::{self, Bus, Kernel};
use weft_nmstate::engine::Backend;

use crate::host::{Host, wait};

/// Timeout of every wait on a slow machine.
const DEADLINE: Duration = Duration::from_mins(1);

/// Runs a test on a thread in a network namespace of its own.
fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare_network().unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments, in the namespace of the calling thread.
fn ip(arguments: &str) {
    let run = std::process::Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(run.status.success(), "ip {arguments}: {run:?}");
}

/// Waits until there are no further events: the kernel sends them while it works.
async fn quiet(kernel: &mut Kernel) {
    while tokio::time::timeout(Duration::from_millis(200), kernel.changed())
        .await
        .is_ok()
    {}
}

// nmstate#4
#[test]
fn kernel_events_cover_links_addresses_and_routes_only() {
    alone(|| {
        wait(async {
            let mut kernel = Kernel::open().unwrap();
            assert!(kernel.changed().now_or_never().is_none(), "nothing happened");
            for arguments in [
                "link add br1 type bridge",
                "link set br1 up",
                "address add 192.0.2.1/24 dev br1",
                "address add 2001:db8::1/64 dev br1 nodad",
                "route add 198.51.100.0/24 via 192.0.2.254",
                "route add 2001:db8:1::/64 via 2001:db8::fe",
                "route add 203.0.113.0/24 dev br1 table 200",
                "route del 198.51.100.0/24",
                "route del 2001:db8:1::/64",
                "address del 192.0.2.1/24 dev br1",
                "link set br1 mtu 1400",
                "link del br1",
            ] {
                quiet(&mut kernel).await;
                ip(arguments);
                tokio::time::timeout(DEADLINE, kernel.changed())
                    .await
                    .unwrap_or_else(|_| panic!("ip {arguments} caused no event"))
                    .unwrap();
            }
            ip("link add br2 type bridge");
            ip("link set br2 up");
            // The kernel reports the link's carrier when it has the time, maybe during an attempt.
            let mut is_event = true;
            for number in 1..=5 {
                quiet(&mut kernel).await;
                ip(&format!(
                    "neighbour add 192.0.2.{number} lladdr 02:00:00:00:00:07 dev br2"
                ));
                is_event = kernel.changed().now_or_never().is_some();
                if !is_event {
                    break;
                }
            }
            assert!(!is_event, "neighbours are no event");
        });
    });
}

/// Waits for an event until the deadline.
async fn wait_for_event(changed: &Notify, what: &str, host: &Host) {
    let notified = tokio::time::timeout(DEADLINE, changed.notified()).await;
    notified.unwrap_or_else(|_| panic!("{what} caused no event\n{}", host.log()));
}

/// Waits until there was no event for this long.
async fn quiet_for(changed: &Notify, pause: Duration) {
    while tokio::time::timeout(pause, changed.notified()).await.is_ok() {}
}

// nmstate#112
#[test]
fn bus_events_cover_starts_and_changes_of_network_manager() {
    let mut host = Host::enter();
    wait(async {
        let mut bus = Bus::open(None).await.unwrap();
        // A profile changes; its interface does not.
        host.script("nmcli connection add type ethernet ifname eth1 con-name later autoconnect no")
            .unwrap();
        tokio::time::timeout(DEADLINE, bus.changed())
            .await
            .unwrap_or_else(|_| panic!("the profile caused no event\n{}", host.log()))
            .unwrap();
    });
    wait(async {
        let (changed, starts) = (Arc::new(Notify::new()), Arc::new(watch::Sender::new(0)));
        let mut started = starts.subscribe();
        let following = tokio::spawn(changes::follow(
            Arc::clone(&changed),
            starts,
            Backend::NetworkManager,
        ));
        wait_for_event(&changed, "the beginning", &host).await;
        // The bus disappears and returns: the handler listens to it again.
        host.kill().unwrap();
        wait_for_event(&changed, "the end of the bus", &host).await;
        started.mark_unchanged();
        host.start_again().unwrap();
        let start = tokio::time::timeout(DEADLINE, started.changed()).await;
        start
            .unwrap_or_else(|_| panic!("the start was not reported\n{}", host.log()))
            .unwrap();
        // Attempts to listen notify as well, ever less often; only signals notify each time.
        let mut events = 0;
        let began = Instant::now();
        while events < 3 {
            assert!(
                began.elapsed() < DEADLINE,
                "it is not listened to again\n{}",
                host.log()
            );
            quiet_for(&changed, Duration::from_millis(100)).await;
            let server = format!("192.0.2.{}", 1 + began.elapsed().subsec_millis() % 250);
            host.script(&format!("nmcli connection modify later ipv4.dns {server}"))
                .unwrap();
            let again = tokio::time::timeout(Duration::from_millis(500), changed.notified()).await;
            events = if again.is_ok() { events + 1 } else { 0 };
        }
        assert!(!following.is_finished(), "it listens for ever");
        following.abort();
    });
}

/// The published report equals the library's, byte for byte, whenever the host is the same.
#[test]
fn report_of_an_unchanged_host_is_stable() {
    let host = Host::enter();
    let engine = host.engine();
    let text = || -> String {
        let report = wait(engine.report()).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
        let names: Vec<&Value> = report["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|interface| &interface["name"])
            .collect();
        assert_eq!(names, ["eth1", "lo", "wire"]);
        for interface in report["interfaces"].as_array().unwrap() {
            let keys: Vec<&String> = interface.as_object().unwrap().keys().take(2).collect();
            assert_eq!(keys, ["name", "type"]);
        }
        assert_eq!(report["ovn"], json!({}));
        assert!(report["routes"]["running"].is_array() && report["routes"]["config"].is_array());
        assert!(report["route-rules"]["config"].is_array(), "{report:#}");
        weft_nmstate::filter::report(report, |_| false).to_string()
    };
    // NetworkManager takes the interface over a moment after its start.
    let began = Instant::now();
    let mut first = text();
    let mut same = 0;
    while same < 5 {
        assert!(began.elapsed() < DEADLINE, "{first}\n{}", text());
        let next = text();
        same = if next == first { same + 1 } else { 0 };
        first = next;
    }
    let versions = wait(engine.versions()).unwrap();
    assert_eq!(versions.engine, "nmstatectl 2.2.62");
    let version = versions.network_manager.unwrap();
    assert!(
        version.starts_with(|first: char| first.is_ascii_digit()),
        "{version}"
    );
}
