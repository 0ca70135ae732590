//! Metrics (secondary-dns §14).

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use kube_kit::lock;
use kube_kit::metrics::{Process, Requests};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::answer::{Reply, SharedZones, Transport};
use crate::names::metric;

/// Histogram buckets in seconds for the duration of answers.
const TIMES: [f64; 9] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.01, 0.1,
];

/// Types with a label value of their own: a client must not create a time series for each type.
const TYPES: [(RecordType, &str); 10] = [
    (RecordType::A, "A"),
    (RecordType::AAAA, "AAAA"),
    (RecordType::SOA, "SOA"),
    (RecordType::NS, "NS"),
    (RecordType::PTR, "PTR"),
    (RecordType::CNAME, "CNAME"),
    (RecordType::TXT, "TXT"),
    (RecordType::MX, "MX"),
    (RecordType::SRV, "SRV"),
    (RecordType::ANY, "ANY"),
];

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Answer {
    r#type: &'static str,
    rcode: &'static str,
    proto: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Kind {
    r#type: &'static str,
}

/// The reason for a missing or shortened answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drop {
    /// The message is no query.
    NoQuery,
    /// The query triggered a defect of this program.
    Failed,
    /// The answer could not be sent.
    Unsent,
    /// The connection was closed in favour of another one.
    Connection,
    /// The query is missing in the log, because the log's reader is too slow.
    Log,
}

/// An event of the watch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A new or changed instance.
    Applied,
    /// A deleted instance.
    Deleted,
    /// A malformed instance.
    Invalid,
}

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    answers: Family<Answer, Counter>,
    times: Histogram,
    dropped: Family<Reason, Counter>,
    events: Family<Kind, Counter>,
    requests: Requests,
    zones: ZoneFigures,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            answers: Family::default(),
            times: Histogram::new(TIMES),
            dropped: Family::default(),
            events: Family::default(),
            requests: Requests::default(),
            zones: ZoneFigures::default(),
        };
        // Counters start at 0 instead of being absent.
        for drop in [
            Drop::NoQuery,
            Drop::Failed,
            Drop::Unsent,
            Drop::Connection,
            Drop::Log,
        ] {
            let _ = metrics.dropped.get_or_create(&drop.labels());
        }
        for event in [Event::Applied, Event::Deleted, Event::Invalid] {
            let _ = metrics.events.get_or_create(&event.labels());
        }
        metrics
    }
}

impl Drop {
    fn labels(self) -> Reason {
        let reason = match self {
            Self::NoQuery => "no_query",
            Self::Failed => "failed",
            Self::Unsent => "unsent",
            Self::Connection => "connection",
            Self::Log => "log",
        };
        Reason { reason }
    }
}

impl Event {
    fn labels(self) -> Kind {
        let kind = match self {
            Self::Applied => "applied",
            Self::Deleted => "deleted",
            Self::Invalid => "invalid",
        };
        Kind { r#type: kind }
    }
}

impl Metrics {
    /// Metrics of the requests to the API server.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Counts an answer.
    pub fn answered(&self, reply: &Reply, transport: Transport, took: Duration) {
        let asked = reply.question.as_ref().map(hickory_proto::op::Query::query_type);
        let named = TYPES.iter().find(|(kind, _)| Some(*kind) == asked);
        let answer = Answer {
            r#type: named.map_or("other", |(_, name)| name),
            rcode: code(reply.code),
            proto: protocol(transport),
        };
        self.answers.get_or_create(&answer).inc();
        self.times.observe(took.as_secs_f64());
    }

    /// Counts a drop.
    pub fn dropped(&self, drop: Drop) {
        self.dropped.get_or_create(&drop.labels()).inc();
    }

    /// Counts an event of the watch.
    pub fn event(&self, event: Event) {
        self.events.get_or_create(&event.labels()).inc();
    }

    /// From now on, the metrics of zones are those of these zones.
    pub fn describe(&self, zones: Vec<SharedZones>) {
        *lock(&self.zones.0) = zones;
    }

    /// All metrics, including those of zones.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register(
            metric::REQUESTS,
            "DNS queries answered, by type, response code and protocol",
            self.answers.clone(),
        );
        registry.register(
            metric::DURATION,
            "Time from a whole query to its answer",
            self.times.clone(),
        );
        registry.register(
            metric::DROPPED,
            "Messages without an answer, connections closed early, and lines missing in the query log",
            self.dropped.clone(),
        );
        registry.register(
            metric::EVENTS,
            "Events of the watch of virtual machine instances",
            self.events.clone(),
        );
        registry.register_collector(Box::new(self.zones.clone()));
        self.requests.register(&mut registry);
        Process.register(&mut registry);
        registry
    }
}

/// Name of a response code.
pub(crate) fn code(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::BADVERS => "BADVERS",
        _ => "other",
    }
}

/// Name of a protocol.
pub(crate) fn protocol(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "udp",
        Transport::Tcp => "tcp",
    }
}

/// Size and serial of each zone, computed at each scrape.
#[derive(Clone, Debug, Default)]
struct ZoneFigures(Arc<Mutex<Vec<SharedZones>>>);

impl Collector for ZoneFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut found = Vec::new();
        for zones in lock(&self.0).iter() {
            for zone in lock(zones).loaded() {
                let labels = [("zone", zone.origin().to_ascii())];
                found.push((labels, zone.records(), zone.soa().serial));
            }
        }
        let help = "Records of a zone, its SOA record apart";
        let mut records = encoder.encode_descriptor(metric::RECORDS, help, None, MetricType::Gauge)?;
        for (labels, count, _) in &found {
            records.encode_family(labels)?.encode_gauge(count)?;
        }
        let help = "Serial of a zone";
        let mut serials = encoder.encode_descriptor(metric::SERIAL, help, None, MetricType::Gauge)?;
        for (labels, _, serial) in &found {
            serials.encode_family(labels)?.encode_gauge(serial)?;
        }
        Ok(())
    }
}
