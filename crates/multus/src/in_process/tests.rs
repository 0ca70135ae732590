use super::*;
use std::os::unix::fs::PermissionsExt as _;

/// A file that can be run.
fn program(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_file_is_ours_as_long_as_it_carries_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (path, known) = (dir.path().join("bridge"), Known::default());
    assert!(known.is_ours(&path).is_err());
    program(&path, "#!/bin/sh\n");
    assert!(!known.is_ours(&path).unwrap());
    program(&path, plugins::mark::MARK);
    assert!(known.is_ours(&path).unwrap());
    // The same time and size, and another content.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    program(&path, &"x".repeat(plugins::mark::MARK.len()));
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    assert!(!known.is_ours(&path).unwrap());
}

#[test]
fn what_could_not_be_started_is_not_run_either() {
    // multus#100 (not executable)
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bridge");
    fs::write(&path, plugins::mark::MARK).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!Known::default().is_ours(&path).unwrap());
    assert!(!Known::default().is_ours(dir.path()).unwrap());
}

#[test]
fn names_of_ours() {
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
        assert!(candidate(name).is_some(), "{name}");
    }
    for name in [
        "multus-shim",
        "cnv-multus-shim",
        "multus",
        "sriov",
        "weft-cni",
        "",
    ] {
        assert!(candidate(name).is_none(), "{name}");
    }
}

#[test]
fn a_panic_ends_that_call_alone() {
    // multus#100 (the panic)
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: None,
        known: Arc::default(),
        given_up: Arc::default(),
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
fn a_root_that_can_not_be_entered_is_named() {
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: Some("/no/such/root".into()),
        known: Arc::default(),
        given_up: Arc::default(),
    };
    let error = plugins.on_host("bridge", b"{}", || Ok(vec![])).unwrap_err();
    assert!(
        error.msg.starts_with("failed to run plugin bridge: ") && error.msg.contains("/no/such/root"),
        "{error}"
    );
}

#[test]
fn a_thread_that_finds_no_way_back_does_no_more() {
    // multus#100 (no way back)
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Ok(elsewhere) = linux::netns::NetNs::create_anonymous() else {
        println!("skipped: it needs root to make network namespaces");
        return;
    };
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: Some("/".into()),
        known: Arc::default(),
        given_up: Arc::default(),
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
    assert!(said(&*ended).starts_with("no way back"), "{}", said(&*ended));
}

#[test]
fn a_call_that_was_given_up_attaches_nothing_more() {
    // multus#109
    let plugins = Plugins {
        invoker: Invoker::default(),
        root: None,
        known: Arc::default(),
        given_up: Arc::default(),
    };
    let said = |verb: Verb| {
        let variables = [(CNI_COMMAND.to_owned(), verb.as_str().to_owned())].into();
        plugins.run("a", &variables, b"{}").unwrap_err().msg
    };
    let missing = "failed to find plugin \"a\" in path []";
    assert_eq!(said(Verb::Add), missing);
    plugins.given_up.store(true, Ordering::Relaxed);
    assert!(said(Verb::Add).contains("given up"), "{}", said(Verb::Add));
    assert_eq!(said(Verb::Del), missing);
}
