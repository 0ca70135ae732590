//! The config of `bandwidth`.

use cni::{Error, json, note::Level, plugin::Call};
use linux::traffic::TokenBucket;
use serde::Deserialize;

use crate::{
    config::read_config,
    messages::{BANDWIDTH_BURST_ALONE, BANDWIDTH_LARGE_BURST, BANDWIDTH_RATE_ALONE, BANDWIDTH_SUBNETS},
};

/// Maximum queueing delay.
const LATENCY_MILLISECONDS: u128 = 25;
/// Obsolete keys of one upstream release.
const SUBNETS: [&str; 2] = ["shapedSubnets", "unshapedSubnets"];

/// Rates in bits per second and bursts in bits, in the config itself and in `runtimeConfig`.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    runtime_config: WireRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireRuntime {
    bandwidth: Option<Entry>,
}

/// A validated config.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// Limit for packets to the pod.
    pub(super) ingress: Option<TokenBucket>,
    /// Limit for packets from the pod.
    pub(super) egress: Option<TokenBucket>,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

/// Warns about obsolete keys.
pub(super) fn warn_of_subnets(call: &Call) {
    if call
        .config
        .object
        .iter()
        .any(|(key, _)| SUBNETS.iter().any(|subnets| json::folds_to(key, subnets)))
    {
        call.note(Level::Warn, BANDWIDTH_SUBNETS);
    }
}

impl Config {
    /// Reads and validates the config of an ADD or CHECK.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        Config::new(&read_config(call)?)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Config::default()
    }

    fn new(wire: &Wire) -> Result<Self, Error> {
        let own = Entry {
            ingress_rate: wire.ingress_rate,
            ingress_burst: wire.ingress_burst,
            egress_rate: wire.egress_rate,
            egress_burst: wire.egress_burst,
        };
        let values = [
            own.ingress_rate,
            own.ingress_burst,
            own.egress_rate,
            own.egress_burst,
        ];
        // One value in the config overrides all of `runtimeConfig`.
        let entry = if values.iter().any(Option::is_some) {
            own
        } else {
            wire.runtime_config.bandwidth.unwrap_or_default()
        };
        Ok(Config {
            ingress: bucket(entry.ingress_rate, entry.ingress_burst)?,
            egress: bucket(entry.egress_rate, entry.egress_burst)?,
        })
    }
}

/// Computes the token bucket for a rate and a burst, both in bits, with upstream's formula.
fn bucket(rate: Option<u64>, burst: Option<u64>) -> Result<Option<TokenBucket>, Error> {
    let (rate, burst) = (rate.unwrap_or_default(), burst.unwrap_or_default());
    let error = match (rate, burst) {
        (0, 0) => return Ok(None),
        (_, 0) => BANDWIDTH_RATE_ALONE.to_owned(),
        (0, _) => BANDWIDTH_BURST_ALONE.to_owned(),
        (1..8, _) => format!("invalid rate: {rate}"),
        (_, 1..8) => format!("invalid burst: {burst}"),
        (rate, burst) => match u32::try_from(burst / 8) {
            Ok(bytes) if bytes < u32::MAX => return Ok(Some(token_bucket(rate / 8, bytes))),
            _ => BANDWIDTH_LARGE_BURST.to_owned(),
        },
    };
    Err(Error::internal(error))
}

fn token_bucket(rate: u64, burst: u32) -> TokenBucket {
    let narrow = |value: u128| u32::try_from(value).unwrap_or(u32::MAX);
    let (wide_rate, wide_burst) = (u128::from(rate), u128::from(burst));
    let (ticks, microseconds) = TokenBucket::TICKS;
    let filling = u128::from(narrow(wide_burst * 1_000_000 / wide_rate));
    let buffer = narrow(filling * u128::from(ticks) / u128::from(microseconds));
    TokenBucket {
        rate,
        limit: narrow(wide_rate * LATENCY_MILLISECONDS / 1000 + wide_burst),
        buffer: buffer.min(TokenBucket::LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str) -> Result<Config, Error> {
        Config::new(&json::from_str(config).unwrap())
    }

    fn shown(bucket: Option<TokenBucket>) -> Option<(u64, u32, u32)> {
        bucket.map(|bucket| (bucket.rate, bucket.limit, bucket.buffer))
    }

    // cni-plugins#50
    #[test]
    fn rates_and_bursts_are_bits() {
        let config = read(r#"{"ingressRate":8000,"ingressBurst":16000}"#).unwrap();
        // Two thousand bytes of a thousand a second: two seconds, of 15.625 ticks a microsecond.
        assert_eq!(shown(config.ingress), Some((1000, 2025, 31_250_000)));
        assert_eq!(config.egress, None);
        let config = read(r#"{"egressRate":80000000000,"egressBurst":80000}"#).unwrap();
        assert_eq!(shown(config.egress), Some((10_000_000_000, 250_010_000, 15)));
        let slow = read(r#"{"ingressRate":8,"ingressBurst":34359738351}"#).unwrap();
        assert_eq!(shown(slow.ingress), Some((1, 4_294_967_293, 67_108_863)));
    }

    // cni-plugins#50
    #[test]
    fn the_config_wins_over_the_runtime_as_a_whole() {
        let runtime = r#""runtimeConfig":{"bandWidth":{"ingressRate":16,"ingressBurst":16,"egressRate":16,"egressBurst":16}}"#;
        let config = read(&format!("{{{runtime}}}")).unwrap();
        assert_eq!(config.ingress.unwrap().rate, 2);
        assert_eq!(config.egress.unwrap().rate, 2);
        let config = read(&format!(r#"{{"ingressrate":8,"ingressBurst":8,{runtime}}}"#)).unwrap();
        assert_eq!(config.ingress.unwrap().rate, 1);
        assert_eq!(config.egress, None);
        for nothing in [
            "{}",
            r#"{"ingressRate":0,"ingressBurst":0,"egressRate":0,"egressBurst":0}"#,
        ] {
            assert!(read(nothing).unwrap().is_empty());
        }
    }

    // cni-plugins#50
    #[test]
    fn rate_requires_a_valid_burst() {
        for (config, text) in [
            (r#"{"ingressRate":8}"#, "if rate is set, burst must also be set"),
            (r#"{"egressBurst":8}"#, "if burst is set, rate must also be set"),
            (
                r#"{"ingressRate":8,"ingressBurst":34359738360}"#,
                "burst cannot be more than 4GB",
            ),
            (r#"{"ingressRate":7,"ingressBurst":8}"#, "invalid rate: 7"),
            (r#"{"ingressRate":8,"ingressBurst":7}"#, "invalid burst: 7"),
        ] {
            let error = read(config).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (999, text), "{config}");
        }
    }
}
