//! The config of `host-local`: ranges, requested addresses, data directory (cni-plugins §6).

use std::{collections::HashSet, net::IpAddr, path::PathBuf};

use cni::{Error, Version, args::CniArgs, net::parse_cidr, plugin::Call, result::Route};
use serde::Deserialize;

use super::range::{Draft, RangeSet, WireRange, parse_ip};
use crate::{
    config::WireArgs,
    messages::{NO_IPAM, NO_RANGES},
    names::{HOST_LOCAL_DATA, arg},
};

/// Maximum number of ranges of all sets. Every range is compared with every other one, and nothing interrupts that.
const MAX_RANGES: usize = 1_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    ipam: Option<WireIpam>,
    runtime_config: WireRuntime,
    args: WireArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRuntime {
    ip_ranges: Vec<Vec<WireRange>>,
    ips: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireIpam {
    range_start: String,
    range_end: String,
    subnet: Option<String>,
    gateway: String,
    ranges: Vec<Vec<WireRange>>,
    routes: Vec<Route>,
    data_dir: String,
    resolv_conf: String,
}

/// A validated config.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// The range sets. Each provides one address.
    pub(super) sets: Vec<RangeSet>,
    /// The distinct requested addresses.
    pub(super) requested: Vec<IpAddr>,
    pub(super) routes: Vec<Route>,
    /// Parent of the lease directories of all networks.
    pub(super) data_dir: PathBuf,
    /// A file with the DNS settings for the result.
    pub(super) resolv_conf: Option<PathBuf>,
}

/// The keys of `ipam`.
pub(super) fn ipam_keys() -> &'static [&'static str] {
    cni::json::fields_of::<WireIpam>()
}

impl Config {
    /// Parses and validates the config of a call.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let wire: Wire = call.config.read().map_err(cni::error::internal)?;
        Self::new(wire, &call.args()?, call.version)
    }

    fn new(wire: Wire, args: &CniArgs, version: Version) -> Result<Self, Error> {
        let ipam = wire.ipam.ok_or_else(|| Error::internal(NO_IPAM))?;
        let single = WireRange::new(ipam.range_start, ipam.range_end, ipam.subnet, ipam.gateway);
        let single = single.read().map_err(Error::internal)?;
        let runtime = drafts(&wire.runtime_config.ip_ranges)?;
        let listed = drafts(&ipam.ranges)?;

        args.require_known(&[arg::IP])?;
        let mut requested = Vec::new();
        if let Some(text) = args.get(arg::IP).filter(|text| !text.is_empty()) {
            let ip = requested_ip(text).map_err(|error| {
                Error::internal(format!(
                    "ARGS: error parsing value of pair \"{}={text}\": {error}",
                    arg::IP
                ))
            })?;
            requested.push(ip);
        }
        let mut known: HashSet<IpAddr> = requested.iter().copied().collect();
        for text in wire.args.cni.ips.iter().chain(&wire.runtime_config.ips) {
            let ip = requested_ip(text).map_err(Error::internal)?;
            if known.insert(ip) {
                requested.push(ip);
            }
        }

        let single = single.has_subnet().then(|| vec![single]);
        let drafts: Vec<Vec<Draft>> = runtime.into_iter().chain(single).chain(listed).collect();
        Ok(Config {
            sets: range_sets(&drafts, version)?,
            requested,
            routes: ipam.routes,
            data_dir: directory(&ipam.data_dir),
            resolv_conf: Some(ipam.resolv_conf)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
        })
    }
}

fn drafts(sets: &[Vec<WireRange>]) -> Result<Vec<Vec<Draft>>, Error> {
    let set = |set: &Vec<WireRange>| set.iter().map(WireRange::read).collect::<Result<_, _>>();
    sets.iter()
        .map(set)
        .collect::<Result<_, _>>()
        .map_err(Error::internal)
}

/// Parses a requested address. Ignores a prefix length, which the subnet defines.
fn requested_ip(text: &str) -> Result<IpAddr, String> {
    let ip = if text.contains('/') {
        parse_cidr(text).map(|net| net.addr().to_canonical())
    } else {
        parse_ip(text)
    };
    ip.ok_or_else(|| format!("invalid IP address {text}"))
}

