//! Masquerading by the programs of iptables, where a config asks for it or the kernel has no nftables for it; and the
//! end of what they and established plugins made, by netlink where the kernel's nftables hold it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ipnet::IpNet;
use linux::nft::{Expression, Family, Socket, Table, Transaction, Verdict};

use super::Attachment;
use crate::{
    hash::hashed,
    names::masquerade::{
        IPTABLES_CHAIN_PREFIX, IPTABLES_POSTROUTING, IPTABLES_TABLE, MULTICAST_IPV4, MULTICAST_IPV6,
        PROGRAM_DIRECTORIES,
    },
    ruleset::Ruleset,
};

/// How long the programs wait for whoever else changes rules, seconds.
const WAIT: &str = "--wait=30";
/// Longest name of a chain.
const CHAIN_LENGTH: usize = 28;

/// Why a program did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0} not found in {dirs}", dirs = PROGRAM_DIRECTORIES.join(":"))]
    NoProgram(&'static str),
    #[error("cannot run {program}: {cause}")]
    NotRun {
        program: &'static str,
        cause: std::io::Error,
    },
    #[error("{program} {arguments}: {words}")]
    Failed {
        program: &'static str,
        arguments: String,
        words: String,
    },
    #[error(transparent)]
    Kernel(#[from] linux::Error),
}

type Result<T> = std::result::Result<T, Error>;

/// One of the two worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl Version {
    const ALL: [Version; 2] = [Version::V4, Version::V6];

    fn of(address: &IpNet) -> Self {
        match address {
            IpNet::V4(_) => Version::V4,
            IpNet::V6(_) => Version::V6,
        }
    }

    fn program(self) -> &'static str {
        match self {
            Version::V4 => "iptables",
            Version::V6 => "ip6tables",
        }
    }

    /// The older variant, by its own name and by the one it has where there is no other.
    fn legacy_programs(self) -> [(&'static str, &'static str); 2] {
        match self {
            Version::V4 => [
                ("iptables-legacy", "iptables-legacy-restore"),
                ("iptables", "iptables-restore"),
            ],
            Version::V6 => [
                ("ip6tables-legacy", "ip6tables-legacy-restore"),
                ("ip6tables", "ip6tables-restore"),
            ],
        }
    }

    /// The tables that the older variant has in this network namespace.
    fn legacy_tables(self) -> &'static Path {
        Path::new(match self {
            Version::V4 => "/proc/thread-self/net/ip_tables_names",
            Version::V6 => "/proc/thread-self/net/ip6_tables_names",
        })
    }

    fn multicast(self) -> IpNet {
        match self {
            Version::V4 => MULTICAST_IPV4,
            Version::V6 => MULTICAST_IPV6,
        }
    }

    /// Where the newer variant keeps its rules.
    fn table(self) -> Table {
        Table {
            family: match self {
                Version::V4 => Family::Ipv4,
                Version::V6 => Family::Ipv6,
            },
            name: IPTABLES_TABLE,
        }
    }
}

fn chain(attachment: Attachment<'_>) -> String {
    let instance = format!("{}{}", attachment.network, attachment.container_id);
    hashed(CHAIN_LENGTH, IPTABLES_CHAIN_PREFIX, &instance)
}

fn comment(attachment: Attachment<'_>) -> String {
    format!(
        "name: \"{}\" id: \"{}\"",
        attachment.network, attachment.container_id
    )
}

/// A rule: the chain that it is in, and the rest.
type Rule = (String, Vec<String>);

/// The rules for an address, in their order (cni-plugins §2.8).
fn rules(attachment: Attachment<'_>, address: &IpNet) -> [Rule; 3] {
    let chain = chain(attachment);
    let comment = comment(attachment);
    let rule = |of: &str, matches: &[&str], target: &str| {
        let words = matches
            .iter()
            .copied()
            .chain(["-j", target, "-m", "comment", "--comment", &comment]);
        (of.to_owned(), words.map(str::to_owned).collect())
    };
    let multicast = Version::of(address).multicast().to_string();
    [
        rule(&chain, &["-d", &address.to_string()], "ACCEPT"),
        rule(&chain, &["!", "-d", &multicast], "MASQUERADE"),
        rule(IPTABLES_POSTROUTING, &["-s", &address.addr().to_string()], &chain),
    ]
}

