use super::*;
use std::os::unix::fs::PermissionsExt as _;

/// A file that can be run.
fn program(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn file_with_mark_is_own_binary() {
    let dir = tempfile::tempdir().unwrap();
    let (path, own_binaries) = (dir.path().join("bridge"), OwnBinaries::default());
    assert!(own_binaries.is_ours(&path).is_err());
    program(&path, "#!/bin/sh\n");
    assert!(!own_binaries.is_ours(&path).unwrap());
    program(&path, plugins::mark::MARK);
    assert!(own_binaries.is_ours(&path).unwrap());
    // The same time and size, and another content.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    program(&path, &"x".repeat(plugins::mark::MARK.len()));
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    assert!(!own_binaries.is_ours(&path).unwrap());
}

#[test]
fn non_executable_file_is_not_run() {
    // multus#100 (not executable)
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bridge");
    fs::write(&path, plugins::mark::MARK).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!OwnBinaries::default().is_ours(&path).unwrap());
    assert!(!OwnBinaries::default().is_ours(dir.path()).unwrap());
}

#[test]
fn own_plugins_have_names() {
    for name in [
        "bridge",
        "cnv-bridge",
        "tuning",
        "cnv-tuning",
        "host-local",
        "static",
        "loopback",
        "passthru",
    ] {
        assert!(own_plugin(name).is_some(), "{name}");
    }
    for name in [
        "multus-shim",
        "cnv-multus-shim",
        "multus",
        "sriov",
        "weft-cni",
        "",
    ] {
        assert!(own_plugin(name).is_none(), "{name}");
    }
}

#[test]
fn panic_ends_only_its_call() {
    // multus#100 (the panic)
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: None,
        own_binaries: Arc::default(),
        given_up: Arc::default(),
        repeats_dels: false,
    };
    let config = br#"{"cniVersion": "1.0.0", "name": "blue", "type": "bridge"}"#;
    let error = plugins
        .on_host("bridge", config, || panic!("on {}", "purpose"))
        .unwrap_err();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (999, "plugin bridge of network \"blue\" panicked: on purpose")
    );
    assert_eq!(plugins.on_host("bridge", config, || Ok(vec![])).unwrap(), b"");
}

#[test]
fn unusable_root_is_named() {
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: Some("/no/such/root".into()),
        own_binaries: Arc::default(),
        given_up: Arc::default(),
        repeats_dels: false,
    };
    let error = plugins.on_host("bridge", b"{}", || Ok(vec![])).unwrap_err();
    assert!(
        error.msg.starts_with("failed to run plugin bridge: ") && error.msg.contains("/no/such/root"),
        "{error}"
    );
}

#[test]
fn lost_thread_runs_no_more_jobs() {
    // multus#100 (a thread that cannot return)
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Ok(elsewhere) = linux::netns::NetNs::create_anonymous() else {
        println!("skipped: it needs root to make network namespaces");
        return;
    };
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: Some("/".into()),
        own_binaries: Arc::default(),
        given_up: Arc::default(),
        repeats_dels: false,
    };
    let worker = std::thread::spawn(move || {
        linux::thread::spare_this_thread();
        let answer = plugins.on_host("bridge", b"{}", || {
            let lost = elsewhere.run(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::SYS_ADMIN);
                set_capabilities(None, sets).unwrap();
            });
            panic!("went on: {lost:?}");
        });
        panic!("went on: {answer:?}");
    });
    let ended = worker.join().unwrap_err();
    assert!(
        panic_message(&*ended).starts_with("this thread cannot return"),
        "{}",
        panic_message(&*ended)
    );
}

#[test]
fn abandoned_call_attaches_nothing_more() {
    // multus#109
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: None,
        own_binaries: Arc::default(),
        given_up: Arc::default(),
        repeats_dels: false,
    };
    let error = |verb: Verb| {
        let variables = [(CNI_COMMAND.to_owned(), verb.as_str().to_owned())].into();
        plugins.run("a", &variables, b"{}").unwrap_err().msg
    };
    let missing = "failed to find plugin \"a\" in path []";
    assert_eq!(error(Verb::Add), missing);
    plugins.given_up.store(true, Ordering::Relaxed);
    for verb in [Verb::Add, Verb::Gc] {
        assert!(error(verb).contains("given up"), "{}", error(verb));
    }
    assert_eq!(error(Verb::Del), missing);
}
