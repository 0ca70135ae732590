//! The config of `tuning`.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use cni::{Error, args::CniArgs, json, plugin::Call};
use linux::link::{InvalidMac, Mac};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::{
    attach::WireMac,
    config::read_config,
    messages::DUPLICATE_SYSCTLS,
    names::{TUNING_DATA, arg},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    sysctl: Sysctls,
    mac: String,
    promisc: Option<bool>,
    mtu: i64,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue_len: Option<u32>,
    data_dir: String,
    runtime_config: WireMac,
    args: WireArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireArgs {
    cni: WireCniArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireCniArgs {
    sysctl: Sysctls,
    mac: String,
    promisc: Option<bool>,
    mtu: Option<i64>,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue_len: Option<u32>,
}

/// The `sysctl` object. Detects duplicate keys.
#[derive(Debug, Default)]
struct Sysctls {
    values: BTreeMap<String, String>,
    duplicated: bool,
}

impl<'de> Deserialize<'de> for Sysctls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Sysctls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sysctls, A::Error> {
                let mut read = Sysctls::default();
                while let Some((key, value)) = map.next_entry::<String, Option<String>>()? {
                    read.duplicated |= read.values.insert(key, value.unwrap_or_default()).is_some();
                }
                Ok(read)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Changes of the link. `None` means unchanged.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) mac: Option<Mac>,
    pub(super) promisc: Option<bool>,
    /// Bytes.
    pub(super) mtu: Option<u32>,
    pub(super) allmulti: Option<bool>,
    /// Packets.
    pub(super) tx_queue_len: Option<u32>,
}

impl Settings {
    pub(super) fn is_empty(&self) -> bool {
        *self == Settings::default()
    }
}

/// A validated config.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// Sysctls by configured name, which may contain `IFNAME`.
    pub(super) sysctls: BTreeMap<String, String>,
    pub(super) settings: Settings,
    /// Directory of backups.
    pub(super) data_dir: PathBuf,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

impl Config {
    /// Reads and validates the config of an ADD or CHECK.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let ifname = &call.request.ifname;
        if ifname.contains('/') {
            return Err(Error::internal(format!(
                "Interface name ({ifname}) contains an invalid character /"
            )));
        }
        Config::new(read_config(call)?, &call.args()?)
    }

    fn new(wire: Wire, args: &CniArgs) -> Result<Self, Error> {
        if wire.sysctl.duplicated {
            return Err(Error::internal(DUPLICATE_SYSCTLS));
        }
        args.require_known(&[arg::MAC])?;
        let cni = wire.args.cni;
        let mut sysctls = wire.sysctl.values;
        sysctls.extend(cni.sysctl.values);
        let mac = [
            cni.mac.as_str(),
            &wire.runtime_config.mac,
            args.get(arg::MAC).unwrap_or_default(),
            &wire.mac,
        ];
        let mac = mac.into_iter().find(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|error: InvalidMac| {
                Error::internal(format!("invalid args {text} for MAC addr: {error}"))
            })
        });
        let mtu = cni.mtu.unwrap_or(wire.mtu);
        let mtu = u32::try_from(mtu).map_err(|_| Error::internal(format!("invalid MTU {mtu}")))?;
        let settings = Settings {
            mac: mac.transpose()?,
            promisc: cni.promisc.or(wire.promisc),
            mtu: Some(mtu).filter(|mtu| *mtu > 0),
            allmulti: cni.allmulti.or(wire.allmulti),
            tx_queue_len: cni.tx_queue_len.or(wire.tx_queue_len),
        };
        Ok(Config {
            sysctls,
            settings,
            data_dir: directory(&wire.data_dir),
        })
    }
}

/// The backup directory of a call. Works with an otherwise invalid config, for DEL.
pub(super) fn data_dir(call: &Call) -> PathBuf {
    directory(&call.config.object.text("dataDir").unwrap_or_default())
}

fn directory(given: &str) -> PathBuf {
    PathBuf::from(if given.is_empty() { TUNING_DATA } else { given })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str, args: &str) -> Result<Config, Error> {
        Config::new(json::from_str(config).unwrap(), &CniArgs::parse(args).unwrap())
    }

    #[test]
    fn empty_config_changes_nothing() {
        let config = read("{}", "").unwrap();
        assert!(config.settings.is_empty() && config.sysctls.is_empty());
        assert_eq!(config.data_dir, PathBuf::from("/run/cni/tuning"));
    }

    // cni-plugins#35
    #[test]
    fn args_override_the_config() {
        let plain = r#""mtu":1400,"promisc":true,"allmulti":true,"txQLen":50"#;
        let config = read(&format!("{{{plain}}}"), "").unwrap();
        let expected = Settings {
            mac: None,
            promisc: Some(true),
            mtu: Some(1400),
            allmulti: Some(true),
            tx_queue_len: Some(50),
        };
        assert_eq!(config.settings, expected);
        let args = r#""args":{"cni":{"mtu":1300,"promisc":false,"allmulti":false,"txQLen":60}}"#;
        let config = read(&format!("{{{plain},{args}}}"), "").unwrap();
        let expected = Settings {
            mac: None,
            promisc: Some(false),
            mtu: Some(1300),
            allmulti: Some(false),
            tx_queue_len: Some(60),
        };
        assert_eq!(config.settings, expected);
    }

    #[test]
    fn an_mtu_is_a_number_of_bytes() {
        assert_eq!(read(r#"{"mtu":0}"#, "").unwrap().settings.mtu, None);
        for mtu in ["-1", "4294967296"] {
            let error = read(&format!("{{\"mtu\":{mtu}}}"), "").unwrap_err();
            assert_eq!(error.msg, format!("invalid MTU {mtu}"));
        }
    }

    // cni-plugins#36
    #[test]
    fn the_mac_has_four_sources() {
        let mac = |config: &str, args: &str| read(config, args).unwrap().settings.mac.unwrap().to_string();
        let argument = "IgnoreUnknown=1;MAC=02:00:00:00:00:02";
        let own = r#""mac":"02:00:00:00:00:01""#;
        let runtime = r#""runtimeConfig":{"mac":"02:00:00:00:00:03"}"#;
        let args = r#""args":{"cni":{"mac":"02:00:00:00:00:04"}}"#;
        assert_eq!(mac(&format!("{{{own}}}"), ""), "02:00:00:00:00:01");
        assert_eq!(mac(&format!("{{{own}}}"), argument), "02:00:00:00:00:02");
        assert_eq!(
            mac(&format!("{{{own},{runtime}}}"), argument),
            "02:00:00:00:00:03"
        );
        assert_eq!(
            mac(&format!("{{{own},{runtime},{args}}}"), argument),
            "02:00:00:00:00:04"
        );
        let error = read(r#"{"mac":"zz"}"#, "").unwrap_err();
        assert_eq!(
            error.msg,
            "invalid args zz for MAC addr: address zz: invalid MAC address"
        );
    }

    // cni-plugins#38
    #[test]
    fn duplicate_sysctl_is_rejected_and_override_accepted() {
        let error = read(r#"{"sysctl":{"net.a":"1","net.a":"2"}}"#, "").unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (999, "duplicated sysctl keys are not allowed")
        );
        let config = read(
            r#"{"sysctl":{"net.a":"1","net.b":"1"},"args":{"cni":{"sysctl":{"net.a":"2"}}}}"#,
            "",
        )
        .unwrap();
        let expected = [("net.a", "2"), ("net.b", "1")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(config.sysctls, expected.into());
    }
}
