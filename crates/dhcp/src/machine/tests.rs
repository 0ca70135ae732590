use super::*;
use crate::lease::Times;
use crate::lease::tests::ack;
use dhcproto::v4::DhcpOption;

const OFFER: Offer = Offer {
    address: Ipv4Addr::new(10, 1, 0, 7),
    server: Ipv4Addr::new(10, 1, 0, 1),
};

const TIMING: Timing = Timing {
    attempt: Duration::from_secs(10),
    resend_max: Duration::from_secs(62),
    total: Duration::from_secs(208),
};

fn seconds(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn lease() -> Lease {
    let mut lease = Lease::read(&ack([DhcpOption::SubnetMask([255, 255, 255, 0].into())])).unwrap();
    lease.times = Some(Times {
        renew: seconds(60),
        rebind: seconds(105),
        end: seconds(120),
    });
    lease
}

fn started() -> Machine {
    let (machine, action) = Machine::acquire(TIMING, || JITTER, seconds(0));
    assert_eq!(action, Action::Discover(None));
    machine
}

fn bound() -> Machine {
    let held = Held {
        lease: lease(),
        since: seconds(0),
    };
    Machine::adopt(held, TIMING, || JITTER, seconds(0))
}

/// Runs from timer to timer. Returns the times in seconds of all actions except resends of the last message.
fn silence(machine: &mut Machine) -> Vec<(u64, Action)> {
    let mut actions = Vec::new();
    while let Some(now) = machine.until() {
        let action = machine.step(Event::Timer, now);
        if action != Action::Again {
            actions.push((now.as_secs(), action));
        }
    }
    actions
}

#[test]
fn an_offer_is_taken_and_its_ack_kept() {
    let mut machine = started();
    let offer = Event::Reply(Reply::Offer(OFFER));
    // An unsolicited ACK is ignored.
    let ack = Event::Reply(Reply::Ack(Ok(lease())));
    assert_eq!(machine.step(ack.clone(), seconds(1)), Action::Wait);
    assert_eq!(machine.step(offer.clone(), seconds(1)), Action::Request(OFFER));
    assert_eq!(machine.step(offer, seconds(1)), Action::Wait);
    assert_eq!(machine.step(ack, seconds(2)), Action::Keep(lease()));
    assert_eq!(machine.until(), Some(seconds(62)));
}

#[test]
fn a_message_is_sent_again_within_an_attempt() {
    let mut machine = started();
    let mut again = Vec::new();
    while let Some(now) = machine.until() {
        if machine.step(Event::Timer, now) != Action::Again {
            break;
        }
        again.push(now.as_millis());
    }
    assert_eq!(again, [500, 1500, 3500, 7500]);
}

#[test]
fn silent_servers_end_the_search_after_fast_and_slow_retries() {
    // cni-plugins#45
    let mut machine = started();
    let actions = silence(&mut machine);
    let searches: Vec<u64> = actions
        .iter()
        .filter(|(_, action)| matches!(action, Action::Discover(_)))
        .map(|(at, _)| *at)
        .collect();
    // Attempts of 10 s, after pauses of 2 s four times, then of 4, 8, 16 and 32 s.
    assert_eq!(searches, [12, 24, 36, 48, 62, 80, 106, 148]);
    let (at, last) = actions.last().unwrap();
    assert_eq!(*last, Action::Fail(Failure::NoMoreTries));
    assert_eq!(Failure::NoMoreTries.to_string(), "no more tries");
    assert!(*at <= 208, "{at}");
}

#[test]
fn a_lease_without_mask_fails_at_once() {
    let mut machine = started();
    machine.step(Event::Reply(Reply::Offer(OFFER)), seconds(1));
    let action = machine.step(Event::Reply(Reply::Ack(Err(Unusable::NoMask))), seconds(1));
    assert_eq!(action, Action::Fail(Failure::Unusable(Unusable::NoMask)));
    assert_eq!(machine.until(), None);
}

#[test]
fn a_refused_request_is_an_attempt_that_failed() {
    let mut machine = started();
    machine.step(Event::Reply(Reply::Offer(OFFER)), seconds(1));
    assert_eq!(machine.step(Event::Reply(Reply::Nak), seconds(1)), Action::Pause);
    assert_eq!(machine.step(Event::Timer, seconds(3)), Action::Discover(None));
}

#[test]
fn a_lease_is_renewed_then_had_anew_then_over() {
    let mut machine = bound();
    let actions = silence(&mut machine);
    let wanted = Some(lease().address.addr());
    let firsts = [
        actions.iter().find(|(_, action)| *action == Action::Renew),
        actions
            .iter()
            .find(|(_, action)| *action == Action::Discover(wanted)),
        actions.last(),
    ];
    assert_eq!(
        firsts.map(Option::<&_>::cloned),
        [
            Some((60, Action::Renew)),
            Some((105, Action::Discover(wanted))),
            Some((120, Action::Expire))
        ]
    );
}

#[test]
fn an_answer_to_a_renewal_gives_the_lease_new_times() {
    let mut machine = bound();
    assert_eq!(machine.step(Event::Timer, seconds(60)), Action::Renew);
    let action = machine.step(Event::Reply(Reply::Ack(Ok(lease()))), seconds(61));
    assert_eq!(action, Action::Keep(lease()));
    assert_eq!(machine.until(), Some(seconds(121)));
}

#[test]
fn a_lease_of_seconds_is_renewed_before_it_ends() {
    for length in [0, 2, 5, 7, 10] {
        let options = [
            DhcpOption::SubnetMask([255, 255, 255, 0].into()),
            DhcpOption::AddressLeaseTime(length),
        ];
        let lease = Lease::read(&ack(options)).unwrap();
        let mut machine = started();
        machine.step(Event::Reply(Reply::Offer(OFFER)), seconds(0));
        machine.step(Event::Reply(Reply::Ack(Ok(lease))), seconds(0));
        let actions = silence(&mut machine);
        assert_eq!(actions.first(), Some(&(5, Action::Renew)), "{length}");
        assert_eq!(actions.last(), Some(&(10, Action::Expire)), "{length}");
    }
}

#[test]
fn a_refused_renewal_searches_at_once() {
    let mut machine = bound();
    machine.step(Event::Timer, seconds(60));
    let wanted = Some(lease().address.addr());
    assert_eq!(
        machine.step(Event::Reply(Reply::Nak), seconds(61)),
        Action::Discover(wanted)
    );
}

#[test]
fn lease_that_ended_while_no_daemon_ran_gets_one_attempt() {
    let held = Held {
        lease: lease(),
        since: seconds(0),
    };
    let mut machine = Machine::adopt(held, TIMING, || JITTER, seconds(500));
    let wanted = Some(lease().address.addr());
    assert_eq!(machine.step(Event::Timer, seconds(500)), Action::Discover(wanted));
    assert_eq!(silence(&mut machine).last(), Some(&(510, Action::Expire)));
}

#[test]
fn a_lease_for_ever_needs_no_timer() {
    let held = Held {
        lease: Lease {
            times: None,
            ..lease()
        },
        since: seconds(0),
    };
    assert_eq!(Machine::adopt(held, TIMING, || JITTER, seconds(9)).until(), None);
}
