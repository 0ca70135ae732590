//! DEL, and the state on the node that it works from.

use super::*;
use std::os::unix::fs::symlink;

#[test]
fn scratch_file_exists_from_add_to_del() {
    // multus#42
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(bench.scratch()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(bench.results(), ["a-c1-eth0", "b-c1-net1"]);
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert!(!bench.scratch().exists());
    assert!(bench.results().is_empty());
    // multus#43
    let config = bench.fake.call("DEL b").config;
    assert_eq!(
        (&config["kubeconfig"], &config["ipam"]["ranges"]),
        (&json!("/k"), &json!([1]))
    );
    assert_eq!(bench.fake.names(), ["ADD a", "ADD b", "DEL b", "DEL a"]);
}

#[test]
fn del_continues_after_errors_and_returns_all() {
    // multus#47
    for (keep, left) in [(false, false), (true, true)] {
        let mut bench = Bench::with(&json!({"retryDeleteOnError": keep}))
            .failing("DEL b")
            .failing("DEL c");
        bench.add(&[single("a"), single("b"), single("c")]).unwrap();
        let stored = bench.stored();
        let error = bench.attacher().del(&stored).unwrap_err();
        assert_eq!(bench.fake.names()[3..], ["DEL c", "DEL b", "DEL a"]);
        assert_eq!(
            error.to_string(),
            "errors: error deleting container from network \"c\": later / error deleting container from network \"b\": later"
        );
        assert_eq!(bench.scratch().exists(), left);
    }
}

#[test]
fn del_that_leaves_an_attachment_is_to_be_repeated() {
    for attached in [true, false] {
        let mut bench = Bench::new().failing("DEL b");
        bench.config.own.repeats_dels = true;
        if !attached {
            // Its plugin may be missing, or its configuration unusable: no DEL would ever succeed.
            bench = bench.failing("ADD b");
        }
        assert_eq!(bench.add(&[single("a"), single("b")]).is_ok(), attached);
        let stored = bench.stored();
        let error = bench.attacher().del(&stored).unwrap_err();
        assert_eq!(error.code == code::TRY_AGAIN_LATER, attached, "{error}");
        assert_eq!(bench.scratch().exists(), attached);
        assert_eq!(!bench.results().is_empty(), attached);
    }
}

#[test]
fn list_without_version_gets_own_version_on_del() {
    // multus#48
    let bench = Bench::new();
    let list = chain(&json!({"name": "list", "plugins": [{"type": "p", "x": 1}]}));
    bench.attacher().del(&[list, single("a")]).unwrap();
    assert_eq!(
        bench.fake.call("DEL p").config,
        json!({"type": "p", "x": 1, "name": "list", "cniVersion": "0.4.0"})
    );
    let nameless = Delegate::new("n".into(), Config::parse(br#"{"type":"n","name":"n"}"#).unwrap());
    bench.attacher().del(&[nameless]).unwrap();
    assert_eq!(bench.fake.call("DEL n").config, json!({"type": "n", "name": "n"}));
}

#[test]
fn stripped_list_is_completed_from_result_cache() {
    // multus#43, multus#49
    let bench = Bench::new();
    let results = bench.dir.path().join("multus/results");
    fs::create_dir_all(&results).unwrap();
    let whole =
        r#"{"cniVersion":"0.4.0","name":"list","plugins":[{"type":"p","ranges":[1]},{"type":"portmap"}]}"#;
    let entry = json!({"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "list",
        "config": base64(whole), "netns": "/run/netns/a", "cniArgs": [["K", "V"]],
        "capabilityArgs": {"portMappings": [{"hostPort": 80}]},
        "result": {"cniVersion": "0.4.0", "interfaces": [{"name": "eth0"}]}});
    fs::write(results.join("list-c1-eth0"), entry.to_string()).unwrap();
    let stripped = chain(&json!({"cniVersion": "0.4.0", "name": "list", "plugins": [
        {"type": "p"}, {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "extra"}]}));
    bench.attacher().del(&[stripped]).unwrap();
    assert_eq!(bench.fake.names(), ["DEL extra", "DEL portmap", "DEL p"]);
    let config = bench.fake.call("DEL p").config;
    assert_eq!(config["ranges"], json!([1]));
    assert_eq!(config["prevResult"]["interfaces"], json!([{"name": "eth0"}]));
    assert!(bench.results().is_empty());
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn port_mappings_survive_until_del_in_the_result_cache() {
    let mut bench = Bench::with(&json!({"runtimeConfig": {"portMappings": [{"hostPort": 81}]}}));
    let mut delegate = chain(&json!({"cniVersion": "0.4.0", "name": "list", "plugins": [
        {"type": "p", "capabilities": {"portMappings": true}}]}));
    let ports = serde_json::value::RawValue::from_string(r#"[{"hostPort":80}]"#.into()).unwrap();
    delegate.requests.port_mappings = Some(ports);
    let mut master = chain(&json!({"cniVersion": "0.4.0", "name": "a", "plugins": [
        {"type": "a", "capabilities": {"portMappings": true}}]}));
    master.display_name = "ns/a".into();
    bench.add(&[master, delegate]).unwrap();
    let stored = bench.stored();
    assert!(stored[1].requests.port_mappings.is_none());
    bench.attacher().check(&stored).unwrap();
    bench.attacher().del(&stored).unwrap();
    for (plugin, port) in [("a", 81), ("p", 80)] {
        for verb in ["ADD", "CHECK", "DEL"] {
            assert_eq!(
                bench.fake.call(&format!("{verb} {plugin}")).config["runtimeConfig"],
                json!({"portMappings": [{"hostPort": port}]}),
                "{verb} {plugin}"
            );
        }
    }
}

#[test]
fn corrupt_scratch_file_is_replaced_by_result_cache() {
    // multus#46
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    fs::write(bench.scratch(), "[{\"Conf\":").unwrap();
    for _ in 0..2 {
        let stored = bench.attacher().scratch_delegates();
        assert!(matches!(stored, Ok(ScratchState::Corrupt)), "{stored:?}");
    }
    bench.attacher().set_scratch_aside();
    assert!(!bench.scratch().exists());
    assert!(bench.dir.path().join("multus/.c1.corrupt").exists());
    let cached = bench.attacher().cached_delegates();
    bench.attacher().del(&cached).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL b", "DEL a"]);
    assert_eq!(bench.fake.call("DEL b").variables["CNI_IFNAME"], "net1");
    assert!(bench.results().is_empty());
}

#[test]
fn unreadable_scratch_file_is_not_set_aside() {
    // multus#122
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    let aside = bench.dir.path().join("aside");
    fs::rename(bench.scratch(), &aside).unwrap();
    // Stands for a full descriptor table, or a disk that fails for a moment: the file exists and can't be opened.
    symlink(bench.scratch(), bench.scratch()).unwrap();
    let error = bench.attacher().scratch_delegates().unwrap_err();
    assert_eq!(error.code, code::IO, "{error}");
    assert_eq!(
        bench.attacher().clean_up(&bench.results()).unwrap_err().code,
        code::IO
    );
    assert_eq!(bench.fake.names()[2..], [""; 0], "no plugin is called by a guess");
    fs::rename(&aside, bench.scratch()).unwrap();
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL b", "DEL a"]);
}

#[test]
fn unusable_state_does_not_block_del() {
    // multus#46: whatever lies in the place of the files
    for (scratch, cached) in [
        (&b"\xff\xfe"[..], &b"{"[..]),
        (b"{}", b"[]"),
        (
            b"[{\"Bytes\":\"!\"}]",
            b"{\"kind\":\"cniCacheV1\",\"config\":\"!\"}",
        ),
        (b"", b""),
    ] {
        let mut bench = Bench::new();
        bench.add(&[single("a"), single("b")]).unwrap();
        fs::write(bench.scratch(), scratch).unwrap();
        fs::write(bench.dir.path().join("multus/results/b-c1-net1"), cached).unwrap();
        assert_eq!(
            bench.attacher().clean_up(&bench.results()),
            Ok(stale::CleanUp::Done)
        );
        // The readable part.
        assert_eq!(bench.fake.names()[2..], ["DEL a"], "{scratch:?}");
        assert!(!bench.scratch().exists());
    }
    // A broken result cache alone is not needed.
    let mut bench = Bench::new();
    bench.add(&[single("a"), single("b")]).unwrap();
    fs::write(bench.dir.path().join("multus/results/b-c1-net1"), "{").unwrap();
    let stored = bench.stored();
    bench.attacher().del(&stored).unwrap();
    assert_eq!(bench.fake.names()[2..], ["DEL b", "DEL a"]);
    assert!(bench.results().is_empty());
    // No file at all.
    let mut bench = Bench::new();
    bench.add(&[single("a")]).unwrap();
    fs::remove_file(bench.scratch()).unwrap();
    fs::create_dir(bench.scratch()).unwrap();
    let stored = bench.attacher().scratch_delegates();
    assert!(matches!(stored, Ok(ScratchState::Corrupt)), "{stored:?}");
    bench.attacher().set_scratch_aside();
    bench
        .attacher()
        .del(&bench.attacher().cached_delegates())
        .unwrap();
    assert_eq!(bench.fake.names()[1..], ["DEL a"]);
}

#[test]
fn missing_file_and_empty_list_differ() {
    // multus#45 (nothing is called for a list of none)
    let bench = Bench::new();
    let stored = bench.attacher().scratch_delegates();
    assert!(matches!(stored, Ok(ScratchState::Missing)), "{stored:?}");
    fs::create_dir_all(bench.dir.path().join("multus")).unwrap();
    fs::write(bench.scratch(), "[]").unwrap();
    assert!(bench.stored().is_empty());
    bench.attacher().del(&[]).unwrap();
    assert!(bench.fake.names().is_empty());
    assert!(!bench.scratch().exists());
}
