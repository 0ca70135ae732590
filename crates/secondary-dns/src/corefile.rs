//! The supported part of the upstream server's configuration (secondary-dns §7). The parser refuses everything else and
//! ignores nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::rr::Name;
use kube_kit::duration::GoDuration;
use kube_kit::serve::Bind;
use regex_lite::Regex;

/// Port of a block without a port.
const DNS: u16 = 53;
/// Default pattern of `auto`.
const USUAL_PATTERN: &str = r"db\.(.*)";
const USUAL_TEMPLATE: &str = "{1}";
const USUAL_SCAN: Duration = Duration::from_secs(60);
/// Default interval between reads of the Corefile, and maximum additional jitter.
const USUAL_RELOAD: Duration = Duration::from_secs(30);
const USUAL_JITTER: Duration = Duration::from_secs(15);
/// Minimum interval between two reads of the Corefile.
const SHORTEST_RELOAD: Duration = Duration::from_secs(2);
/// Default addresses of the HTTP servers.
const HEALTH: &str = ":8080";
const READY: &str = ":8181";
const PROMETHEUS: &str = "localhost:9153";

/// The error in a refused configuration.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("Corefile:{line}: {reason}")]
pub struct Invalid {
    line: usize,
    reason: String,
}

/// A configuration.
#[derive(Clone, Debug)]
pub struct Corefile {
    /// Blocks by the port that they listen on.
    pub ports: BTreeMap<u16, Vec<Block>>,
    /// Interval between reads, and maximum additional jitter; `None` for no reload.
    pub reload: Option<(Duration, Duration)>,
    /// Addresses of the liveness probe.
    pub health: Vec<Bind>,
    /// Addresses of the readiness probe.
    pub ready: Vec<Bind>,
    /// Addresses of the metrics.
    pub prometheus: Vec<Bind>,
}

/// Names, and the directories with their zones.
#[derive(Clone, Debug)]
pub struct Block {
    /// The block answers for these names and all names below them.
    pub below: Vec<Name>,
    /// Directories.
    pub directories: Vec<Directory>,
    /// Whether queries are logged.
    pub log: bool,
}

/// A directory of zone files.
#[derive(Clone, Debug)]
pub struct Directory {
    /// The directory.
    pub path: PathBuf,
    /// Pattern for the names of zone files.
    pub pattern: Regex,
    /// Name of the zone. Braces refer to the pattern's groups.
    pub template: String,
    /// Interval between scans; `None` for no scans.
    pub scan: Option<Duration>,
}

/// Two reads of the same configuration are equal.
impl PartialEq for Directory {
    fn eq(&self, other: &Self) -> bool {
        let all = |it: &Self| {
            (
                it.path.clone(),
                it.pattern.as_str().to_owned(),
                it.template.clone(),
                it.scan,
            )
        };
        all(self) == all(other)
    }
}

impl Directory {
    /// The zone of a file of this name, if it is a zone file.
    pub fn zone(&self, file: &str) -> Option<Name> {
        let groups = self.pattern.captures(file)?;
        let mut zone = self.template.clone();
        for (number, group) in groups.iter().enumerate() {
            let text = group.map_or("", |group| group.as_str());
            zone = zone.replace(&format!("{{{number}}}"), text);
        }
        let mut zone = Name::from_ascii(&zone).ok()?;
        zone.set_fqdn(true);
        Some(zone)
    }
}

/// The words of a line.
struct Line<'t> {
    number: usize,
    words: Vec<&'t str>,
}

impl Line<'_> {
    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T, Invalid> {
        Err(Invalid {
            line: self.number,
            reason: reason.into(),
        })
    }

    /// The only argument, if present.
    fn argument(&self) -> Result<Option<&str>, Invalid> {
        match self.words.get(1..).unwrap_or_default() {
            [] => Ok(None),
            [argument] => Ok(Some(argument)),
            [_, more, ..] => self.refuse(format!("unexpected argument {more:?} of '{}'", self.words[0])),
        }
    }

    fn duration(&self, text: &str) -> Result<Duration, Invalid> {
        match GoDuration::parse(text) {
            Ok(duration) if !duration.is_negative() => Ok(duration.length()),
            _ => self.refuse(format!("{text:?} is not a duration")),
        }
    }

    fn address(&self, usual: &str) -> Result<Bind, Invalid> {
        let text = self.argument()?.unwrap_or(usual);
        match text.parse() {
            Ok(Bind::Off) | Err(_) => self.refuse(format!("{text:?} is not an address such as :8080")),
            Ok(bind) => Ok(bind),
        }
    }

    fn unsupported<T>(&self) -> Result<T, Invalid> {
        self.refuse(format!("unsupported directive '{}'", self.words[0]))
    }
}

