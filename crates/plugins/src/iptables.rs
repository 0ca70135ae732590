//! Rules managed with the iptables programs, for configs that request them and kernels without the needed nftables
//! features. Also removes such rules, with netlink if the kernel's nftables holds them.
//!
//! ```text
//! iptables, ip6tables ──┬─> nftables (iptables-nft)                  read and removed with netlink
//!                       └─> legacy tables (iptables-legacy)          read and removed with the programs
//! ```

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use ipnet::IpNet;
use linux::nft::{Expression, Family, Socket, Table, Transaction, Verdict};

use crate::{names::PROGRAM_DIRECTORIES, program::find, ruleset::Ruleset};

/// How long the programs wait for the lock on the rules, in seconds.
const WAIT: &str = "--wait=30";

/// A failure of a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
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

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The program for one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl Version {
    pub(crate) const ALL: [Version; 2] = [Version::V4, Version::V6];

    pub(crate) fn of(address: &IpNet) -> Self {
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

    /// The programs for the legacy tables: their specific names, and those on hosts with only the legacy variant.
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

    /// The file that lists the legacy tables of this network namespace.
    fn legacy_tables(self) -> &'static Path {
        Path::new(match self {
            Version::V4 => "/proc/thread-self/net/ip_tables_names",
            Version::V6 => "/proc/thread-self/net/ip6_tables_names",
        })
    }

    /// Whether this legacy table exists. The file is missing on kernels without legacy tables.
    pub(crate) fn has_legacy(self, table: &str) -> bool {
        fs::read_to_string(self.legacy_tables()).is_ok_and(|names| names.lines().any(|name| name == table))
    }

    /// The nftables table of iptables-nft.
    pub(crate) fn table(self, name: &'static str) -> Table {
        Table {
            family: match self {
                Version::V4 => Family::Ipv4,
                Version::V6 => Family::Ipv6,
            },
            name,
        }
    }
}

/// A table with the program for its family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) ruleset: &'a Ruleset,
    pub(crate) version: Version,

    pub(crate) table: &'static str,
}

impl Tables<'_> {
    /// Creates a chain unless it exists.
    pub(crate) fn ensure_chain(&self, chain: &str) -> Result<()> {
        let made = self.run("-N", chain, &[])?;
        // The exit status does not distinguish an existing chain from other failures.
        if !made.status.success() && !self.run("-S", chain, &[])?.status.success() {
            let arguments = ["-t", self.table, "-N", chain];
            succeeded(self.version.program(), &arguments, made)?;
        }
        Ok(())
    }

    /// Whether the chain has the rule.
    pub(crate) fn has(&self, chain: &str, rule: &[String]) -> Result<bool> {
        Ok(self.run("-C", chain, rule)?.status.success())
    }

    /// Appends a rule to a chain unless the chain has it.
    pub(crate) fn ensure_last(&self, chain: &str, rule: &[String]) -> Result<()> {
        if self.has(chain, rule)? {
            return Ok(());
        }
        self.must("-A", chain, rule)
    }

    /// Inserts a rule at the start of a chain unless the chain has it.
    pub(crate) fn ensure_first(&self, chain: &str, rule: &[String]) -> Result<()> {
        if self.has(chain, rule)? {
            return Ok(());
        }
        self.must("-I", chain, rule)
    }

    /// Removes a rule. A missing rule is no error.
    pub(crate) fn remove(&self, chain: &str, rule: &[String]) -> Result<()> {
        if !self.has(chain, rule)? {
            return Ok(());
        }
        self.must("-D", chain, rule)
    }

    fn must(&self, action: &str, chain: &str, rule: &[String]) -> Result<()> {
        let output = self.run(action, chain, rule)?;
        let arguments = ["-t", self.table, action, chain];
        succeeded(self.version.program(), &arguments, output).map(drop)
    }

    fn run(&self, action: &str, chain: &str, rule: &[String]) -> Result<Output> {
        let mut arguments = vec![WAIT, "-t", self.table, action, chain];
        arguments.extend(rule.iter().map(String::as_str));
        execute(self.ruleset, self.version.program(), &arguments, "")
    }
}

