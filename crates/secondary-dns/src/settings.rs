//! Flags and environment (secondary-dns §2, §3.1, §9).

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use ipnet::IpNet;
use program::zap;

use crate::model::Header;
use crate::names::{self, env};
use crate::vmi::{Policy, is_name};
use crate::zone::reverse::{self, TooShort};

/// Maximum TTL of records in seconds.
const LONGEST_TTL: u32 = 86_400;
/// Default TTL of records in seconds.
const USUAL_TTL: u32 = 3600;

/// Flags of the secondary DNS.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Mode; by default `serve` with --conf, else `monitor`
    #[arg(value_enum, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// Corefile of the server
    #[arg(long, value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// The same as the mode all-in-one
    #[arg(long)]
    pub all_in_one: bool,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Directory of zone files that the monitor writes
    #[arg(long, value_name = "DIR", default_value = names::ZONES)]
    pub zones: PathBuf,
    /// Directory of the mounted settings. A file takes precedence over the variable of its name, and changes take
    /// effect without a restart
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Format of log lines.
    #[command(flatten)]
    pub zap: zap::Flags,
}

/// The last part of `weft secondary-dns --help`.
const ENVIRONMENT: &str = "\
Environment of the monitor. Several values are separated by commas:
  DOMAIN                part of the zone's name after vm.
  NAME_SERVER_IP        addresses of the name server
  KSD_TTL               TTL of records in seconds
  KSD_IPV6              auto, or off: no AAAA records
  KSD_EARLY_ADDRESSES   addresses before the guest reports one: claims (those
                        of IPAMClaims), network-status (those of the pod)
  KSD_REVERSE_PREFIXES  prefixes whose addresses have PTR records
  KSD_ALLOWED_PREFIXES  prefixes whose addresses are published
  KSD_SERIAL            counter: serials begin at 0
  KSD_MODE              all-in-one: the same as the flag";

/// The parts that run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Mode {
    /// Watch virtual machine instances and write zone files
    Monitor,
    /// Serve the zone files of the directory that a Corefile names
    Serve,
    /// Both in one process
    AllInOne,
}

impl Args {
    /// The selected mode. `lookup` reads the environment.
    pub fn mode(&self, lookup: impl Fn(&str) -> Option<String>) -> Mode {
        if let Some(mode) = self.mode {
            return mode;
        }
        if self.conf.is_some() {
            return Mode::Serve;
        }
        let wanted = lookup(env::MODE);
        if self.all_in_one || wanted.as_deref() == Some("all-in-one") {
            return Mode::AllInOne;
        }
        Mode::Monitor
    }
}

/// Settings of a monitor.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The common part of all zones.
    pub header: Header,
    /// Rules for publishing addresses.
    pub policy: Policy,
    /// Whether serials start at 0, as in upstream.
    pub counter: bool,
    /// Sources of addresses until a guest reports some.
    pub early: Sources,
    /// The error in the addresses of the name server. The zone then has none.
    pub complaint: Option<InvalidNameServer>,
}

/// Sources of addresses until a guest reports some.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sources {
    /// Claims. They take precedence over pods.
    pub claims: bool,
    /// The network status of pods.
    pub network_status: bool,
}

impl Sources {
    fn read(text: &str) -> Result<Self, Invalid> {
        let mut sources = Self::default();
        for part in text.split(',').map(str::trim) {
            match part {
                "off" | "" => {}
                "claims" => sources.claims = true,
                "network-status" => sources.network_status = true,
                _ => {
                    return Err(Invalid::Choice {
                        variable: env::EARLY,
                        value: text.to_owned(),
                        expected: "off, claims, network-status",
                    });
                }
            }
        }
        Ok(sources)
    }
}

/// An invalid address of the name server.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("NAME_SERVER_IP {0:?} is not an IP address, and the zone has no NS record")]
pub struct InvalidNameServer(String);

