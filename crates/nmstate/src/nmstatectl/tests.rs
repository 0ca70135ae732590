use rstest::rstest;
use tempfile::TempDir;

use super::*;

fn parsed(arguments: &[&str]) -> Command {
    let argv = std::iter::once("nmstatectl").chain(arguments.iter().copied());
    let cli = Cli::try_parse_from(argv).unwrap_or_else(|error| panic!("{error}"));
    cli.command.expect("a command")
}

/// The program's output for these arguments; `{}` stands for a file with the text.
async fn printed(arguments: &[&str], text: &str) -> Result<String, Error> {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, text).expect("a file");
    let file = file.to_str().expect("a path");
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|argument| if *argument == "{}" { file } else { argument })
        .collect();
    answer(parsed(&arguments)).await
}

#[rstest]
#[case(&["s", "eth1", "-vv", "--json", "-k"])]
#[case(&["show", "-r", "-s"])]
#[case(&["-v", "show"])]
#[case(&["a", "--no-commit", "--timeout", "480", "-k"])]
#[case(&["set", "file", "other", "--no-verify", "--memory-only"])]
#[case(&["commit"])]
#[case(&["commit", "/org/freedesktop/NetworkManager/Checkpoint/1"])]
#[case(&["rollback"])]
#[case(&["p", "policy.yml", "--current", "c", "--captured", "s", "--output-captured", "o", "--json"])]
#[case(&["st", "file"])]
#[case(&["statistic", "--current", "c"])]
#[case(&["gr", "file", "--current", "c"])]
#[case(&["gc", "file"])]
#[case(&["fmt"])]
#[case(&["format", "-"])]
#[case(&["version"])]
fn upstream_command_lines_are_accepted(#[case] arguments: &[&str]) {
    parsed(arguments);
}

#[rstest]
#[case(&["apply", "--timeout", "soon"])]
#[case(&["shwo"])]
#[case(&["show", "eth1", "eth2"])]
fn other_command_lines_are_refused(#[case] arguments: &[&str]) {
    let argv = std::iter::once("nmstatectl").chain(arguments.iter().copied());
    Cli::try_parse_from(argv).expect_err("no such thing");
}

#[tokio::test]
async fn version_has_upstream_format() {
    let version = printed(&["version"], "").await.expect("a version");
    assert_eq!(version, "nmstatectl 2.2.62\n");
}

#[tokio::test]
async fn format_validates_and_rewrites() {
    let yaml = "interfaces:\n- name: eth1\n  type: ethernet\n  mtu:\u{a0}'1400'\n";
    let formatted = printed(&["fmt", "{}"], yaml).await.expect("a document");
    assert!(
        formatted.starts_with("---\ninterfaces:\n- ") && formatted.contains("  mtu: 1400\n"),
        "{formatted}"
    );
    let json = printed(&["fmt", "{}", "--json"], yaml).await.expect("a document");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["interfaces"][0]["mtu"], 1400);
    let wrong = printed(
        &["fmt", "{}"],
        "interfaces:\n- name: eth1\n  type: ethernet\n  mtuu: 1\n",
    )
    .await;
    let text = wrong.expect_err("no such key").to_string();
    assert!(
        text.starts_with("NmstateError: InvalidArgument: ") && text.contains("mtuu"),
        "{text}"
    );
    let policy = "capture:\n  gw: routes.running.destination==\"0.0.0.0/0\"\ndesiredState: {}\n";
    let formatted = printed(&["format", "{}"], policy).await.expect("a policy");
    assert!(formatted.contains("gw:"), "{formatted}");
}

const NIC: &str = "interfaces:\n- name: eth1\n  type: ethernet\n  state: up\n  mtu: 1500\n";

