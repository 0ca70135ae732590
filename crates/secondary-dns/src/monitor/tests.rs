use super::*;
use crate::answer::SharedZones;
use crate::model::key;
use crate::publish::path;
use crate::zone::{Owner, serial};
use axum::http::{Request, Response};
use kube::client::Body;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::Name;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tower::service_fn;

/// Deadline of any wait, generous for slow machines.
const DEADLINE: Duration = Duration::from_secs(30);

fn settings(variables: &[(&str, &str)]) -> Settings {
    let lookup = |name: &str| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| (*value).to_owned())
    };
    Settings::read(lookup).unwrap()
}

const COUNTER: [(&str, &str); 2] = [("KSD_SERIAL", "counter"), ("KSD_IPV6", "off")];

fn vmi(namespace: &str, name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "namespace": namespace, "name": name, "uid": name, "resourceVersion": "1" },
        "status": { "interfaces": [{ "name": "nic1", "ipAddresses": [address] }] },
    })
}

/// A monitor in a thread. Its API server sends these answers one after the other, and then none.
struct Stage {
    memory: SharedZones,
    readiness: Readiness,
    /// Releases the answers after the first one.
    hold: Shutdown,
    end: Shutdown,
    thread: Option<thread::JoinHandle<()>>,
}

impl Stage {
    fn start(variables: &[(&str, &str)], directory: &Path, answers: Vec<String>) -> Self {
        let stage = Self::start_after(variables, directory, answers, || {});
        stage.go_on();
        stage
    }

    /// Starts after a hook that runs between the monitor's read of its files and its start. Answers after the first one
    /// are held until [`Stage::go_on`].
    fn start_after(
        variables: &[(&str, &str)],
        directory: &Path,
        answers: Vec<String>,
        prepare: impl FnOnce(),
    ) -> Self {
        let (settings, memory) = (settings(variables), SharedZones::default());
        let places = Places {
            memory: Some(Arc::clone(&memory)),
            directory: Some(directory.to_owned()),
        };
        let (readiness, end) = (Readiness::new(), Shutdown::new());
        let (ready, ended) = (readiness.clone(), end.clone());
        let hold = Shutdown::new();
        let held = hold.clone();
        let monitor = Monitor::new(settings, places, ready, Metrics::default());
        prepare();
        let thread = thread::spawn(move || {
            let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
            let first = answers_left(&answers);
            let service = service_fn(move |_: Request<Body>| {
                let is_first = answers_left(&answers) == first;
                let answer = lock(&answers).pop_front();
                let held = held.clone();
                async move {
                    if !is_first {
                        held.wait().await;
                    }
                    let Some(answer) = answer else {
                        return std::future::pending().await;
                    };
                    Ok::<_, Infallible>(Response::new(axum::body::Body::from(answer)))
                }
            });
            kube_kit::process::run(async {
                tokio::select! {
                    () = monitor.run(Client::new(service, "default")) => {}
                    () = ended.wait() => {}
                }
            })
            .unwrap();
        });
        Self {
            memory,
            readiness,
            hold,
            end,
            thread: Some(thread),
        }
    }

    /// Releases all answers of the API server.
    fn go_on(&self) {
        self.hold.trigger();
    }

    #[track_caller]
    fn wait_ready(&self) {
        until("ready", || self.readiness.is_ready().then_some(()));
    }