/// An invalid variable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// The domain is no DNS name.
    #[error("DOMAIN {0:?} is not a DNS name")]
    Domain(String),
    /// The TTL is invalid.
    #[error("KSD_TTL {0:?} is not a number of seconds from 0 to {LONGEST_TTL}")]
    Ttl(String),
    /// The value is not one of the choices.
    #[error("{variable} {value:?} is not one of {expected}")]
    Choice {
        /// The variable.
        variable: &'static str,
        /// The value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A prefix is invalid.
    #[error("{variable}: {value:?} is not a prefix such as 10.0.0.0/8")]
    Prefix {
        /// The variable.
        variable: &'static str,
        /// The value.
        value: String,
    },
    /// A prefix is too short for a reverse zone.
    #[error("KSD_REVERSE_PREFIXES")]
    Reverse(#[from] TooShort),
}

impl Settings {
    /// Reads the environment through `lookup`.
    ///
    /// # Errors
    /// If a variable is invalid, except the name server's address: the zone is still useful without it.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Invalid> {
        let text = |name: &str| lookup(name).unwrap_or_default().trim().to_owned();
        let zone = zone(&text(env::DOMAIN))?;
        let (name_servers, complaint) = match addresses(&text(env::NAME_SERVER_IP)) {
            Ok(addresses) => (addresses, None),
            Err(complaint) => (Vec::new(), Some(complaint)),
        };
        let choice = |variable, values: [&str; 2], expected| {
            let value = text(variable);
            match values.iter().position(|it| *it == value) {
                Some(at) => Ok(at == 0),
                None if value.is_empty() => Ok(true),
                None => Err(Invalid::Choice {
                    variable,
                    value,
                    expected,
                }),
            }
        };
        let ipv6 = choice(env::IPV6, ["auto", "off"], "auto, off")?;
        let early = Sources::read(&text(env::EARLY))?;
        let counter = !choice(env::SERIAL, ["time", "counter"], "time, counter")?;
        Ok(Self {
            policy: Policy {
                ipv6,
                allowed: prefixes(env::ALLOWED, &text(env::ALLOWED))?,
                // Two more bytes: the length of the first label, and the root.
                zone_octets: zone.len() + 2,
            },
            header: Header {
                zone,
                name_servers,
                ttl: ttl(&text(env::TTL))?,
                reverse: reverse::zones(&prefixes(env::REVERSE, &text(env::REVERSE))?)?,
            },
            counter,
            early,
            complaint,
        })
    }
}

/// The zone of a domain.
///
/// # Errors
/// If the domain is no DNS name.
pub fn zone(domain: &str) -> Result<String, Invalid> {
    let bare = domain.strip_suffix('.').unwrap_or(domain);
    if domain.is_empty() {
        return Ok(names::ZONE.to_owned());
    }
    // The zone must leave room for names below it.
    let room = names::ZONE.len() + names::MAILBOX.len() + 3;
    if !is_name(bare, room) {
        return Err(Invalid::Domain(domain.to_owned()));
    }
    Ok(format!("{}.{bare}", names::ZONE))
}

fn addresses(text: &str) -> Result<Vec<IpAddr>, InvalidNameServer> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let address = |part: &str| part.trim().parse::<IpAddr>();
    let addresses: Result<Vec<_>, _> = text.split(',').map(address).collect();
    addresses.map_err(|_| InvalidNameServer(text.to_owned()))
}

fn ttl(text: &str) -> Result<u32, Invalid> {
    if text.is_empty() {
        return Ok(USUAL_TTL);
    }
    let seconds = text.parse().ok().filter(|seconds| *seconds <= LONGEST_TTL);
    seconds.ok_or_else(|| Invalid::Ttl(text.to_owned()))
}