pub(super) fn set_up(ruleset: &Ruleset, attachment: Attachment<'_>, addresses: &[IpNet]) -> Result<()> {
    for address in addresses {
        let program = Version::of(address).program();
        ensure_chain(ruleset, program, &chain(attachment))?;
        for (chain, words) in rules(attachment, address) {
            if !run(ruleset, program, "-C", &chain, &words)?.status.success() {
                must(ruleset, program, "-A", &chain, &words)?;
            }
        }
    }
    Ok(())
}

/// The first address whose rules are not all there.
pub(super) fn missing(
    ruleset: &Ruleset,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
) -> Result<Option<IpNet>> {
    for address in addresses {
        for (chain, words) in rules(attachment, address) {
            let program = Version::of(address).program();
            if !run(ruleset, program, "-C", &chain, &words)?.status.success() {
                return Ok(Some(*address));
            }
        }
    }
    Ok(None)
}

/// Removes the attachment's chains and the rules that lead to them, whoever made them.
pub(super) fn tear_down(ruleset: &mut Ruleset, attachment: Attachment<'_>) -> Result<()> {
    let chain = chain(attachment);
    for version in Version::ALL {
        remove_from_nftables(ruleset, version.table(), &chain)?;
        if uses_nat(version.legacy_tables()) {
            remove_from_legacy(ruleset, version, &chain)?;
        }
    }
    Ok(())
}

fn remove_from_nftables(ruleset: &mut Ruleset, table: Table, chain: &str) -> linux::Result<()> {
    let jump = Expression::Verdict(Verdict::Jump(chain.to_owned()));
    let decide = |socket: &mut Socket| {
        let mut changes = Transaction::new();
        if !socket.has_chain(table, chain)? {
            return Ok(changes);
        }
        for rule in socket.rules(table, IPTABLES_POSTROUTING)? {
            if rule.expressions.contains(&jump) {
                changes.delete_rule(table, IPTABLES_POSTROUTING, rule.handle);
            }
        }
        changes.flush_chain(table, chain);
        changes.delete_chain(table, chain);
        Ok(changes)
    };
    match ruleset.socket().and_then(|socket| socket.update(decide)) {
        Err(error) if error.is_unsupported() => Ok(()),
        outcome => outcome,
    }
}

/// Whether the older variant translates addresses here. Its file is missing where the kernel has no such thing.
fn uses_nat(tables: &Path) -> bool {
    fs::read_to_string(tables).is_ok_and(|names| names.lines().any(|name| name == IPTABLES_TABLE))
}

fn remove_from_legacy(ruleset: &Ruleset, version: Version, chain: &str) -> Result<()> {
    let programs = version.legacy_programs();
    let Some((program, restore)) = programs.into_iter().find(|(program, _)| find(program).is_some()) else {
        return Err(Error::NoProgram(programs[0].0));
    };
    let arguments = [WAIT, "-t", IPTABLES_TABLE, "-S"];
    let listed = execute(ruleset, program, &arguments, "")?;
    let listed = succeeded(program, &arguments, listed)?;
    if let Some(script) = removal(&String::from_utf8_lossy(&listed.stdout), chain) {
        let arguments = [WAIT, "--noflush"];
        succeeded(
            restore,
            &arguments,
            execute(ruleset, restore, &arguments, &script)?,
        )?;
    }
    Ok(())
}

/// What `iptables-restore` is to do, from what `iptables -S` prints: delete the rules that lead to the chain, then
/// the chain. `None` if there is no such chain.
fn removal(listing: &str, chain: &str) -> Option<String> {
    let declaration = format!("-N {chain}");
    if !listing.lines().any(|line| line == declaration) {
        return None;
    }
    let target = format!(" -j {chain}");
    let mut script = format!("*{IPTABLES_TABLE}\n");
    for line in listing.lines() {
        if let Some(rule) = line.strip_prefix("-A ")
            && rule.starts_with(IPTABLES_POSTROUTING)
            && rule.ends_with(&target)
        {
            script.push_str(&format!("-D {rule}\n"));
        }
    }
    script.push_str(&format!("-F {chain}\n-X {chain}\nCOMMIT\n"));
    Some(script)
}

