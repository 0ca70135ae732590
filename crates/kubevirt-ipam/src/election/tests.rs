use super::*;

fn record(holder: &str, version: u64) -> Record {
    Record {
        holder: holder.to_owned(),
        duration: DURATION,
        version: version.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_taken_when_it_is_not_renewed() {
    const NEARLY: Duration = DURATION.saturating_sub(RETRY);
    let seen = |holder: &str, version: u64| Some(record(holder, version));
    let mut me = Candidate::new("me");
    assert_eq!(me.observe(None, Instant::now()), Step::Create);
    assert_eq!(me.observe(seen("other", 1), Instant::now()), Step::Wait);
    tokio::time::advance(NEARLY).await;
    assert_eq!(me.observe(seen("other", 1), Instant::now()), Step::Wait);
    // The Lease was renewed: the wait starts again.
    assert_eq!(me.observe(seen("other", 2), Instant::now()), Step::Wait);
    tokio::time::advance(NEARLY).await;
    assert_eq!(me.observe(seen("other", 2), Instant::now()), Step::Wait);
    tokio::time::advance(RETRY).await;
    assert_eq!(me.observe(seen("other", 2), Instant::now()), Step::Take);
    assert_eq!(me.observe(seen("me", 3), Instant::now()), Step::Renew);
    assert_eq!(me.observe(seen("other", 4), Instant::now()), Step::Wait);
    assert_eq!(me.observe(seen("", 5), Instant::now()), Step::Take);
}

/// Two replicas and one Lease, in any order of their steps, with lost and delayed requests: the replicas never write at
/// the same time.
#[tokio::test(start_paused = true)]
async fn two_replicas_never_write_at_the_same_time() {
    // Ticks of a second. The answer to a request comes some ticks later, or never.
    let start = Instant::now();
    let at = |tick: u64| start + Duration::from_secs(tick);
    let mut seed = 1_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut changes = 0;
    for _ in 0..300 {
        let mut lease: Option<(String, u64)> = None;
        let mut replicas = ["a", "b"].map(|name| (name, Candidate::new(name), None::<Instant>, 0_u64));
        let mut last = None;
        for tick in 0..200_u64 {
            for (name, candidate, until, silent) in &mut replicas {
                if *silent > 0 {
                    *silent -= 1;
                    continue;
                }
                if random(20) == 0 {
                    // The replica is disconnected, or its host is paused.
                    *silent = random(30);
                    continue;
                }
                let now = at(tick);
                let seen = lease.as_ref().map(|(holder, version)| record(holder, *version));
                if candidate.observe(seen, now) == Step::Wait {
                    *until = None;
                    continue;
                }
                let version = lease.as_ref().map_or(1, |(_, version)| version + 1);
                lease = Some(((*name).to_owned(), version));
                candidate.observe(Some(record(name, version)), now);
                *until = Some(now + RENEW_DEADLINE);
            }
            let writers: Vec<_> = replicas
                .iter()
                .filter(|(_, _, until, _)| until.is_some_and(|until| at(tick) < until))
                .map(|(name, ..)| *name)
                .collect();
            assert!(writers.len() < 2, "tick {tick}");
            if let [writer] = writers[..]
                && last != Some(writer)
            {
                changes += 1;
                last = Some(writer);
            }
        }
    }
    assert!(changes > 300, "the lease changes hands: {changes}");
}
