//! `cargo xtask demo --vms`: virtual machines that keep MAC, address and name during a migration.

use cluster::{Cluster, Progress, Steps};
use kubevirt::scene::{self, Machine, Story};

use super::{commands, prepare};
use crate::install::{self, CONFIG_FOR_MACHINES, example};
use crate::{default_network, kubevirt_parts};

pub(super) fn show(cluster: &Cluster, steps: &mut Steps) -> anyhow::Result<()> {
    let (programs, stand_ins) = kubevirt_parts::build(cluster)?;
    let built = prepare(cluster, steps)?;
    default_network::connect(cluster, &built, steps)?;
    kubevirt::up(cluster, &programs, &stand_ins, steps)?;
    install::addons(&cluster.kubectl(), &built, CONFIG_FOR_MACHINES, steps)?;
    install::bridges(cluster, steps)?;
    let story = scene::play(cluster, &example("virtual-machines.yaml"), steps)?;
    steps.step("done");
    print!("{}", text(&story));
    print!(
        "{}",
        commands(
            cluster,
            &[
                "kubectl get vm,vmi,ipamclaims",
                "kubectl get pods --output wide",
                "kubectl describe ipamclaim alpha.lan",
                "kubectl logs --selector vm.kubevirt.io/name=beta --container guest --tail 5",
                "cargo xtask demo --down",
            ]
        )
    );
    Ok(())
}

fn text(story: &Story) -> String {
    let Story { before, after, pings } = story;
    let mut text =
        "\nTwo virtual machines, each with a MAC, an address and a name that it keeps:\n\n".to_owned();
    for machine in after {
        let Machine {
            name,
            node,
            mac,
            address,
        } = machine;
        let domain = machine.domain();
        text.push_str(&format!("  {name:6} on {node}  {mac}  {address:12} {domain}\n"));
    }
    let [alpha, beta] = after;
    text.push_str(&format!(
        "\n{} moved from {} to {}; {} pinged {} meanwhile, looking the name up for each ping:\n  \
         {} pings, {} without an answer\n\
         \nKubeVirt's control plane is real and no guest boots: pods answer in the place of their guests.\n",
        alpha.name,
        before[0].node,
        alpha.node,
        beta.name,
        alpha.domain(),
        pings.answers.len() + pings.silent,
        pings.silent
    ));
    text
}

#[cfg(test)]
mod tests {
    use kubevirt::scene::Pings;

    use super::*;

    #[test]
    fn story_names_machines_migration_and_pings() {
        let machine = |name, node: &str, last: u8| Machine {
            name,
            node: node.to_owned(),
            mac: format!("02:00:00:00:00:0{last}"),
            address: format!("10.84.0.5{last}"),
        };
        let beta = machine("beta", "node01", 1);
        let story = Story {
            before: [machine("alpha", "node01", 0), beta.clone()],
            after: [machine("alpha", "node02", 0), beta],
            pings: Pings {
                answers: vec!["10.84.0.50".to_owned(); 40],
                silent: 2,
            },
        };
        let text = text(&story);
        for line in [
            "  alpha  on node02  02:00:00:00:00:00  10.84.0.50   lan.alpha.default.vm\n",
            "  beta   on node01  02:00:00:00:00:01  10.84.0.51   lan.beta.default.vm\n",
            "alpha moved from node01 to node02; beta pinged lan.alpha.default.vm meanwhile",
            "  42 pings, 2 without an answer\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