fn ensure_chain(ruleset: &Ruleset, program: &'static str, chain: &str) -> Result<()> {
    let made = run(ruleset, program, "-N", chain, &[])?;
    // A chain that exists is refused with the same status as everything else.
    if !made.status.success() && !run(ruleset, program, "-S", chain, &[])?.status.success() {
        succeeded(program, &["-t", IPTABLES_TABLE, "-N", chain], made)?;
    }
    Ok(())
}

fn must(ruleset: &Ruleset, program: &'static str, action: &str, chain: &str, words: &[String]) -> Result<()> {
    let output = run(ruleset, program, action, chain, words)?;
    succeeded(program, &["-t", IPTABLES_TABLE, action, chain], output).map(drop)
}

fn run(
    ruleset: &Ruleset,
    program: &'static str,
    action: &str,
    chain: &str,
    words: &[String],
) -> Result<Output> {
    let mut arguments = vec![WAIT, "-t", IPTABLES_TABLE, action, chain];
    arguments.extend(words.iter().map(String::as_str));
    execute(ruleset, program, &arguments, "")
}

fn succeeded(program: &'static str, arguments: &[&str], output: Output) -> Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    Err(Error::Failed {
        program,
        arguments: arguments.join(" "),
        words: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

fn execute(ruleset: &Ruleset, program: &'static str, arguments: &[&str], input: &str) -> Result<Output> {
    let mut command = Command::new(find(program).ok_or(Error::NoProgram(program))?);
    command
        .env_clear()
        .env("PATH", PROGRAM_DIRECTORIES.join(":"))
        .args(arguments);
    ruleset
        .execute(&mut command, input.as_bytes())
        .map_err(|cause| Error::NotRun { program, cause })
}

fn find(program: &str) -> Option<PathBuf> {
    PROGRAM_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACHMENT: Attachment<'_> = Attachment {
        network: "test",
        ifname: "eth0",
        container_id: "1234",
    };

    #[test]
    fn rules_are_the_established_ones() {
        assert_eq!(chain(ATTACHMENT), "CNI-2bbe0c48b91a7d1b8a6753a8");
        let shown = |address: &str| {
            rules(ATTACHMENT, &address.parse().unwrap())
                .map(|(chain, words)| format!("{chain} {}", words.join(" ")))
        };
        let comment = "-m comment --comment name: \"test\" id: \"1234\"";
        assert_eq!(
            shown("10.1.2.3/24"),
            [
                format!("CNI-2bbe0c48b91a7d1b8a6753a8 -d 10.1.2.3/24 -j ACCEPT {comment}"),
                format!("CNI-2bbe0c48b91a7d1b8a6753a8 ! -d 224.0.0.0/4 -j MASQUERADE {comment}"),
                format!("POSTROUTING -s 10.1.2.3 -j CNI-2bbe0c48b91a7d1b8a6753a8 {comment}"),
            ]
        );
        assert!(shown("fd00::3/64")[1].contains("! -d ff00::/8 -j MASQUERADE"));
    }

    #[test]
    fn only_what_leads_to_the_chain_is_removed() {
        let listing = "-P POSTROUTING ACCEPT\n-N CNI-a\n-N CNI-ab\n\
            -A POSTROUTING -s 10.1.2.3/32 -m comment --comment \"name: \\\"n\\\" id: \\\"1\\\"\" -j CNI-a\n\
            -A POSTROUTING -s 10.1.2.4/32 -j CNI-ab\n-A CNI-a -d 10.1.2.0/24 -j ACCEPT\n";
        assert_eq!(
            removal(listing, "CNI-a").unwrap(),
            "*nat\n-D POSTROUTING -s 10.1.2.3/32 -m comment --comment \"name: \\\"n\\\" id: \\\"1\\\"\" -j CNI-a\n\
            -F CNI-a\n-X CNI-a\nCOMMIT\n"
        );
        assert_eq!(removal(listing, "CNI-b"), None);
    }
}
