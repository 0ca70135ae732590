//! `passthru`: succeeds without any change. The first plugin of multus' auxiliary chain (multus.md §5.7), which needs
//! an initial result.

use cni::plugin::{Call, Plugin};
use cni::result::CniResult;
use cni::{Error, Version};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Passthru;

impl Plugin for Passthru {
    fn name(&self) -> &'static str {
        "passthru"
    }

    fn versions(&self) -> &'static [Version] {
        Version::V0_3_0.and_later()
    }

    fn add(&self, _: &Call) -> Result<CniResult, Error> {
        Ok(CniResult::default())
    }

    fn del(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::plugin::dispatch;

    fn run(verb: &str, version: &str) -> cni::plugin::Outcome {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/nowhere"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        let variables = variables
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let config = format!(r#"{{"cniVersion":"{version}","name":"n","type":"passthru"}}"#);
        dispatch(&Passthru, &variables, || Ok(config.into_bytes()))
    }

    #[test]
    fn an_empty_result_at_the_configs_version() {
        for version in Passthru.versions() {
            let outcome = run("ADD", version.as_str());
            let printed: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert_eq!(printed["cniVersion"], version.as_str());
            assert_eq!(outcome.code, 0);
        }
        assert_eq!(run("DEL", "1.0.0").code, 0);
        assert_eq!(run("ADD", "0.2.0").code, 1);
    }
}
