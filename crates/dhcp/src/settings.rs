//! Flags, validated.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube_kit::duration::{self, GoDuration};
use thiserror::Error;

use crate::Args;
use crate::machine::Timing;
use crate::names;

/// An invalid flag.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum InvalidSettings {
    /// The text is upstream's.
    #[error("Error writing pidfile \"{}\": path not absolute", .0.display())]
    PidFile(PathBuf),
    #[error("invalid value of -{0}: {1}")]
    Duration(&'static str, duration::Error),
    #[error("invalid value of -{0}: it must be longer than 0")]
    Zero(&'static str),
}

/// Settings of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) host_prefix: PathBuf,
    /// Path of the socket in this process's file system.
    pub(crate) socket: PathBuf,
    /// Whether requests set the broadcast flag.
    pub(crate) broadcast: bool,
    pub(crate) timing: Timing,
}

impl Settings {
    /// Path of a host's file in this process's file system.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        self.host_prefix.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Directory of the leases.
    pub(crate) fn leases(&self) -> PathBuf {
        self.on_host(Path::new(names::LEASES))
    }
}

impl TryFrom<Args> for Settings {
    type Error = InvalidSettings;

    fn try_from(args: Args) -> Result<Self, InvalidSettings> {
        let Args {
            pidfile,
            hostprefix,
            socketpath,
            broadcast,
            timeout,
            resendmax,
            resendtimeout,
            check: _,
        } = args;
        if let Some(path) = pidfile.as_ref().filter(|path| !path.is_absolute()) {
            return Err(InvalidSettings::PidFile(path.clone()));
        }
        let mut settings = Self {
            pid_file: pidfile,
            host_prefix: hostprefix.unwrap_or_else(|| PathBuf::from("/")),
            socket: PathBuf::new(),
            broadcast,
            timing: Timing {
                attempt: parse("timeout", &timeout)?,
                resend_max: parse("resendmax", &resendmax)?,
                total: parse("resendtimeout", &resendtimeout)?,
            },
        };
        settings.socket = settings.on_host(&socketpath);
        Ok(settings)
    }
}

fn parse(flag: &'static str, text: &str) -> Result<Duration, InvalidSettings> {
    let parsed = GoDuration::parse(text).map_err(|error| InvalidSettings::Duration(flag, error))?;
    if !parsed.is_positive() {
        return Err(InvalidSettings::Zero(flag));
    }
    Ok(parsed.length())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, InvalidSettings> {
        let argv = ["dhcp-daemon"].iter().chain(flags);
        Settings::try_from(Command::try_parse_from(argv).unwrap().args)
    }

    #[test]
    fn lease_defaults_are_those_of_upstream() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.socket, Path::new("/run/cni/dhcp.sock"));
        assert_eq!(settings.leases(), Path::new("/run/cni/weft/dhcp"));
        assert!(!settings.broadcast);
        let Timing {
            attempt,
            resend_max,
            total,
        } = settings.timing;
        assert_eq!(
            [attempt, resend_max, total].map(|time| time.as_secs()),
            [10, 62, 208]
        );
    }

    #[test]
    fn paths_of_the_host_get_the_prefix() {
        let settings = settings(&["--hostprefix", "/host", "--broadcast", "--timeout=1m2s"]).unwrap();
        assert_eq!(settings.socket, Path::new("/host/run/cni/dhcp.sock"));
        assert_eq!(
            settings.on_host(Path::new("/run/netns/a")),
            Path::new("/host/run/netns/a")
        );
        assert!(settings.broadcast);
        assert_eq!(settings.timing.attempt, Duration::from_secs(62));
    }

    #[test]
    fn bad_flags_are_named() {
        let text = |flags: &[&str]| settings(flags).unwrap_err().to_string();
        assert_eq!(
            text(&["--pidfile", "run/pid"]),
            "Error writing pidfile \"run/pid\": path not absolute"
        );
        assert_eq!(
            text(&["--resendmax", "9"]),
            "invalid value of -resendmax: time: missing unit in duration \"9\""
        );
        assert_eq!(
            text(&["--timeout", "0"]),
            "invalid value of -timeout: it must be longer than 0"
        );
    }
}
