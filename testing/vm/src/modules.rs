//! The modules to load, and their order.

use std::collections::HashMap;

/// The content of `modules.dep` and `modules.builtin`.
#[derive(Debug)]
pub(crate) struct Modules<'a> {
    /// Path of each module in the modules' directory, and the paths of its dependencies.
    paths: HashMap<String, (&'a str, Vec<&'a str>)>,
    builtin: Vec<String>,
}

impl<'a> Modules<'a> {
    /// Parses `modules.dep`, with one line `PATH: PATH PATH …` per module, and `modules.builtin`, with one path per
    /// line.
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

    /// Returns the paths to load for these modules, dependencies first. The error is the name of a missing module.
    /// Built-in modules need no loading.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<&'a str>, String> {
        let mut order = Vec::new();
        for module in wanted {
            let Some((path, needs)) = self.paths.get(&name(module)) else {
                if self.builtin.contains(&name(module)) {
                    continue;
                }
                return Err((*module).to_owned());
            };
            // The list is complete, and lists dependencies after their users.
            for path in needs.iter().rev().chain([path]) {
                if !order.contains(path) {
                    order.push(*path);
                }
            }
        }
        Ok(order)
    }
}

/// Returns the module name: `kernel/net/llc/llc.ko.xz` is `llc`. Dashes and underscores are equal.
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
    fn dependency_of_a_module_precedes_it_and_occurs_once() {
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
