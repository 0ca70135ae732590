//! `cargo xtask bench footprint`: memory of all programs on the nodes, and their sizes.

use anyhow::bail;
use cluster::{Cluster, Steps};

use super::memory::{Memory, processes};
use crate::{image, install, manifests};

pub(crate) fn run() -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let cluster = Cluster::from_env()?;
    if !cluster.is_up() {
        bail!("the cluster is not up; `cargo xtask demo` brings it up with something to measure");
    }
    let built = image::build(&mut steps)?;
    // A demo runs a development build.
    manifests::write(&built)?;
    install::install(&cluster, &built, install::CONFIG, &mut steps)?;
    println!("\n{}", built.sizes());
    for node in cluster.nodes() {
        println!("{}", memory_table(node, &processes(&cluster, node)));
    }
    Ok(())
}

fn memory_table(node: &str, processes: &[(String, Memory)]) -> String {
    let mut text = format!(
        "{node:<34}{:>10}{:>10}{:>12}\n",
        "Pss KiB", "RSS KiB", "anon. KiB"
    );
    let mut sum = Memory::default();
    let mut line = |name: &str, memory: Memory| {
        text.push_str(&format!(
            "  {name:<32}{:>10}{:>10}{:>12}\n",
            memory.pss, memory.rss, memory.anonymous
        ));
    };
    for (name, memory) in processes {
        line(name, *memory);
        // The operator runs on one node of a cluster, whatever its size.
        if !name.ends_with(" operator") {
            sum.pss += memory.pss;
            sum.rss += memory.rss;
            sum.anonymous += memory.anonymous;
        }
    }
    line("node daemons together", sum);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_a_terminal() {
        let table = memory_table(
            "node01",
            &[(
                "weft multus-daemon".to_owned(),
                Memory {
                    pss: 1,
                    rss: 2,
                    anonymous: 3,
                },
            )],
        );
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
        assert!(
            table.lines().last().unwrap().trim().starts_with("node daemons"),
            "{table}"
        );
    }
}