/// Validates each set, and that the sets do not overlap.
fn range_sets(drafts: &[Vec<Draft>], version: Version) -> Result<Vec<RangeSet>, Error> {
    if drafts.is_empty() {
        return Err(Error::internal(NO_RANGES));
    }
    let count: usize = drafts.iter().map(Vec::len).sum();
    if count > MAX_RANGES {
        return Err(Error::internal(format!(
            "too many IP ranges: {count}, at most {MAX_RANGES}"
        )));
    }
    let mut sets = Vec::new();
    for (index, drafts) in drafts.iter().enumerate() {
        let set = RangeSet::new(drafts)
            .map_err(|error| Error::internal(format!("invalid range set {index}: {error}")))?;
        sets.push(set);
    }
    let v4 = sets.iter().filter(|set| set.is_ipv4()).count();
    if version < Version::V0_3_0 && (v4 > 1 || sets.len() - v4 > 1) {
        return Err(Error::internal(format!(
            "CNI version {version} does not support more than 1 address per family"
        )));
    }
    for (index, one) in sets.iter().enumerate() {
        let others = sets.iter().enumerate().skip(index + 1);
        if let Some((other, _)) = others.into_iter().find(|(_, other)| one.overlaps(other)) {
            return Err(Error::internal(format!(
                "range set {index} overlaps with {other}"
            )));
        }
    }
    Ok(sets)
}