/// Reads a configuration.
///
/// # Errors
/// If a part of it is unknown or invalid.
pub fn read(text: &str) -> Result<Corefile, Invalid> {
    let lines = (1..).zip(text.lines()).map(|(number, line)| Line {
        number,
        words: words(line),
    });
    let lines: Vec<Line<'_>> = lines.filter(|line| !line.words.is_empty()).collect();
    let mut corefile = Corefile {
        ports: BTreeMap::new(),
        reload: None,
        health: Vec::new(),
        ready: Vec::new(),
        prometheus: Vec::new(),
    };
    let mut rest = lines.iter();
    while let Some(line) = rest.next() {
        let [keys @ .., "{"] = line.words.as_slice() else {
            return line.refuse("a server block such as `.:5353 {` is expected");
        };
        let ports = keys_of(line, keys)?;
        let (directories, log) = body(line, &mut rest, &mut corefile)?;
        for (port, below) in ports {
            let blocks = corefile.ports.entry(port).or_default();
            if let Some(twice) = below
                .iter()
                .find(|name| blocks.iter().any(|it| it.below.contains(name)))
            {
                return line.refuse(format!("{twice}:{port} is served twice"));
            }
            blocks.push(Block {
                below,
                directories: directories.clone(),
                log,
            });
        }
    }
    if corefile.ports.is_empty() {
        return Err(Invalid {
            line: 1,
            reason: "there is no server block".to_owned(),
        });
    }
    Ok(corefile)
}

/// Words of a line without its comment. Standalone braces are words of their own.
fn words(line: &str) -> Vec<&str> {
    let words = line.split_whitespace();
    let words = words.take_while(|word| !word.starts_with('#'));
    words.map(|word| word.trim_matches('"')).collect()
}

/// Names of a block, by port.
fn keys_of(line: &Line<'_>, keys: &[&str]) -> Result<BTreeMap<u16, Vec<Name>>, Invalid> {
    let mut ports: BTreeMap<u16, Vec<Name>> = BTreeMap::new();
    for key in keys
        .iter()
        .flat_map(|key| key.split(','))
        .filter(|key| !key.is_empty())
    {
        let bare = key.strip_prefix("dns://").unwrap_or(key);
        let (zone, port) = match bare.rsplit_once(':') {
            Some((zone, port)) => (zone, port.parse().ok()),
            None => (bare, Some(DNS)),
        };
        let zone = if zone.is_empty() { "." } else { zone };
        let name = Name::from_ascii(zone).ok().filter(|_| !zone.contains([':', '/']));
        let (Some(port), Some(mut name)) = (port, name) else {
            return line.refuse(format!("{key:?} is not ZONE:PORT"));
        };
        name.set_fqdn(true);
        ports.entry(port).or_default().push(name);
    }
    if ports.is_empty() {
        return line.refuse("a server block such as `.:5353 {` is expected");
    }
    Ok(ports)
}

/// Directives of a block, up to its end.
fn body<'l, 't: 'l>(
    block: &Line<'_>,
    rest: &mut impl Iterator<Item = &'l Line<'t>>,
    corefile: &mut Corefile,
) -> Result<(Vec<Directory>, bool), Invalid> {
    let (mut directories, mut log) = (Vec::new(), false);
    while let Some(line) = rest.next() {
        match line.words.as_slice() {
            ["}"] => return Ok((directories, log)),
            ["auto", "{"] => directories.push(auto(line, rest)?),
            ["auto"] => return line.refuse("'auto' has no directory"),
            ["reload", ..] => corefile.reload = reload(line)?,
            ["log"] | ["log", "."] => log = true,
            ["errors"] => {}
            ["health", ..] => corefile.health.push(line.address(HEALTH)?),
            ["ready", ..] => corefile.ready.push(line.address(READY)?),
            ["prometheus", ..] => corefile.prometheus.push(line.address(PROMETHEUS)?),
            ["log", more, ..] => return line.refuse(format!("unexpected argument {more:?} of 'log'")),
            _ => return line.unsupported(),
        }
    }
    block.refuse("the server block has no end")
}