    /// Serial of the zone in memory; `None` before the zone is loaded.
    fn serial(&self) -> Option<u32> {
        let zones = lock(&self.memory);
        zones.loaded().map(|zone| zone.soa().serial).next()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

fn answers_left(answers: &Mutex<VecDeque<String>>) -> usize {
    lock(answers).len()
}

#[track_caller]
fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn list(items: &[Value], more: &str) -> String {
    let metadata = json!({ "resourceVersion": "7", "continue": more });
    json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceList", "metadata": metadata, "items": items })
        .to_string()
}

fn events(events: &[(&str, Value)]) -> String {
    let line = |(kind, object): &(&str, Value)| json!({ "type": kind, "object": object }).to_string() + "\n";
    events.iter().map(line).collect()
}

/// Waits for the zone file with this serial.
#[track_caller]
fn file(directory: &Path, serial: u32) -> String {
    until(&format!("serial {serial}"), || {
        let text = fs::read_to_string(path(directory, "vm")).ok()?;
        (serial::of_file(&text) == Some(serial)).then_some(text)
    })
}

fn text(serial: u32, records: &[&str]) -> String {
    let head =
        format!("$ORIGIN vm. \n$TTL 3600 \n@ IN SOA ns.vm. email.vm. ({serial} 3600 3600 1209600 3600)\n");
    records.iter().fold(head, |text, record| text + record + "\n")
}

const ONE: [&str; 2] = ["nic1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"];

#[test]
fn instances_are_published_and_withdrawn() {
    // secondary-dns#5, secondary-dns#8, secondary-dns#11: serials and files
    let directory = tempfile::tempdir().unwrap();
    let mut gone = vmi("ns1", "vmi1", "1.2.3.4");
    gone["metadata"]["resourceVersion"] = json!("8");
    let answers = vec![
        list(&[vmi("ns1", "vmi1", "1.2.3.4")], ""),
        events(&[("DELETED", gone)]),
    ];
    let stage = Stage::start(&COUNTER, directory.path(), answers);
    assert_eq!(file(directory.path(), 2), text(2, &[]));
    assert!(stage.readiness.is_ready());
    assert_eq!(stage.serial(), Some(2));
}

#[test]
fn nothing_is_written_before_the_first_record() {
    // secondary-dns#9, the file
    let directory = tempfile::tempdir().unwrap();
    let unknown = json!({ "metadata": { "namespace": "ns1", "name": "vmi1", "resourceVersion": "8" } });
    let mut later = vmi("ns1", "vmi2", "1.2.3.5");
    later["metadata"]["resourceVersion"] = json!("9");
    let answers = vec![
        list(&[], ""),
        events(&[("DELETED", unknown)]),
        events(&[("ADDED", later)]),
    ];
    let stage = Stage::start(&COUNTER, directory.path(), answers);
    stage.wait_ready();
    // The first file contains the first record: no file with serial 0 was written.
    let first = until("a file", || fs::read_to_string(path(directory.path(), "vm")).ok());
    assert_eq!(
        first,
        text(1, &["nic1.vmi2.ns1 IN A 1.2.3.5", "vmi2.ns1 IN A 1.2.3.5"])
    );
}

#[test]
fn empty_cluster_has_a_zone_unless_serials_are_counted() {
    // secondary-dns §9.3: from the time of the start
    let directory = tempfile::tempdir().unwrap();
    let began = now();
    let stage = Stage::start(&[], directory.path(), vec![list(&[], "")]);
    let written = until("a file", || fs::read_to_string(path(directory.path(), "vm")).ok());
    let serial = serial::of_file(&written).unwrap();
    assert!((began..=now()).contains(&serial));
    assert_eq!(written, text(serial, &[]));
    assert_eq!(stage.serial(), Some(serial));
}

#[test]
fn serial_of_the_file_continues() {
    // secondary-dns#3-4, from the file to the file
    let directory = tempfile::tempdir().unwrap();
    fs::write(path(directory.path(), "vm"), text(12345, &[])).unwrap();
    let stage = Stage::start(
        &[],
        directory.path(),
        vec![list(&[vmi("ns1", "vmi1", "1.2.3.4")], "")],
    );
    assert_eq!(file(directory.path(), 12346), text(12346, &ONE));
    assert_eq!(until("memory", || stage.serial()), 12346);
}

#[test]
fn current_file_is_not_written() {
    // secondary-dns#13, secondary-dns#29: after a restart nothing has changed, so nothing is written
    let directory = tempfile::tempdir().unwrap();
    let file_path = path(directory.path(), "vm");
    fs::write(&file_path, text(5, &ONE)).unwrap();
    let before = file_path.metadata().unwrap();
    let answers = vec![list(&[vmi("ns1", "vmi1", "1.2.3.4")], "")];
    let stage = Stage::start(&COUNTER, directory.path(), answers);
    until("the serial of the file", || {
        (stage.serial() == Some(5)).then_some(())
    });
    let after = file_path.metadata().unwrap();
    assert_eq!(
        (before.ino(), before.mtime_nsec()),
        (after.ino(), after.mtime_nsec())
    );
    drop(stage);
    // A file with other content gets another serial, also if the instance was deleted while no monitor ran.
    let stage = Stage::start(&COUNTER, directory.path(), vec![list(&[], "")]);
    assert_eq!(file(directory.path(), 6), text(6, &[]));
    drop(stage);
}

#[test]
fn garbage_is_replaced() {
    // secondary-dns#6
    let directory = tempfile::tempdir().unwrap();
    for garbage in ["", "garbage"] {
        fs::write(path(directory.path(), "vm"), garbage).unwrap();
        let answers = vec![list(&[vmi("ns1", "vmi1", "1.2.3.4")], "")];
        let _stage = Stage::start(&COUNTER, directory.path(), answers);
        assert_eq!(file(directory.path(), 1), text(1, &ONE));
    }
}

#[test]
fn nothing_is_published_before_all_instances_are_known() {
    // secondary-dns#31, secondary-dns#57
    let directory = tempfile::tempdir().unwrap();
    let page = |from: usize| -> Vec<Value> {
        let one = |n: usize| {
            vmi(
                "ns1",
                &format!("vm{n:04}"),
                &format!("10.0.{}.{}", n / 250, n % 250),
            )
        };
        (from..from + 500).map(one).collect()
    };
    // The second page never comes.
    let half = Stage::start(&[], directory.path(), vec![list(&page(0), "more")]);
    let origin = hickory_proto::rr::Name::from_ascii("vm.").unwrap();
    until("the zone is known and not loaded", || {
        matches!(lock(&half.memory).owner(&origin), Owner::Unloaded).then_some(())
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!half.readiness.is_ready() && half.serial().is_none());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    drop(half);
    let answers = vec![list(&page(0), "more"), list(&page(500), "")];
    let _whole = Stage::start(&[], directory.path(), answers);
    let first = until("a file", || fs::read_to_string(path(directory.path(), "vm")).ok());
    assert_eq!(first.lines().count(), 3 + 2 * 1000);
}

#[test]
fn write_that_failed_is_tried_again_without_news() {
    // secondary-dns#33
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("zones");
    // An obstacle at the path of the incomplete file makes the write fail.
    fs::create_dir_all(directory.join(".next")).unwrap();
    let stage = Stage::start(
        &COUNTER,
        &directory,
        vec![list(&[vmi("ns1", "vmi1", "1.2.3.4")], "")],
    );
    stage.wait_ready();
    thread::sleep(Duration::from_millis(300));
    assert!(!path(&directory, "vm").exists());
    fs::remove_dir(directory.join(".next")).unwrap();
    assert_eq!(file(&directory, 1), text(1, &ONE));
}

#[test]
fn object_that_is_no_instance_leaves_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let odd =
        json!({ "metadata": { "namespace": "ns1", "name": "odd" }, "status": { "interfaces": "none" } });
    let nameless = vmi("", "odd", "1.2.3.9");
    let answers = vec![list(&[odd, nameless, vmi("ns1", "vmi1", "1.2.3.4")], "")];
    let _stage = Stage::start(&COUNTER, directory.path(), answers);
    assert_eq!(file(directory.path(), 1), text(1, &ONE));
}

/// Replaces a file by a FIFO: its reader blocks until a writer opens it, and its writer until a reader does.
fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

/// Opens an end of a FIFO without blocking.
fn end_of(path: &Path, options: &mut fs::OpenOptions) -> std::io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    options.custom_flags(flags.cast_signed()).open(path)
}

/// Waits until the zone in memory has an instance.
#[track_caller]
fn answered(stage: &Stage, name: &str) {
    let name = hickory_proto::rr::Name::from_ascii(name).unwrap();
    until("the answer", || {
        let zones = lock(&stage.memory);
        let Owner::Zone(zone) = zones.owner(&name) else {
            return None;
        };
        matches!(zone.find(&name), Some(crate::zone::Found::Records(_))).then_some(())
    });
}

fn added(name: &str) -> String {
    let mut later = vmi("ns1", name, "1.2.3.5");
    later["metadata"]["resourceVersion"] = json!("8");
    events(&[("ADDED", later)])
}

#[test]
fn event_while_the_zone_file_is_read_is_answered() {
    // secondary-dns §9.1: no event waits for a file
    let directory = tempfile::tempdir().unwrap();
    let in_the_way = path(directory.path(), "vm");
    let answers = vec![list(&[vmi("ns1", "vmi1", "1.2.3.4")], ""), added("vmi2")];
    let stage = Stage::start_after(&COUNTER, directory.path(), answers, || fifo(&in_the_way));
    // A reader has opened the FIFO and waits for the text.
    let gate = until("the reader", || {
        end_of(&in_the_way, fs::File::options().write(true)).ok()
    });
    stage.go_on();
    answered(&stage, "vmi2.ns1.vm.");
    assert!(!in_the_way.is_file());
    drop(gate);
    until("the file", || in_the_way.is_file().then_some(()));
    let two = ["nic1.vmi2.ns1 IN A 1.2.3.5", "vmi2.ns1 IN A 1.2.3.5"];
    assert_eq!(file(directory.path(), 2), text(2, &[ONE, two].concat()));
    assert_eq!(stage.serial(), Some(2));
}

#[test]
fn event_while_a_large_zone_is_written_is_answered() {
    // secondary-dns §9.1: no event waits for a file
    use std::io::Read as _;
    let directory = tempfile::tempdir().unwrap();
    let unfinished = directory.path().join(".next");
    let one = |n: usize| {
        vmi(
            "ns1",
            &format!("vm{n:04}"),
            &format!("10.0.{}.{}", n / 250, n % 250),
        )
    };
    let many: Vec<Value> = (0..3000).map(one).collect();
    let answers = vec![list(&many, ""), added("later")];
    let stage = Stage::start_after(&COUNTER, directory.path(), answers, || fifo(&unfinished));
    let mut gate = end_of(&unfinished, fs::File::options().read(true)).unwrap();
    // A writer has opened the FIFO, which is too small for its text.
    until("the writer", || {
        let mut room = [0; 1];
        gate.read(&mut room).ok().filter(|octets| *octets == 1)
    });
    stage.go_on();
    answered(&stage, "later.ns1.vm.");
    assert!(!path(directory.path(), "vm").exists());
    drop(gate);
    assert_eq!(file(directory.path(), 3001).lines().count(), 3 + 2 * 3001);
}

#[test]
fn writer_of_files_gets_changed_zones_alone() {
    // secondary-dns §9.1-2: the lock that events wait for is held for the time of one change
    let places = Places {
        memory: None,
        directory: Some(PathBuf::from("/nowhere")),
    };
    let monitor = Monitor::new(settings(&COUNTER), places, Readiness::new(), Metrics::default());
    let mut state = lock(&monitor.state);
    let observe = |state: &mut State, name: &str, address: &str| {
        state.observe(&serde_json::from_value(vmi("ns1", name, address)).unwrap())
    };
    for n in 0..1000 {
        assert!(observe(&mut state, &format!("vm{n}"), "1.2.3.4"));
    }
    let (changes, serial) = state.take_unwritten().unwrap();
    assert_eq!((changes.len(), serial), (1000, 1000));
    assert!(observe(&mut state, "vm7", "1.2.3.5") && observe(&mut state, "vm7", "1.2.3.6"));
    assert!(!observe(&mut state, "vm8", "1.2.3.4"));
    assert!(state.gone(&Name::new("ns1", "vm9")));
    let (changes, serial) = state.take_unwritten().unwrap();
    let of = |name: &str| changes.get(&key("ns1", name)).map(|records| records.len());
    assert_eq!((changes.len(), serial), (2, 1003));
    assert_eq!((of("vm7"), of("vm9")), (Some(2), Some(0)));
    assert!(state.take_unwritten().unwrap().0.is_empty());
}

#[test]
fn first_edition_continues_the_serial_despite_events() {
    // secondary-dns §5: the serial of an up-to-date file continues, also if an event came during its read
    let places = Places {
        memory: None,
        directory: Some(PathBuf::from("/nowhere")),
    };
    let monitor = Monitor::new(settings(&COUNTER), places, Readiness::new(), Metrics::default());
    let mut state = lock(&monitor.state);
    state.model.set_serial(7);
    state.renumber(5, u32::MAX);
    assert_eq!(state.model.serial(), 1);
}