/// The data directory. Works with an otherwise invalid config, because DEL must succeed also with a config that made
/// ADD fail.
pub(super) fn data_dir(call: &Call) -> PathBuf {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Lenient {
        ipam: Option<LenientIpam>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct LenientIpam {
        data_dir: String,
    }
    let given: Lenient = call.config.read().unwrap_or_default();
    directory(&given.ipam.unwrap_or_default().data_dir)
}

fn directory(given: &str) -> PathBuf {
    PathBuf::from(if given.is_empty() { HOST_LOCAL_DATA } else { given })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn read(config: &str, args: &str, version: Version) -> Result<Config, Error> {
        Config::new(
            cni::json::from_str(config).unwrap(),
            &CniArgs::parse(args).unwrap(),
            version,
        )
    }

    fn sets(config: &str) -> Vec<String> {
        let config = read(config, "", Version::V1_0_0).unwrap();
        config.sets.iter().map(ToString::to_string).collect()
    }

    fn message(config: &str, args: &str) -> String {
        let error = read(config, args, Version::V1_0_0).unwrap_err();
        assert_eq!(error.code, 999);
        error.msg
    }

    #[test]
    fn ranges_come_from_the_runtime_the_old_keys_and_the_list() {
        let config = r#"{
            "ipam": {
                "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "RANGEEND": "10.1.0.20",
                "ranges": [[{"subnet": "10.2.0.0/24"}, {"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]
            },
            "runtimeConfig": {"ipRanges": [[{"Subnet": "10.9.0.0/24", "gateway": "10.9.0.254"}]]}
        }"#;
        assert_eq!(
            sets(config),
            [
                "10.9.0.1-10.9.0.254",
                "10.1.0.10-10.1.0.20",
                "10.2.0.1-10.2.0.254,10.3.0.1-10.3.0.254",
                "fd00::1-fd00::ffff:ffff:ffff:ffff"
            ]
        );
        // The old keys need a subnet.
        assert_eq!(
            sets(r#"{"ipam": {"gateway": "10.1.0.1", "ranges": [[{"subnet": "10.2.0.0/24"}]]}}"#),
            ["10.2.0.1-10.2.0.254"]
        );
    }

    #[test]
    fn remaining_keys_have_defaults() {
        let config = read(r#"{"ipam": {"subnet": "10.1.0.0/24"}}"#, "", Version::V1_0_0).unwrap();
        assert_eq!(config.data_dir, PathBuf::from("/var/lib/cni/networks"));
        assert_eq!(
            (config.resolv_conf, config.requested, config.routes),
            (None, Vec::new(), Vec::new())
        );
        let config = read(
            r#"{"ipam": {"subnet": "10.1.0.0/24", "dataDir": "/x", "resolvConf": "/y", "routes": [{"dst": "0.0.0.0/0"}]}}"#,
            "",
            Version::V1_0_0,
        )
        .unwrap();
        assert_eq!(config.data_dir, PathBuf::from("/x"));
        assert_eq!(config.resolv_conf, Some(PathBuf::from("/y")));
        assert_eq!(config.routes.len(), 1);
    }

    // cni-plugins#41
    #[test]
    fn addresses_are_requested_in_three_ways() {
        let config = r#"{"ipam": {"subnet": "10.1.0.0/24"},
            "args": {"cni": {"ips": ["10.1.0.6/24", "fd00::6", "10.1.0.6"]}},
            "runtimeConfig": {"ips": ["10.1.0.7", "10.1.0.5/16", "::ffff:10.1.0.8"]}}"#;
        let requested = |args| {
            let config = read(config, args, Version::V1_0_0).unwrap();
            config
                .requested
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let rest = ["10.1.0.6", "fd00::6", "10.1.0.7", "10.1.0.5", "10.1.0.8"];
        assert_eq!(requested(""), rest);
        assert_eq!(requested("IgnoreUnknown=1;K8S_POD_NAME=x;IP="), rest);
        assert_eq!(
            requested("IP=10.1.0.5/24"),
            ["10.1.0.5", "10.1.0.6", "fd00::6", "10.1.0.7", "10.1.0.8"]
        );
    }

    #[test]
    fn malformed_requests_are_reported() {
        let plain = r#"{"ipam": {"subnet": "10.1.0.0/24"}}"#;
        assert_eq!(
            message(plain, "IP=x"),
            "ARGS: error parsing value of pair \"IP=x\": invalid IP address x"
        );
        assert_eq!(message(plain, "X=1"), "ARGS: unknown args [\"X=1\"]");
        for source in [
            r#""args": {"cni": {"ips": ["10.1.0.300"]}}"#,
            r#""runtimeConfig": {"ips": ["10.1.0.300"]}"#,
        ] {
            let config = format!("{{\"ipam\": {{\"subnet\": \"10.1.0.0/24\"}}, {source}}}");
            assert_eq!(message(&config, ""), "invalid IP address 10.1.0.300");
        }
    }

    // cni-plugins#42
    #[test]
    fn configs_are_checked_in_order() {
        let cases = [
            ("{}", "IPAM config missing 'ipam' key"),
            (r#"{"ipam": {}}"#, "no IP ranges specified"),
            (
                r#"{"ipam": {"rangeStart": "10.0.0.1"}}"#,
                "no IP ranges specified",
            ),
            (
                r#"{"ipam": {"subnet": "10.0.0.0", "ranges": [[]]}}"#,
                "invalid CIDR address: 10.0.0.0",
            ),
            (
                r#"{"ipam": {"gateway": "10.0.0", "ranges": [[]]}}"#,
                "invalid IP address: 10.0.0",
            ),
            (
                r#"{"ipam": {"subnet": "10.0.0.0/24", "ranges": [[]]}}"#,
                "invalid range set 1: empty range set",
            ),
            (
                r#"{"ipam": {"subnet": "10.0.0.0/31"}}"#,
                "invalid range set 0: Network 10.0.0.0/31 too small to allocate from",
            ),
            (
                r#"{"ipam": {"subnet": "10.0.0.1/24"}}"#,
                "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0",
            ),
            (
                r#"{"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}}"#,
                "invalid range set 0: mixed address families",
            ),
            (
                r#"{"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/16"}]]}}"#,
                "invalid range set 0: subnets 10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.255.254 overlap",
            ),
            (
                r#"{"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}], [{"subnet": "10.0.0.0/16"}]]}}"#,
                "range set 0 overlaps with 2",
            ),
        ];
        for (config, text) in cases {
            assert_eq!(message(config, ""), text, "{config}");
        }
    }

    #[test]
    fn ranges_of_all_sets_are_limited() {
        let ranges = |numbers: std::ops::Range<usize>| {
            numbers
                .map(|n| format!(r#"{{"subnet": "10.{}.{}.0/24"}}"#, n / 256, n % 256))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let half = MAX_RANGES / 2;
        let config = |count| {
            let (one, other) = (ranges(0..half), ranges(half..count));
            format!(r#"{{"ipam": {{"ranges": [[{one}], [{other}]]}}}}"#)
        };
        assert_eq!(sets(&config(MAX_RANGES)).len(), 2);
        assert_eq!(
            message(&config(MAX_RANGES + 1), ""),
            "too many IP ranges: 1001, at most 1000"
        );
    }

    // cni-plugins#42
    #[test]
    fn old_versions_take_one_set_of_a_family() {
        let two = r#"{"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/24"}]]}}"#;
        assert_eq!(
            read(two, "", Version::V0_2_0).unwrap_err().msg,
            "CNI version 0.2.0 does not support more than 1 address per family"
        );
        assert_eq!(
            read(two, "", Version::V0_3_0).unwrap_err().msg,
            "range set 0 overlaps with 1"
        );
        let mixed = r#"{"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}}"#;
        assert_eq!(read(mixed, "", Version::V0_2_0).unwrap().sets.len(), 2);
    }

    #[test]
    fn many_requested_addresses_are_distinct_in_little_time() {
        // cni-plugins#90
        let ips: Vec<String> = (0..50_000u32)
            .map(|number| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string())
            .collect();
        let config = serde_json::json!({
            "ipam": { "subnet": "10.0.0.0/8" },
            "runtimeConfig": { "ips": ips }, "args": { "cni": { "ips": ips } }
        });
        let started = Instant::now();
        let config = read(&config.to_string(), "", Version::V1_0_0).unwrap();
        assert_eq!(config.requested.len(), 50_000);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