#[tokio::test]
async fn configuration_revert_and_statistic_need_no_host() {
    let dummy = "interfaces:\n- name: dummy0\n  type: dummy\n  state: up\n  ipv4: {enabled: true, address: [{ip: 192.0.2.5, prefix-length: 24}]}\n";
    let files = printed(&["gc", "{}"], dummy).await.expect("files");
    let files: Value = serde_yaml::from_str(&files).expect("YAML");
    assert_eq!(files["NetworkManager"][0][0], "dummy0.nmconnection");
    let file = files["NetworkManager"][0][1].as_str().expect("text");
    assert!(file.contains("192.0.2.5/24"), "{file}");

    let directory = TempDir::new().expect("a directory");
    let current = directory.path().join("current");
    fs::write(&current, NIC).expect("a file");
    let current = current.to_str().expect("a path");
    let higher = NIC.replace("1500", "9000");
    let revert = printed(&["gr", "{}", "--current", current], &higher).await;
    let revert: Value = serde_yaml::from_str(&revert.expect("a document")).expect("YAML");
    assert_eq!(
        (&revert["interfaces"][0]["name"], &revert["interfaces"][0]["mtu"]),
        (&json!("eth1"), &json!(1500))
    );
    let lldp = "interfaces:\n- name: eth1\n  type: ethernet\n  state: up\n  lldp: {enabled: true}\n";
    let statistic = printed(&["st", "{}", "--current", current, "--json"], lldp).await;
    let statistic: Value = serde_json::from_str(&statistic.expect("a statistic")).expect("JSON");
    assert_eq!(statistic["features"], json!(["lldp"]));
}

#[tokio::test]
async fn policy_is_filled_in_and_captures_are_stored() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    fs::write(path("current"), NIC).expect("a file");
    let policy = "capture:\n  nic: interfaces.name==\"eth1\"\ndesiredState:\n  interfaces:\n  - name: br1\n    type: linux-bridge\n    state: up\n    bridge: {port: [{name: '{{ capture.nic.interfaces.0.name }}'}]}\n";
    let captured = path("captured");
    let output = [
        "p",
        "{}",
        "--current",
        &path("current"),
        "--output-captured",
        &captured,
        "--json",
    ];
    let document = printed(&output, policy).await.expect("a document");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document["interfaces"][0]["bridge"]["port"][0]["name"], "eth1");
    let cache = read(&captured).expect("states");
    assert_eq!(
        (
            &cache["nic"]["metaInfo"]["version"],
            &cache["nic"]["state"]["interfaces"][0]["name"]
        ),
        (&json!("0"), &json!("eth1"))
    );
    // Without a current state: only the cache can provide the values.
    let again = printed(&["policy", "{}", "--captured", &captured, "--json"], policy).await;
    let again: Value = serde_json::from_str(&again.expect("a document")).expect("JSON");
    assert_eq!(again, document);
    let missing = printed(&["policy", "{}", "--current", &path("none")], policy).await;
    assert!(
        missing
            .expect_err("no file")
            .to_string()
            .starts_with(&path("none"))
    );
}

#[test]
fn show_of_an_interface_includes_its_routes_and_rules() {
    let route = |interface: &str, table: u32| json!({"destination": "0.0.0.0/0", "next-hop-interface": interface, "table-id": table});
    let state = json!({
        "hostname": {"running": "x"},
        "route-rules": {"config": [{"route-table": 200}, {"route-table": 201}]},
        "routes": {"running": [route("eth0", 254)], "config": [route("eth0", 254), route("eth1", 200)]},
        "interfaces": [{"name": "eth0"}, {"name": "eth1"}],
    });
    assert_eq!(
        of_interface(&state, "eth1").expect("it is there"),
        json!({
            "route-rules": {"config": [{"route-table": 200}]},
            "routes": {"running": [], "config": [route("eth1", 200)]},
            "interfaces": [{"name": "eth1"}],
        })
    );
    let error = of_interface(&state, "eth7").expect_err("no such interface");
    assert_eq!(error.to_string(), "Interface eth7 not found");
}