fn prefixes(variable: &'static str, text: &str) -> Result<Vec<IpNet>, Invalid> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let prefix = |part: &str| {
        let prefix: Result<IpNet, _> = part.parse();
        prefix.map_err(|_| Invalid::Prefix {
            variable,
            value: part.to_owned(),
        })
    };
    parts.map(prefix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use clap::Parser;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let lookup = |name: &str| {
            let set = variables.iter().find(|(variable, _)| *variable == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(lookup).map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
        })
    }

    #[test]
    fn empty_variables_mean_defaults() {
        let settings = read(&[("DOMAIN", ""), ("NAME_SERVER_IP", "")]).unwrap();
        assert_eq!(settings.header.zone, "vm");
        assert_eq!((settings.header.ttl, settings.policy.ipv6), (3600, true));
        assert!(settings.header.name_servers.is_empty() && settings.header.reverse.is_empty());
        assert!(!settings.counter && settings.early == Sources::default() && settings.complaint.is_none());
    }

    #[test]
    fn domains() {
        let zone = |domain| read(&[("DOMAIN", domain)]).map(|settings| settings.header.zone);
        for domain in ["domain.com", "domain.com.", "domain.com\n"] {
            assert_eq!(zone(domain).as_deref(), Ok("vm.domain.com"), "{domain}");
        }
        assert_eq!(zone("123").as_deref(), Ok("vm.123"));
        let long = format!("{0}.{0}.{0}.{0}", "a".repeat(63));
        for domain in [
            "a..b",
            ".",
            "..",
            "a b",
            "a;b",
            "ä.example",
            &"a".repeat(64),
            &long,
        ] {
            let error = zone(domain).unwrap_err();
            assert_eq!(error, format!("DOMAIN {domain:?} is not a DNS name"));
        }
    }

    #[test]
    fn name_servers() {
        let servers = |text| read(&[("NAME_SERVER_IP", text)]).unwrap();
        let texts = |settings: &Settings| -> Vec<String> {
            settings
                .header
                .name_servers
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(texts(&servers("192.0.2.1")), ["192.0.2.1"]);
        assert_eq!(
            texts(&servers("192.0.2.1, 2001:db8::1")),
            ["192.0.2.1", "2001:db8::1"]
        );
        // secondary-dns#36
        for text in ["not-an-ip", "192.0.2.1,", "010.0.0.1", "192.0.2.1;192.0.2.2"] {
            let settings = servers(text);
            let complaint = settings.complaint.unwrap().to_string();
            assert_eq!(
                complaint,
                format!("NAME_SERVER_IP {text:?} is not an IP address, and the zone has no NS record")
            );
            let file = Model::new(settings.header, 0).render();
            assert!(!file.contains("IN NS") && file.ends_with(")\n"), "{file}");
        }
    }

    #[test]
    fn values_that_make_no_sense_name_their_variable() {
        for (variable, value, expected) in [
            (
                "KSD_TTL",
                "-1",
                "KSD_TTL \"-1\" is not a number of seconds from 0 to 86400",
            ),
            (
                "KSD_TTL",
                "86401",
                "KSD_TTL \"86401\" is not a number of seconds from 0 to 86400",
            ),
            ("KSD_IPV6", "on", "KSD_IPV6 \"on\" is not one of auto, off"),
            ("KSD_SERIAL", "0", "KSD_SERIAL \"0\" is not one of time, counter"),
            (
                "KSD_EARLY_ADDRESSES",
                "on",
                "KSD_EARLY_ADDRESSES \"on\" is not one of off, claims, network-status",
            ),
            (
                "KSD_ALLOWED_PREFIXES",
                "10.0.0.0/8,x",
                "KSD_ALLOWED_PREFIXES: \"x\" is not a prefix such as 10.0.0.0/8",
            ),
            (
                "KSD_REVERSE_PREFIXES",
                "0.0.0.0/0",
                "KSD_REVERSE_PREFIXES: prefix 0.0.0.0/0 is shorter than /8",
            ),
        ] {
            assert_eq!(read(&[(variable, value)]).map(drop), Err(expected.to_owned()));
        }
        let settings = read(&[
            ("KSD_TTL", "30"),
            ("KSD_IPV6", "off"),
            ("KSD_SERIAL", "counter"),
            ("KSD_ALLOWED_PREFIXES", "10.0.0.0/8, fd00::/8"),
            ("KSD_REVERSE_PREFIXES", "10.0.0.0/8"),
        ])
        .unwrap();
        assert_eq!(settings.header.ttl, 30);
        assert!(!settings.policy.ipv6 && settings.counter);
        assert_eq!(
            (settings.policy.allowed.len(), settings.header.reverse.len()),
            (2, 1)
        );
    }

    #[test]
    fn early_addresses_have_two_sources() {
        for (text, claims, network_status) in [
            ("off", false, false),
            ("claims", true, false),
            ("network-status", false, true),
            ("claims,network-status", true, true),
            ("network-status, claims", true, true),
        ] {
            let settings = read(&[("KSD_EARLY_ADDRESSES", text)]).unwrap();
            let expected = Sources {
                claims,
                network_status,
            };
            assert_eq!(settings.early, expected, "{text}");
        }
        let error = read(&[("KSD_EARLY_ADDRESSES", "claims,pods")]).map(drop);
        let expected = "KSD_EARLY_ADDRESSES \"claims,pods\" is not one of off, claims, network-status";
        assert_eq!(error, Err(expected.to_owned()));
    }

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn mode_has_several_spellings() {
        for (arguments, variable, expected) in [
            (&[][..], None, Mode::Monitor),
            (&["--zap-devel"], Some(""), Mode::Monitor),
            (&[], Some("all-in-one"), Mode::AllInOne),
            (&["--all-in-one"], None, Mode::AllInOne),
            (&["all-in-one"], None, Mode::AllInOne),
            (&["--conf", "/c"], None, Mode::Serve),
            (&["--conf=/c"], Some("all-in-one"), Mode::Serve),
            (&["serve", "--conf=/c"], None, Mode::Serve),
            (&["monitor"], Some("all-in-one"), Mode::Monitor),
        ] {
            let arguments = ["dns"].iter().chain(arguments);
            let args = Program::try_parse_from(arguments)
                .unwrap_or_else(|error| panic!("{error}"))
                .args;
            let mode = args.mode(|name| variable.filter(|_| name == "KSD_MODE").map(str::to_owned));
            assert_eq!(mode, expected);
        }
        assert!(Program::try_parse_from(["dns", "--verbose"]).is_err());
    }
}
