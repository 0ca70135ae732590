//! The connections of a server, and the choice of the one that is closed for a new one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock;

/// Interval between log lines of a full server.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The connections of a server, up to a maximum number.
pub(super) struct Crowd {
    places: usize,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    next: u64,
    all: BTreeMap<u64, Arc<Member>>,
    logged: Option<Instant>,
}

/// A connection from its accept on.
pub(super) struct Member {
    peer: IpAddr,
    phase: Mutex<Phase>,
    end: Notify,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// The server waits for a request, or for the handshake.
    Idle {
        /// Time of the last answer.
        since: Instant,
    },
    /// The server waits for the rest of a request's head.
    Head {
        /// Time of its first byte.
        since: Instant,
    },
    /// The server reads and answers requests.
    Answering {
        /// Number of requests.
        requests: usize,
        /// Arrival of the first of them.
        since: Instant,
    },
}

impl Phase {
    fn since(self) -> Instant {
        match self {
            Self::Idle { since } | Self::Head { since } | Self::Answering { since, .. } => since,
        }
    }
}

impl Member {
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    pub(super) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    /// Records the first byte of a request.
    pub(super) fn begin(&self) {
        let mut phase = lock(&self.phase);
        if let Phase::Idle { .. } = *phase {
            *phase = Phase::Head {
                since: Instant::now(),
            };
        }
    }

    /// Records a request that is answered until the value is dropped.
    pub(super) fn answer(self: &Arc<Self>) -> Answer {
        let mut phase = lock(&self.phase);
        *phase = match *phase {
            Phase::Answering { requests, since } => Phase::Answering {
                requests: requests + 1,
                since,
            },
            Phase::Idle { .. } | Phase::Head { .. } => Phase::Answering {
                requests: 1,
                since: Instant::now(),
            },
        };
        Answer(Arc::clone(self))
    }

    /// Resolves when the connection has to close for another one.
    pub(super) async fn must_end(&self) {
        self.end.notified().await;
    }
}

/// A request that is being answered.
pub(super) struct Answer(Arc<Member>);

impl Drop for Answer {
    fn drop(&mut self) {
        let mut phase = lock(&self.0.phase);
        *phase = match *phase {
            Phase::Answering { requests, since } if requests > 1 => Phase::Answering {
                requests: requests - 1,
                since,
            },
            _ => Phase::Idle {
                since: Instant::now(),
            },
        };
    }
}

impl Crowd {
    pub(super) fn new(places: usize) -> Self {
        Self {
            places,
            members: Mutex::default(),
        }
    }

    /// Admits a connection. A full server closes another one for it ([`leaves`]), or refuses it with `None`.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let now = Instant::now();
        let mut members = lock(&self.members);
        if members.all.len() >= self.places {
            let leaves = leaves(&members.all, peer);
            if members
                .logged
                .is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL)
            {
                members.logged = Some(now);
                let ended = leaves
                    .and_then(|number| members.all.get(&number))
                    .map(|member| member.peer);
                tracing::warn!(
                    places = self.places,
                    newcomer = %peer,
                    ended = ended.map(tracing::field::display),
                    "maximum number of connections reached: one is closed for each new one"
                );
            }
            members.all.remove(&leaves?)?.end.notify_one();
        }
        let number = members.next;
        members.next += 1;
        let member = Arc::new(Member {
            peer,
            phase: Mutex::new(Phase::Idle { since: now }),
            end: Notify::new(),
        });
        members.all.insert(number, Arc::clone(&member));
        Some(Place {
            crowd: Arc::clone(self),
            number,
            member,
        })
    }
}

/// The connection that is closed for one of `newcomer`: of the client that has the most, the connection that has been
/// idle longest, else the one whose request started first. A client that has the most itself closes none that is being
/// answered.
fn leaves(members: &BTreeMap<u64, Arc<Member>>, newcomer: IpAddr) -> Option<u64> {
    let mut of = BTreeMap::<IpAddr, usize>::new();
    for member in members.values() {
        *of.entry(member.peer).or_default() += 1;
    }
    let most = of.values().copied().max()?;
    let own = of.get(&newcomer) == Some(&most);
    members
        .iter()
        .filter(|(_, member)| {
            if own {
                member.peer == newcomer
            } else {
                of.get(&member.peer) == Some(&most)
            }
        })
        .map(|(number, member)| (member.phase(), *number))
        .filter(|(phase, _)| !own || !matches!(phase, Phase::Answering { .. }))
        .min_by_key(|(phase, number)| (matches!(phase, Phase::Answering { .. }), phase.since(), *number))
        .map(|(_, number)| number)
}

/// The place of a connection, until it is dropped.
pub(super) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    member: Arc<Member>,
}

impl Place {
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.crowd.members).all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::net::Ipv4Addr;

    fn peer(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn crowd(places: usize) -> Arc<Crowd> {
        Arc::new(Crowd::new(places))
    }

    fn ends(place: &Place) -> bool {
        place.member().must_end().now_or_never().is_some()
    }

    async fn later() {
        tokio::time::advance(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn enter_closes_longest_idle_connection_of_largest_client() {
        let crowd = crowd(4);
        let quiet = crowd.enter(peer(1)).unwrap();
        let mut flood = Vec::new();
        for _ in 0..3 {
            later().await;
            flood.push(crowd.enter(peer(2)).unwrap());
        }
        let first = flood[0].member().answer();
        drop(first);
        let newcomer = crowd.enter(peer(3)).unwrap();
        assert_eq!(flood.iter().map(ends).collect::<Vec<_>>(), [false, true, false]);
        assert!(!ends(&quiet) && !ends(&newcomer));
    }

    #[tokio::test(start_paused = true)]
    async fn enter_closes_slow_request_of_largest_client_for_others() {
        let crowd = crowd(3);
        let mut flood = Vec::new();
        for _ in 0..3 {
            later().await;
            let place = crowd.enter(peer(1)).unwrap();
            let answer = place.member().answer();
            flood.push((place, answer));
        }
        assert!(
            crowd.enter(peer(1)).is_none(),
            "the largest client interrupts none of its own requests"
        );
        let other = crowd.enter(peer(2)).unwrap();
        let ended: Vec<_> = flood.iter().map(|(place, _)| ends(place)).collect();
        assert_eq!(ended, [true, false, false]);
        drop(flood);
        assert!(!ends(&other));
        assert_eq!(lock(&crowd.members).all.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn phase_follows_requests() {
        let crowd = crowd(1);
        let place = crowd.enter(peer(1)).unwrap();
        let member = place.member();
        let start = Instant::now();
        assert_eq!(member.phase(), Phase::Idle { since: start });
        later().await;
        let begun = Instant::now();
        member.begin();
        later().await;
        member.begin();
        assert_eq!(member.phase(), Phase::Head { since: begun });
        let (first, second) = (member.answer(), member.answer());
        let answering = |requests| Phase::Answering {
            requests,
            since: Instant::now(),
        };
        assert_eq!(member.phase(), answering(2));
        member.begin();
        drop(first);
        assert_eq!(member.phase(), answering(1));
        later().await;
        drop(second);
        assert_eq!(
            member.phase(),
            Phase::Idle {
                since: Instant::now()
            }
        );
    }
}