/// Removes a chain and all rules in `from` that jump to it.
pub(crate) fn remove_chain(
    ruleset: &mut Ruleset,
    version: Version,
    table: &'static str,
    from: &[&str],
    chain: &str,
) -> Result<()> {
    remove_from_nftables(ruleset, version.table(table), from, chain)?;
    if version.has_legacy(table) {
        remove_from_legacy(ruleset, version, table, from, chain)?;
    }
    Ok(())
}

fn remove_from_nftables(
    ruleset: &mut Ruleset,
    table: Table,
    from: &[&str],
    chain: &str,
) -> linux::Result<()> {
    let jump = Expression::Verdict(Verdict::Jump(chain.to_owned()));
    let decide = |socket: &mut Socket| {
        let mut changes = Transaction::new();
        if !socket.has_chain(table, chain)? {
            return Ok(changes);
        }
        for from in from {
            for rule in socket.rules(table, from)? {
                if rule.expressions.contains(&jump) {
                    changes.delete_rule(table, from, rule.handle);
                }
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

fn remove_from_legacy(
    ruleset: &Ruleset,
    version: Version,
    table: &str,
    from: &[&str],
    chain: &str,
) -> Result<()> {
    let programs = version.legacy_programs();
    let Some((program, restore)) = programs.into_iter().find(|(program, _)| find(program).is_some()) else {
        return Err(Error::NoProgram(programs[0].0));
    };
    let arguments = [WAIT, "-t", table, "-S"];
    let listed = execute(ruleset, program, &arguments, "")?;
    let listed = succeeded(program, &arguments, listed)?;
    if let Some(script) = removal(&String::from_utf8_lossy(&listed.stdout), table, from, chain) {
        let arguments = [WAIT, "--noflush"];
        succeeded(
            restore,
            &arguments,
            execute(ruleset, restore, &arguments, &script)?,
        )?;
    }
    Ok(())
}

/// Converts the output of `iptables -S` to input for `iptables-restore` that deletes the jumps to the chain, then the
/// chain. `None` if the chain does not exist.
fn removal(listing: &str, table: &str, from: &[&str], chain: &str) -> Option<String> {
    let declaration = format!("-N {chain}");
    if !listing.lines().any(|line| line == declaration) {
        return None;
    }
    let target = format!(" -j {chain}");
    let mut script = format!("*{table}\n");
    for line in listing.lines() {
        if let Some(rule) = line.strip_prefix("-A ")
            && from.iter().any(|from| rule.starts_with(&format!("{from} ")))
            && rule.ends_with(&target)
        {
            script.push_str(&format!("-D {rule}\n"));
        }
    }
    script.push_str(&format!("-F {chain}\n-X {chain}\nCOMMIT\n"));
    Some(script)
}

/// The output of a successful program, else its error.
pub(crate) fn succeeded(program: &'static str, arguments: &[&str], output: Output) -> Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    Err(Error::Failed {
        program,
        arguments: arguments.join(" "),
        words: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Runs a program of the host.
pub(crate) fn execute(
    ruleset: &Ruleset,
    program: &'static str,
    arguments: &[&str],
    input: &str,
) -> Result<Output> {
    let mut command = Command::new(find(program).ok_or(Error::NoProgram(program))?);
    command
        .env_clear()
        .env("PATH", PROGRAM_DIRECTORIES.join(":"))
        .args(arguments);
    ruleset
        .execute(&mut command, input.as_bytes())
        .map_err(|cause| Error::NotRun { program, cause })
}

/// Whether the host has a program.
pub(crate) fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// The words of a rule.
pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().copied().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_jumps_to_the_chain_are_removed() {
        let listing = "-P POSTROUTING ACCEPT\n-N CNI-a\n-N CNI-ab\n\
            -A POSTROUTING -s 10.1.2.3/32 -m comment --comment \"name: \\\"n\\\" id: \\\"1\\\"\" -j CNI-a\n\
            -A POSTROUTING -s 10.1.2.4/32 -j CNI-ab\n-A CNI-a -d 10.1.2.0/24 -j ACCEPT\n";
        let removal = |chain| removal(listing, "nat", &["POSTROUTING"], chain);
        assert_eq!(
            removal("CNI-a").unwrap(),
            "*nat\n-D POSTROUTING -s 10.1.2.3/32 -m comment --comment \"name: \\\"n\\\" id: \\\"1\\\"\" -j CNI-a\n\
            -F CNI-a\n-X CNI-a\nCOMMIT\n"
        );
        assert_eq!(removal("CNI-b"), None);
    }
}