fn auto<'l, 't: 'l>(
    block: &Line<'_>,
    rest: &mut impl Iterator<Item = &'l Line<'t>>,
) -> Result<Directory, Invalid> {
    let (mut directory, mut scan) = (None, Some(USUAL_SCAN));
    for line in rest {
        match line.words.as_slice() {
            ["}"] => {
                return match directory {
                    Some((path, pattern, template)) => Ok(Directory {
                        path,
                        pattern,
                        template,
                        scan,
                    }),
                    None => block.refuse("'auto' has no directory"),
                };
            }
            ["directory", path] => {
                directory = Some((
                    path.into(),
                    pattern(line, USUAL_PATTERN)?,
                    USUAL_TEMPLATE.to_owned(),
                ));
            }
            ["directory", path, expression, template] => {
                directory = Some((path.into(), pattern(line, expression)?, (*template).to_owned()));
            }
            ["directory", ..] => return line.refuse("'directory' takes DIR, or DIR REGEX TEMPLATE"),
            ["reload", pause] => {
                let pause = line.duration(pause)?;
                scan = (!pause.is_zero()).then_some(pause);
            }
            _ => return line.unsupported(),
        }
    }
    block.refuse("'auto' has no end")
}

fn pattern(line: &Line<'_>, text: &str) -> Result<Regex, Invalid> {
    match Regex::new(text) {
        Ok(pattern) if pattern.captures_len() > 1 => Ok(pattern),
        Ok(_) => line.refuse(format!("regular expression {text:?} has no group")),
        Err(error) => line.refuse(format!("{text:?} is not a regular expression: {error}")),
    }
}

