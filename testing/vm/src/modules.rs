//! Which modules have to be loaded, and in which order.

use std::collections::HashMap;

/// What `modules.dep` and `modules.builtin` say.
#[derive(Debug)]
pub(crate) struct Modules<'a> {
    /// Path of each module, below the folder of the kernel's modules, and the paths of all that it needs.
    paths: HashMap<String, (&'a str, Vec<&'a str>)>,
    builtin: Vec<String>,
}

impl<'a> Modules<'a> {
    /// Reads `modules.dep`: one line `PATH: PATH PATH …` a module; and `modules.builtin`, one path a line.
    pub(crate) fn read(dependencies: &'a str, builtin: &'a str) -> Self {
        let paths = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(path, needs)| (name(path), (path, needs.split_whitespace().collect())))
            .collect();
        Self {
            paths,
            builtin: builtin.lines().map(name).collect(),
        }
    }

    /// The paths to load for these modules, what each needs before it; or the name of one that does not exist. Those
    /// that are part of the kernel need no loading.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<&'a str>, String> {
        let mut order = Vec::new();
        for module in wanted {
            let Some((path, needs)) = self.paths.get(&name(module)) else {
                if self.builtin.contains(&name(module)) {
                    continue;
                }
                return Err((*module).to_owned());
            };
            // The list is complete, what depends on others first.
            for path in needs.iter().rev().chain([path]) {
                if !order.contains(path) {
                    order.push(*path);
                }
            }
        }
        Ok(order)
    }
}

/// `kernel/net/llc/llc.ko.xz` is `llc`; dashes and underscores are the same.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split_once(".ko").map_or(file, |(name, _)| name);
    name.trim().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "\
kernel/net/llc/llc.ko:
kernel/net/802/stp.ko: kernel/net/llc/llc.ko
kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/8021q/8021q.ko.xz: kernel/net/802/mrp.ko.xz kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/802/mrp.ko.xz:
kernel/net/bridge/br-nf.ko:
";

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let modules = Modules::read(DEPENDENCIES, "kernel/drivers/net/veth.ko\n");
        assert_eq!(
            modules
                .closure(&["bridge", "8021q", "veth", "br_nf", "stp"])
                .unwrap(),
            [
                "kernel/net/llc/llc.ko",
                "kernel/net/802/stp.ko",
                "kernel/net/bridge/bridge.ko",
                "kernel/net/802/mrp.ko.xz",
                "kernel/net/8021q/8021q.ko.xz",
                "kernel/net/bridge/br-nf.ko",
            ]
        );
        assert_eq!(modules.closure(&["bridge", "nosuch"]).unwrap_err(), "nosuch");
    }
}
