//! The config of `dhcp` with its DHCP options.

use std::path::PathBuf;

use cni::{Error, args::CniArgs, plugin::Call};
use serde::Deserialize;

use super::wire::{Allocation, Attachment, Provided};
use crate::{messages::NO_IPAM, names::DHCP_SOCKET};

/// Option names (RFC 2132, RFC 3004).
const NAMED: [(&str, u8); 6] = [
    ("dhcp-client-identifier", 61),
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("user-class", 77),
    ("vendor-class-identifier", 60),
];
/// Options requested by default: subnet mask, routers, name servers, domain, search domains.
const REQUESTED: [u8; 5] = [1, 3, 6, 15, 119];
/// Maximum length of an option value, in bytes.
const LONGEST: usize = 255;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wire {
    ipam: Option<WireIpam>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireIpam {
    daemon_socket_path: String,
    provide: Vec<WireProvide>,
    request: Vec<WireRequest>,
    priority: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireProvide {
    option: String,
    value: String,
    from_arg: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRequest {
    option: String,
    skip_default: bool,
}

/// The keys of `ipam`.
pub(crate) fn ipam_keys() -> &'static [&'static str] {
    cni::json::fields_of::<WireIpam>()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The daemon's socket. DEL and GC use nothing else of the config, which may be invalid.
pub(super) fn socket(call: &Call) -> PathBuf {
    let configured = call.config.read::<Wire>().ok().and_then(|wire| wire.ipam);
    match configured {
        Some(ipam) if !ipam.daemon_socket_path.is_empty() => ipam.daemon_socket_path.into(),
        _ => DHCP_SOCKET.into(),
    }
}

/// The options to send and to request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    provide: Vec<Provided>,
    request: Vec<u8>,
    priority: u32,
}

impl Config {
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let wire: Wire = call.config.read().map_err(cni::error::internal)?;
        let ipam = wire.ipam.ok_or_else(|| Error::internal(NO_IPAM))?;
        Self::of(ipam, &call.args()?)
    }

    fn of(ipam: WireIpam, args: &CniArgs) -> Result<Self, Error> {
        let mut request = Vec::new();
        if !ipam.request.iter().any(|item| item.skip_default) {
            request.extend(REQUESTED);
        }
        for item in ipam.request.iter().filter(|item| !item.option.is_empty()) {
            let code = code(&item.option)?;
            if !request.contains(&code) {
                request.push(code);
            }
        }
        let mut provide: Vec<Provided> = Vec::new();
        for item in ipam.provide {
            let option = provided(item, args)?;
            // The last value of an option wins.
            provide.retain(|earlier| earlier.code != option.code);
            provide.push(option);
        }
        Ok(Config {
            provide,
            request,
            priority: ipam.priority,
        })
    }

    pub(super) fn allocation(self, attachment: Attachment, netns: PathBuf) -> Allocation {
        Allocation {
            attachment,
            netns,
            provide: self.provide,
            request: self.request,
            priority: self.priority,
        }
    }
}

fn provided(item: WireProvide, args: &CniArgs) -> Result<Provided, Error> {
    let code = code(&item.option)?;
    let value = if item.from_arg.is_empty() {
        item.value
    } else {
        args.get(&item.from_arg).unwrap_or_default().to_owned()
    };
    if value.len() > LONGEST {
        return Err(Error::internal(format!(
            "value too long for option \"{}\": \"{value}\"",
            item.option
        )));
    }
    Ok(Provided { code, value })
}

/// Parses an option's name or number.
fn code(option: &str) -> Result<u8, Error> {
    if let Some((_, code)) = NAMED.iter().find(|(name, _)| *name == option) {
        return Ok(*code);
    }
    option
        .parse()
        .map_err(|error| Error::internal(format!("Can not parse option \"{option}\": {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ipam: &str, args: &str) -> Result<Config, String> {
        let ipam = cni::json::from_str(ipam).unwrap();
        Config::of(ipam, &CniArgs::parse(args).unwrap()).map_err(|error| error.msg)
    }

    #[test]
    fn options_are_given_by_name_or_number() {
        let config = read(
            r#"{"Provide":[{"option":"host-name","fromArg":"K8S_POD_NAME"},
                {"option":"77","value":"old"},{"option":"user-class","value":"new"}],
                "request":[{"option":"routers"},{"option":"121"}],"priority":7}"#,
            "K8S_POD_NAME=pod-1",
        )
        .unwrap();
        let option = |code, value: &str| Provided {
            code,
            value: value.to_owned(),
        };
        assert_eq!(config.provide, [option(12, "pod-1"), option(77, "new")]);
        assert_eq!(config.request, [1, 3, 6, 15, 119, 121]);
        assert_eq!(config.priority, 7);
    }

    #[test]
    fn skip_default_leaves_only_the_options_of_the_config() {
        let config = read(r#"{"request":[{"option":"1"},{"skipDefault":true}]}"#, "").unwrap();
        assert_eq!(config.request, [1]);
    }

    #[test]
    fn invalid_options_are_reported() {
        assert_eq!(
            read(r#"{"request":[{"option":"router"}]}"#, "").unwrap_err(),
            "Can not parse option \"router\": invalid digit found in string"
        );
        assert_eq!(
            read(r#"{"provide":[{"option":"256","value":"x"}]}"#, "").unwrap_err(),
            "Can not parse option \"256\": number too large to fit in target type"
        );
        let long = "x".repeat(256);
        let ipam = format!(r#"{{"provide":[{{"option":"12","value":"{long}"}}]}}"#);
        assert_eq!(
            read(&ipam, "").unwrap_err(),
            format!("value too long for option \"12\": \"{long}\"")
        );
    }
}