fn reload(line: &Line<'_>) -> Result<Option<(Duration, Duration)>, Invalid> {
    let (interval, jitter) = match line.words.get(1..).unwrap_or_default() {
        [] => (USUAL_RELOAD, USUAL_JITTER),
        ["off"] => return Ok(None),
        [interval] => {
            let interval = line.duration(interval)?;
            (interval, interval / 2)
        }
        [interval, jitter] => (line.duration(interval)?, line.duration(jitter)?),
        [_, _, more, ..] => return line.refuse(format!("unexpected argument {more:?} of 'reload'")),
    };
    if interval < SHORTEST_RELOAD {
        return line.refuse(format!("'reload' takes {} s at least", SHORTEST_RELOAD.as_secs()));
    }
    Ok(Some((interval, jitter.min(interval / 2))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESTABLISHED: &str = "\
.:5353 {
    auto {
      directory /zones db\\.(.*) {1}
      reload 45s
    }
    reload
    log
    health :8082
    ready :8083
}
";

    #[track_caller]
    fn assert_refused(text: &str, expected: &str) {
        assert_eq!(read(text).expect_err(text).to_string(), expected);
    }

    #[test]
    fn upstream_configuration_is_read() {
        let corefile = read(ESTABLISHED).unwrap();
        assert_eq!(
            corefile.reload,
            Some((Duration::from_secs(30), Duration::from_secs(15)))
        );
        assert_eq!(corefile.health, [Bind::Everywhere(8082)]);
        assert_eq!(corefile.ready, [Bind::Everywhere(8083)]);
        assert!(corefile.prometheus.is_empty());
        let [block] = &corefile.ports[&5353][..] else {
            panic!("{corefile:?}")
        };
        assert!(block.log && block.below == [Name::root()]);
        let [directory] = &block.directories[..] else {
            panic!("{block:?}")
        };
        assert_eq!(directory.path, PathBuf::from("/zones"));
        assert_eq!(directory.scan, Some(Duration::from_secs(45)));
        let zone = |file| directory.zone(file).map(|zone| zone.to_ascii());
        assert_eq!(zone("db.vm.domain.com").as_deref(), Some("vm.domain.com."));
        assert_eq!(zone("db.vm.db.example").as_deref(), Some("vm.db.example."));
        assert_eq!((zone(".next-0"), zone("vm")), (None, None));
    }

    #[test]
    fn everything_else_that_is_understood() {
        let text = "\
# comment
vm.example.:5353, other.example:5353 {   # one block, two zones
  errors
  auto {
    directory /a
    reload 0
  }
  auto {
    directory \"/b\" zone-([a-z]+)-([a-z]+) {2}.{1}
  }
  prometheus
}
third.example {
  health
  ready
  reload 10s 5s
  prometheus :9153
}
";
        let corefile = read(text).unwrap();
        let [block] = &corefile.ports[&5353][..] else {
            panic!("{corefile:?}")
        };
        assert_eq!(block.below.len(), 2);
        assert_eq!(block.directories[0].scan, None);
        assert_eq!(block.directories[1].scan, Some(Duration::from_secs(60)));
        let zone = block.directories[1].zone("zone-a-b").unwrap();
        assert_eq!(zone.to_ascii(), "b.a.");
        assert_eq!(corefile.ports[&53].len(), 1);
        assert_eq!(
            corefile.reload,
            Some((Duration::from_secs(10), Duration::from_secs(5)))
        );
        assert_eq!(corefile.health, [Bind::Everywhere(8080)]);
        assert_eq!(corefile.ready, [Bind::Everywhere(8181)]);
        let local = Bind::At("localhost".to_owned(), 9153);
        assert_eq!(corefile.prometheus, [local, Bind::Everywhere(9153)]);
    }

    #[test]
    fn unknown_directives_are_refused() {
        for directive in [
            "cache 30",
            "loadbalance",
            "bind 10.0.0.1",
            "bufsize 1232",
            "file /x",
            "transfer {",
            "forward . 8.8.8.8",
            "kubernetes",
        ] {
            let name = directive.split(' ').next().unwrap_or_default();
            let expected = format!("Corefile:2: unsupported directive '{name}'");
            assert_refused(&format!(".:53 {{\n  {directive}\n}}\n"), &expected);
        }
        for (text, expected) in [
            ("", "Corefile:1: there is no server block"),
            (
                ".:53\n",
                "Corefile:1: a server block such as `.:5353 {` is expected",
            ),
            (
                "{\n}\n",
                "Corefile:1: a server block such as `.:5353 {` is expected",
            ),
            (".:x {\n}\n", "Corefile:1: \".:x\" is not ZONE:PORT"),
            ("tls://.:53 {\n}\n", "Corefile:1: \"tls://.:53\" is not ZONE:PORT"),
            (".:53 {\n", "Corefile:1: the server block has no end"),
            (".:53 {\n auto {\n", "Corefile:2: 'auto' has no end"),
            (".:53 {\n auto {\n }\n}\n", "Corefile:2: 'auto' has no directory"),
            (".:53 {\n auto\n}\n", "Corefile:2: 'auto' has no directory"),
            (
                ".:53 {\n auto {\n  directory /z db {1}\n }\n}\n",
                "Corefile:3: regular expression \"db\" has no group",
            ),
            (
                ".:53 {\n auto {\n  directory /z db\n }\n}\n",
                "Corefile:3: 'directory' takes DIR, or DIR REGEX TEMPLATE",
            ),
            (
                ".:53 {\n auto {\n  directory /z\n  upstream\n }\n}\n",
                "Corefile:4: unsupported directive 'upstream'",
            ),
            (
                ".:53 {\n reload 1s\n}\n",
                "Corefile:2: 'reload' takes 2 s at least",
            ),
            (
                ".:53 {\n reload soon\n}\n",
                "Corefile:2: \"soon\" is not a duration",
            ),
            (
                ".:53 {\n health 8080\n}\n",
                "Corefile:2: \"8080\" is not an address such as :8080",
            ),
            (
                ".:53 {\n ready :1 :2\n}\n",
                "Corefile:2: unexpected argument \":2\" of 'ready'",
            ),
            (
                ".:53 {\n log example.\n}\n",
                "Corefile:2: unexpected argument \"example.\" of 'log'",
            ),
            (".:53 {\n}\n.:53 {\n}\n", "Corefile:3: .:53 is served twice"),
        ] {
            assert_refused(text, expected);
        }
        assert!(read(".:53 {\n auto {\n  directory /z ( {1}\n }\n}\n").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(words in proptest::collection::vec(proptest::sample::select(
            vec![".:53", "{", "}", "\n", "auto", "directory", "/z", "reload", "log", "health", ":1", "#", "\"", "é", "(.)"]
        ), 0..30)) {
            let _ = read(&words.join(" "));
        }
    }
}
