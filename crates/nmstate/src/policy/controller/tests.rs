use super::*;
use serde_json::json;

fn policy(name: &str, priority: Option<i64>) -> Policy {
    let object = json!({ "metadata": { "name": name }, "spec": { "priority": priority } });
    Policy::new(serde_json::from_value(object).expect("an object"))
}

// nmstate#105
#[test]
fn wait_for_a_slot_does_not_count_as_failure() {
    let settings = Settings {
        initial_backoff: Duration::ZERO,
        max_backoff: Duration::from_secs(30),
        ..Settings::default()
    };
    let mut tracked = Tracked::default();
    for _ in 0..100 {
        let pause = tracked
            .delay_after(&Next::AwaitSlot, &settings)
            .expect("another pass");
        assert!(
            pause >= Duration::from_secs(1),
            "a waiting policy is woken, and does not poll"
        );
    }
    let settings = Settings {
        initial_backoff: Duration::from_secs(1),
        ..settings
    };
    let mut requeued = || tracked.delay_after(&Next::Requeue, &settings);
    assert_eq!(requeued(), Some(Duration::from_secs(1)));
    assert_eq!(requeued(), Some(Duration::from_secs(2)));
    assert_eq!(tracked.delay_after(&Next::Done, &settings), None);
    assert_eq!(
        tracked.delay_after(&Next::Requeue, &settings),
        Some(Duration::from_secs(1))
    );
}

// nmstate#105
#[tokio::test(start_paused = true)]
async fn report_requests_are_coalesced() {
    let requested = Notify::new();
    let acts = std::cell::Cell::new(0);
    let acting = at_most_every(REPORT_INTERVAL, &requested, async || acts.set(acts.get() + 1));
    let asking = async {
        for _ in 0..30 {
            requested.notify_one();
            tokio::time::sleep(REPORT_INTERVAL / 10).await;
        }
        tokio::time::sleep(2 * REPORT_INTERVAL).await;
    };
    tokio::select! {
        () = acting => {}
        () = asking => {}
    }
    assert!((3..=5).contains(&acts.get()), "{}", acts.get());
}

// nmstate#122
#[tokio::test(start_paused = true)]
async fn report_waits_for_further_policies_up_to_a_limit() {
    let (requested, busy) = (Notify::new(), Busy::new(true));
    let began = Instant::now();
    let acts = Mutex::new(Vec::new());
    let acting = at_most_every(REPORT_INTERVAL, &requested, async || {
        kube_kit::lock(&acts).push(began.elapsed().as_secs());
        until_idle(&busy, REPORT_DELAY).await;
    });
    let asking = async {
        // A policy each second.
        for _ in 0..12 {
            requested.notify_one();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        busy.send_replace(false);
        requested.notify_one();
        tokio::time::sleep(Duration::from_secs(20)).await;
    };
    tokio::select! {
        () = acting => {}
        () = asking => {}
    }
    // At once, every 5 s, and soon after the last one.
    assert_eq!(*kube_kit::lock(&acts), [0, 5, 10, 13]);
}

// nmstate#32
#[test]
fn policies_are_ordered_by_priority_and_name() {
    let mut policies = [
        policy("b", None),
        policy("a", Some(1)),
        policy("c", Some(-1)),
        policy("a2", None),
    ];
    policies.sort_by_key(order);
    let names: Vec<String> = policies.iter().map(Policy::name).collect();
    assert_eq!(names, ["c", "a2", "b", "a"]);
}
