use super::*;
use crate::collisions::Reference;

fn notice(number: u64, parties: &[&str]) -> Notice {
    let party = |name: &&str| Party {
        reference: Reference::instance("a", name),
        uid: "uid".into(),
    };
    Notice {
        mac: Mac::from_number(number),
        parties: parties.iter().map(party).collect(),
    }
}

fn drain(notices: &Notices) -> Vec<Next> {
    std::iter::from_fn(|| notices.waiting().take()).collect()
}

#[test]
fn notices_keep_order_and_newer_replace_older() {
    let notices = Notices::new();
    notices.collisions([notice(1, &["v1", "v2"]), notice(2, &["v1", "v2"])]);
    notices.collisions([notice(1, &["v1", "v2", "v3"])]);
    assert_eq!(
        drain(&notices),
        [
            Next::Collision(notice(1, &["v1", "v2", "v3"])),
            Next::Collision(notice(2, &["v1", "v2"])),
        ]
    );
    // A published notice may be published again.
    notices.collisions([notice(1, &["v1", "v2"])]);
    assert_eq!(drain(&notices), [Next::Collision(notice(1, &["v1", "v2"]))]);
}

#[test]
fn burst_is_bounded_and_range_notices_go_first() {
    let notices = Notices::new();
    notices.collisions((0..10_000).map(|number| notice(number, &["v1", "v2"])));
    for _ in 0..1000 {
        notices.range(RangeNotice::NearlyFull);
    }
    let updated = RangeNotice::Updated {
        start: Mac::from_number(2),
        end: Mac::from_number(3),
    };
    notices.range(updated.clone());
    let reported = drain(&notices);
    assert_eq!(reported.len(), MAX_COLLISIONS + MAX_RANGE_NOTICES);
    assert_eq!(reported[MAX_RANGE_NOTICES - 1], Next::Range(updated));
    assert_eq!(
        reported[MAX_RANGE_NOTICES],
        Next::Collision(notice(0, &["v1", "v2"]))
    );
}

#[tokio::test]
async fn waiting_sender_is_woken() {
    let notices = Notices::new();
    let (next, ()) = tokio::join!(notices.next(), async {
        tokio::task::yield_now().await;
        notices.range(RangeNotice::NearlyFull);
    });
    assert_eq!(next, Next::Range(RangeNotice::NearlyFull));
}

#[test]
fn nearly_full_is_reported_once_until_range_empties() {
    let mut fullness = Fullness::default();
    let reported: Vec<u64> = [0, 899, 900, 950, 1000, 899, 851, 850, 900, 849, 899, 900, 901]
        .into_iter()
        .filter(|taken| fullness.observe(*taken, 1000).is_some())
        .collect();
    assert_eq!(reported, [900, 900]);
    // A changed range may change the percentage too.
    assert_eq!(fullness.observe(901, 1 << 40), None);
    assert_eq!(fullness.observe(901, 902), Some(RangeNotice::NearlyFull));
    // The largest possible range.
    let mut fullness = Fullness::default();
    assert_eq!(
        fullness.observe((1 << 47) - 1, 1 << 47),
        Some(RangeNotice::NearlyFull)
    );
}

#[test]
fn range_notices_have_specified_texts() {
    let (start, end) = (
        Mac::from_number(0x0300_0000_0000),
        Mac::from_number(0x0600_0000_0000),
    );
    let error = || "why".to_owned();
    let cases = [
        (
            RangeNotice::Invalid { error: error() },
            Kind::Warning,
            "InvalidRange",
            "Invalid MAC range in ConfigMap, ignoring new range values: why",
        ),
        (
            RangeNotice::Refused {
                start,
                end,
                error: error(),
            },
            Kind::Warning,
            "UpdateFailed",
            "Failed to apply new MAC ranges 03:00:00:00:00:00 - 06:00:00:00:00:00: why",
        ),
        (
            RangeNotice::Updated { start, end },
            Kind::Normal,
            "RangeUpdated",
            "MAC addresses are handed out of 03:00:00:00:00:00 - 06:00:00:00:00:00 from now on",
        ),
        (
            RangeNotice::NearlyFull,
            Kind::Warning,
            "RangeNearlyFull",
            "90% or more of the MAC range is taken: \
             virtual machines and pods are refused when it is full. Widen the range.",
        ),
    ];
    for (notice, kind, reason, message) in cases {
        assert_eq!(
            (notice.kind(), notice.reason(), notice.message().as_str()),
            (kind, reason, message)
        );
    }
}

#[test]
fn range_event_goes_to_running_pod_else_first() {
    let pod = |name: &str, phase: &str| -> Pod {
        let pod = serde_json::json!({ "metadata": { "name": name }, "status": { "phase": phase } });
        serde_json::from_value(pod).expect("a pod")
    };
    let name = |pods: Vec<Pod>| event_pod(pods).map(|pod| pod.name_any());
    assert_eq!(
        name(vec![
            pod("a", "Pending"),
            pod("b", "Running"),
            pod("c", "Running")
        ]),
        Some("b".to_owned())
    );
    assert_eq!(
        name(vec![pod("a", "Pending"), pod("b", "Failed")]),
        Some("a".to_owned())
    );
    assert_eq!(name(Vec::new()), None);
}

#[test]
fn event_message_fits_the_api_limit() {
    let mac = Mac::from_number(0x0200_0000_0050);
    assert_eq!(
        messages::collision(mac, &["pod/a/p1", "vmi/a/v1"]),
        "MAC 02:00:00:00:00:50: Collision between pod/a/p1, vmi/a/v1"
    );
    let long: Vec<_> = (0..4)
        .map(|name| format!("vmi/{}/{name}{}", "n".repeat(63), "v".repeat(252)))
        .collect();
    let message = messages::collision(mac, &long);
    assert!(
        message.len() <= 1024 && message.ends_with(", and 1 more"),
        "{message}"
    );
    for count in [2_usize, 40, 41, 42, 43, 44, 100, 5000] {
        let parties: Vec<_> = (0..count)
            .map(|number| format!("vmi/namespace/vm-{number:05}"))
            .collect();
        let message = messages::collision(mac, &parties);
        assert!(message.len() <= 1024, "{message}");
        let named = message.matches("vmi/").count();
        let rest = message.rsplit_once(", and ").map(|(_, rest)| rest.to_owned());
        let expected = (named < count).then(|| format!("{} more", count - named));
        assert_eq!(rest, expected, "{message}");
        assert!(named >= count.min(40), "{message}");
    }
}
