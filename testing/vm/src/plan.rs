//! The steps of the guest, as a text file in its initramfs with one step per line.

/// Path of the file in the guest.
pub const PATH: &str = "/vm.plan";

const MODULE: &str = "module ";
const TEST: &str = "test ";

/// A step of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Load this module.
    Module(String),
    /// Run a test program: its name, without spaces, and its path.
    Test(String, String),
}

/// Writes the steps.
pub fn write(steps: &[Step]) -> String {
    steps
        .iter()
        .map(|step| match step {
            Step::Module(path) => format!("{MODULE}{path}\n"),
            Step::Test(name, path) => format!("{TEST}{name} {path}\n"),
        })
        .collect()
}

/// Parses the steps. The error is the invalid line.
pub fn read(text: &str) -> Result<Vec<Step>, &str> {
    let step = |line| {
        if let Some(path) = str::strip_prefix(line, MODULE) {
            return Ok(Step::Module(path.to_owned()));
        }
        let test = line.strip_prefix(TEST).and_then(|test| test.split_once(' '));
        let (name, path) = test.ok_or(line)?;
        Ok(Step::Test(name.to_owned(), path.to_owned()))
    };
    text.lines().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_steps_are_read_back() {
        let steps = [
            Step::Module("/lib/llc.ko".to_owned()),
            Step::Test("plugins".to_owned(), "/some where/vm-1".to_owned()),
        ];
        assert_eq!(read(&write(&steps)).unwrap(), steps);
        assert_eq!(read("module a\ntest b\n").unwrap_err(), "test b");
    }
}
