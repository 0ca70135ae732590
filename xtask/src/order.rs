//! `cargo xtask order`: the order of functions in the program of all daemons.
//!
//! The kernel maps 64 KiB of a program around each page that a process touches. At rest, a daemon calls a few hundred of
//! the program's 58,000 functions. Next to each other, they take far fewer of these groups than scattered.
//!
//! ```text
//! linker's map ──────────────> functions ─┐
//!                                         ├──> first calls in each process ──> functions.txt
//! processes of running clusters ──────────┘                                          │
//!                                              build of the image: `link` <──────────┘
//! ```

mod link;
mod list;
mod map;
mod trace;

pub(crate) use link::{flags, run as link};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cluster::{Progress, Steps};

use self::map::Function;
use crate::{image, paths};

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to record the calls of the daemons
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
}

/// The functions that the processes with one task called, by the order of their first calls.
type Calls = BTreeMap<String, Vec<usize>>;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "this command sets breakpoints of x86-64: run it on such a machine"
    );
    let mut steps = Steps::new();
    steps.step("reading the linker's map");
    let program = image::built(image::WEFT)?;
    let map = image::map()?;
    let map = fs::read_to_string(&map)
        .with_context(|| format!("cannot read {}: run `cargo xtask image`", map.display()))?;
    let functions = map::functions(&map);
    let processes = processes(&program)?;
    ensure!(
        !processes.is_empty(),
        "no process runs {}: start a cluster with this image, for example by `cargo xtask demo`",
        program.display()
    );
    steps.step(&format!(
        "recording the calls of {} processes for {} s",
        processes.len(),
        args.seconds
    ));
    let (calls, failures) = record(&processes, &functions, Duration::from_secs(args.seconds));
    for failure in &failures {
        steps.step(failure);
    }
    ensure!(!calls.is_empty(), "no process could be traced");
    let order = order(&calls);
    let file = paths::root().join(list::FILE);
    fs::write(
        &file,
        list::text(order.iter().map(|index| functions[*index].symbol)),
    )
    .with_context(|| format!("cannot write {}", file.display()))?;
    steps.step("done");
    print!("{}", table(&calls, &functions));
    println!("\nThe order is in {}. Build the image again.", list::FILE);
    Ok(())
}

/// Returns the processes of a program, with their tasks.
fn processes(program: &Path) -> anyhow::Result<Vec<(i32, String)>> {
    let wanted = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut known = HashMap::new();
    let mut is_same = |process: &Path| -> Option<bool> {
        let exe = process.join("exe");
        let found = fs::metadata(&exe).ok()?;
        if found.len() != wanted.len() as u64 {
            return Some(false);
        }
        let same = known
            .entry((found.dev(), found.ino()))
            .or_insert_with(|| fs::read(&exe).is_ok_and(|content| content == wanted));
        Some(*same)
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list processes")? {
        let entry = entry.context("cannot list processes")?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if is_same(&entry.path()) == Some(true) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, task(&line)));
        }
    }
    Ok(found)
}

/// Returns the words of a command line before its options: the name of the program and the subcommands.
fn task(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let words = line
        .split('\0')
        .take_while(|word| !word.starts_with('-') && !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the calls of all processes, and a message for each process that could not be traced to its end.
fn record(processes: &[(i32, String)], functions: &[Function<'_>], time: Duration) -> (Calls, Vec<String>) {
    let end = Instant::now() + time;
    let traced = std::thread::scope(|scope| {
        let threads: Vec<_> = processes
            .iter()
            .map(|(pid, task)| {
                (
                    pid,
                    task,
                    scope.spawn(move || trace::first_calls(*pid, functions, end)),
                )
            })
            .collect();
        threads
            .into_iter()
            .map(|(pid, task, thread)| (pid, task, thread.join()))
            .collect::<Vec<_>>()
    });
    let (mut calls, mut failures) = (Calls::new(), Vec::new());
    for (pid, task, result) in traced {
        match result {
            Ok(Ok(called)) => {
                let all = calls.entry(task.clone()).or_default();
                let new: Vec<usize> = called.into_iter().filter(|index| !all.contains(index)).collect();
                all.extend(new);
            }
            Ok(Err(error)) => failures.push(format!("process {pid} ({task}) is left out: {error:#}")),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    (calls, failures)
}

/// Returns the functions in their new order: those that more tasks call come first, functions of the same tasks stay
/// together, and among these the first call decides.
fn order(calls: &Calls) -> Vec<usize> {
    let mut tasks: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut first: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (task, called) in calls.values().enumerate() {
        for (position, function) in called.iter().enumerate() {
            tasks.entry(*function).or_default().insert(task);
            first.entry(*function).or_insert((task, position));
        }
    }
    let mut order: Vec<usize> = tasks.keys().copied().collect();
    order.sort_by_key(|function| {
        let tasks = &tasks[function];
        (usize::MAX - tasks.len(), tasks, first[function])
    });
    order
}

/// Returns a remark if most functions of the list are not in the map of a program: their names have changed.
pub(crate) fn is_stale(map: &str) -> Option<String> {
    remark(list::LIST, map)
}

fn remark(list: &str, map: &str) -> Option<String> {
    let [known, found] = list::known(list, map::functions(map).iter().map(|function| function.symbol));
    (found * 2 < known).then(|| {
        format!(
            "only {found} of the {known} functions that daemons call are next to each other, so that daemons take more \
             memory: run `cargo xtask order`"
        )
    })
}

fn table(calls: &Calls, functions: &[Function<'_>]) -> String {
    let bytes = |called: &[usize]| called.iter().map(|index| functions[*index].bytes).sum();
    let line = |name: &str, called: &[usize]| {
        format!(
            "{name:50} {:>6} {:>10}\n",
            called.len(),
            image::mebibytes(bytes(called))
        )
    };
    let mut text: String = calls.iter().map(|(task, called)| line(task, called)).collect();
    text.push_str(&line("all", &order(calls)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_words_before_options() {
        assert_eq!(task(b"/weft\0multus-daemon\0"), "/weft multus-daemon");
        assert_eq!(task(b"/manager\0--v\0info\0"), "/manager");
        assert_eq!(task(b""), "");
    }

    #[test]
    fn functions_of_more_tasks_come_first() {
        let calls = Calls::from([
            ("a".to_owned(), vec![7, 1, 5]),
            ("b".to_owned(), vec![9, 5, 1]),
            ("c".to_owned(), vec![5, 3]),
        ]);
        assert_eq!(order(&calls), [5, 1, 7, 9, 3]);
    }

    #[test]
    fn list_is_stale_if_a_program_has_less_than_half_of_its_functions() {
        let map = "10 10 30 1 .text\n10 10 10 1                 a\n20 20 10 1                 b\n";
        let list = |symbols: &[&str]| list::text(symbols.iter().copied());
        assert_eq!(remark(&list(&["a", "b", "c", "d"]), map), None);
        let remark = remark(&list(&["a", "b", "c", "d", "e"]), map).unwrap();
        assert!(remark.starts_with("only 2 of the 5 functions"), "{remark}");
    }
}
