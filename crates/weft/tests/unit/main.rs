//! The program as a whole.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .output()
        .expect("the program runs")
}

fn weft(arguments: &[&str]) -> Output {
    run(Path::new(env!("CARGO_BIN_EXE_weft")), arguments)
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn kubevirt_ipam_with_an_invalid_flag_exits() {
    // kubevirt-ipam#64
    for (flag, code, text) in [
        ("--tls-min-version=9.0", 1, "TLS version not found for \"9.0\""),
        (
            "-tls-cipher-suites=horcrux",
            1,
            "unable to find cipher suite IDs: key not found horcrux",
        ),
        (
            "--tls-curve-preferences=straight",
            1,
            "unable to find curve preference IDs: key not found straight",
        ),
        ("--unheard-of", 2, "--unheard-of"),
    ] {
        // The command line of upstream's image: the MAC pool has the same name, but not this flag.
        let output = Command::new(env!("CARGO_BIN_EXE_weft"))
            .arg0("/manager")
            .args(["--leader-elect", flag])
            .output()
            .expect("the program runs");
        assert_eq!(output.status.code(), Some(code), "{flag}");
        assert!(error(&output).contains(text), "{}", error(&output));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["kubevirt-ipam", "--leader-elect"])
        .env("LOG_LEVEL", "much")
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).starts_with("failed to set log level: "),
        "{}",
        error(&output)
    );
}

#[test]
fn marker_with_an_invalid_flag_exits() {
    // cni-plugins#64
    for (arguments, text) in [
        (&["bridge-marker"][..], "node-name must be set"),
        (
            &["bridge-marker", "-node-name", "n", "-health-probe-port", "0"],
            "health-probe-port must be between 1 and 65535, got 0",
        ),
        (
            &[
                "bridge-marker",
                "-node-name",
                "n",
                "-health-probe-port=70000",
                "-v",
                "3",
                "-logtostderr",
            ],
            "health-probe-port must be between 1 and 65535, got 70000",
        ),
        (&["ovs-marker", "-ovs-socket", "/s"], "node-name must be set"),
        (
            &["ovs-marker", "-node-name", "n", "-v", "3", "-logtostderr"],
            "ovs-socket must be set",
        ),
    ] {
        let output = weft(arguments);
        assert!(!output.status.success());
        assert!(error(&output).contains(text), "{}", error(&output));
    }
}

#[test]
fn program_runs_under_the_names_of_upstream() {
    let root = tempfile::tempdir().expect("a directory");
    let named = |name: &str| {
        let path = root.path().join(name);
        symlink(env!("CARGO_BIN_EXE_weft"), &path).expect("a link");
        path
    };
    let output = run(&named("bridge-marker"), &[]);
    assert!(
        error(&output).contains("node-name must be set"),
        "{}",
        error(&output)
    );

    let output = run(&named("marker"), &["-node-name", "n"]);
    assert!(
        error(&output).contains("ovs-socket must be set"),
        "{}",
        error(&output)
    );

    // The path distinguishes this manager from that of node state.
    let mut mac_pool = Command::new(named("manager"));
    let output = mac_pool.arg0("/manager").arg("--v=production").output();
    let output = output.expect("the program runs");
    assert!(
        error(&output).contains("Failed to load pod namespace from environment variable"),
        "{}",
        error(&output)
    );

    let install_multus = named("install_multus");
    let output = run(&install_multus, &["-d", "/nowhere"]);
    assert_eq!(
        error(&output).trim(),
        "--type is missing or --type has invalid value"
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run(&install_multus, &["-h"]).status.code(), Some(1));

    let (from, to) = (root.path().join("weft-cni"), root.path().join("bin"));
    std::fs::write(&from, "plugin").expect("a binary");
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let output = run(
        &install_multus,
        &["-t", "thick", "-dest-dir", &to, "--from", &from],
    );
    assert!(output.status.success(), "{}", error(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        printed,
        "multus multus-shim copy succeeded!\nmultus passthru copy succeeded!\n"
    );
}

#[test]
fn program_named_multus_is_a_plugin() {
    // multus.md §8.1, §10.9
    let root = tempfile::tempdir().expect("a directory");
    let multus = root.path().join("multus");
    symlink(env!("CARGO_BIN_EXE_weft"), &multus).expect("a link");
    for flag in ["--version", "-v"] {
        let output = run(&multus, &[flag]);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.starts_with("multus: version:"), "{printed}");
        assert!(output.status.success());
    }
    let output = run(&multus, &[]);
    assert!(output.status.success());
    assert_eq!(
        error(&output),
        "meta-plugin that delegates to other CNI plugins\n\
         CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
    );
    let called = Command::new(&multus)
        .env("CNI_COMMAND", "VERSION")
        .env("CNI_PATH", "/x")
        .output()
        .expect("it runs");
    assert_eq!(
        String::from_utf8_lossy(&called.stdout),
        "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
    );
}

#[test]
fn generators_of_parent_operators_run_under_their_names() {
    let root = tempfile::tempdir().expect("a directory");
    let named = |name: &str| {
        let path = root.path().join(name);
        symlink(env!("CARGO_BIN_EXE_weft"), &path).expect("a link");
        path
    };
    let output = run(&named("manifest-templator"), &["--version=1.2.3"]);
    assert_eq!(error(&output), "Must specify input file\n");
    assert_eq!(output.status.code(), Some(1));

    let template = root.path().join("package.yaml.in");
    std::fs::write(&template, "currentCSV: operator.{{.Version}}\n").expect("a template");
    let input = format!("--input-file={}", template.display());
    let flags = [
        "--csv-version=0",
        "-version",
        "1.2.3",
        input.as_str(),
        "--dump-crds",
    ];
    named("csv-generator");
    for program in ["manifest-templator", "csv-generator"] {
        let program = root.path().join(program);
        let output = run(&program, &flags);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            printed.starts_with("currentCSV: operator.1.2.3\n---\napiVersion: apiextensions.k8s.io/v1\n"),
            "{printed}{}",
            error(&output)
        );
    }
    let output = run(
        &root.path().join("csv-generator"),
        &["--version=1.2.3", "--unheard-of=1"],
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("\nkind: ClusterServiceVersion\n"), "{printed}");
    assert!(!printed.contains("CustomResourceDefinition\n"), "{printed}");
}

#[test]
fn operator_with_an_unknown_flag_exits() {
    for flag in ["--zap-colour", "--zap-encoder=xml", "--leader-elect"] {
        let output = weft(&["operator", flag]);
        assert!(!output.status.success());
        assert!(
            error(&output).contains(flag.split('=').next().expect("a name")),
            "{}",
            error(&output)
        );
    }
    // All flags are known, but the environment is incomplete.
    let output = weft(&[
        "operator",
        "-zap-devel",
        "--zap-time-encoding=epoch",
        "--zap-stacktrace-level=error",
    ]);
    assert_eq!(
        error(&output).lines().last(),
        Some("environment variable OPERATOR_NAMESPACE has to be set")
    );
}

#[test]
fn release_is_written_completely() {
    let root = tempfile::tempdir().expect("a directory");
    let dir = root.path().join("release").display().to_string();
    let image = "--image=r.example/weft:v1";
    let chosen = "--operand-image=OVS_CNI_IMAGE=r.example/ovs:1";
    let output = weft(&[
        "manifests",
        image,
        chosen,
        "--version=1.2.3",
        "--version-replaces=1.2.2",
        "--dir",
        &dir,
    ]);
    assert!(output.status.success(), "{}", error(&output));
    let read = |name: &str| std::fs::read_to_string(Path::new(&dir).join(name)).expect(name);
    let tree = "manifests/cluster-network-addons/1.2.3";
    let csv = "cluster-network-addons-operator.1.2.3.clusterserviceversion.yaml";
    for name in [
        "namespace.yaml".to_owned(),
        format!("{tree}/namespace.yaml"),
        "chart/Chart.yaml".to_owned(),
        "bundle/metadata/annotations.yaml".to_owned(),
    ] {
        assert!(!read(&name).is_empty());
    }
    let csv = read(&format!("{tree}/{csv}"));
    for text in [
        "replaces: cluster-network-addons-operator.1.2.2",
        "image: r.example/ovs:1",
    ] {
        assert!(csv.contains(text), "{text}:\n{csv}");
    }
    assert!(read("operator.yaml").contains("value: r.example/ovs:1"));
    let refused = weft(&["manifests", image, "--version=v1", "--dir", &dir]);
    assert!(
        error(&refused).contains("version \"v1\" is not like 1.2.3"),
        "{}",
        error(&refused)
    );
}

/// Runs the multus daemon with these keys in its configuration. The daemon exits because it finds no cluster.
fn multus_daemon(dir: &Path, keys: &str) -> Output {
    let config = dir.join("daemon-config.json");
    std::fs::write(&config, keys).expect("a configuration");
    Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["multus-daemon", "-config"])
        .arg(config)
        .env_remove("WEFT_LOG")
        .env("KUBECONFIG", dir.join("none"))
        .output()
        .expect("the program runs")
}

#[test]
fn multus_daemon_logs_to_the_configured_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("logs/multus.log");
    let keys = |level: &str, to_stderr: bool| {
        format!(
            r#"{{"logFile": "{}", "logLevel": "{level}", "logToStderr": {to_stderr}}}"#,
            log.display()
        )
    };
    let output = multus_daemon(dir.path(), &keys("error", false));
    assert!(!output.status.success());
    assert_eq!(error(&output), "");
    let text = std::fs::read_to_string(&log).expect("the log");
    let (time, rest) = text.split_once(' ').expect("a line");
    assert_eq!(time.len(), "2026-01-02T03:04:05Z".len(), "{text}");
    assert!(rest.starts_with("[error] "), "{text}");

    // The log goes to both outputs, and the file has one more line.
    let output = multus_daemon(dir.path(), &keys("verbose", true));
    assert!(error(&output).contains("Z [error] "), "{}", error(&output));
    let lines = std::fs::read_to_string(&log).expect("the log").lines().count();
    assert_eq!(lines, text.lines().count() * 2);

    // Only the reason of the exit is printed.
    let output = multus_daemon(dir.path(), &keys("panic", true));
    assert!(!error(&output).contains("[error]") && !error(&output).is_empty());
    assert_eq!(
        std::fs::read_to_string(&log).expect("the log").lines().count(),
        lines
    );

    let output = multus_daemon(dir.path(), r#"{"logLevel": "loud"}"#);
    let text = error(&output);
    assert!(
        text.starts_with("multus logging: cannot set logging level to loud\n"),
        "{text}"
    );
    assert!(text.contains("Z [error] "), "{text}");

    // Without a usable file, the log goes to standard error.
    let output = multus_daemon(dir.path(), r#"{"logFile": "/proc/none/multus.log"}"#);
    let text = error(&output);
    assert!(
        text.starts_with("multus logging: cannot open /proc/none/multus.log: "),
        "{text}"
    );
    assert!(text.contains("Z [error] "), "{text}");
}

#[test]
fn explain_without_a_kubeconfig_names_the_problem() {
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["explain", "pod", "web", "--kubeconfig", "/none"])
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(2));
    let text = error(&output);
    assert!(text.starts_with("error: no usable kubeconfig: "), "{text}");
}

#[test]
fn nad_webhook_needs_its_namespace() {
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .arg("nad-webhook")
        .env_remove("POD_NAMESPACE")
        .output()
        .expect("the program runs");
    assert!(!output.status.success());
    assert!(
        error(&output).contains("--namespace <NAMESPACE>"),
        "{}",
        error(&output)
    );
}

#[test]
fn dynamic_networks_needs_its_configuration() {
    // multus#91
    let root = tempfile::tempdir().expect("a directory");
    let program = root.path().join("dynamic-networks-controller");
    symlink(env!("CARGO_BIN_EXE_weft"), &program).expect("a link");
    let config = root.path().join("config.json");
    let flag = format!("-config={}", config.display());
    let missing = run(&program, &[&flag, "-v=5"]);
    assert_eq!(missing.status.code(), Some(1), "{}", error(&missing));
    assert!(
        error(&missing).contains("failed to read the config file's contents: "),
        "{}",
        error(&missing)
    );
    assert!(error(&missing).contains("dynamic-networks-controller: built from [SHA-NOT-FOUND]"));
    std::fs::write(&config, "{").expect("a file");
    let broken = run(&program, &[&flag, "-v=5"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(
        error(&broken).contains("failed to unmarshall the daemon configuration: "),
        "{}",
        error(&broken)
    );
    // The configuration names no node.
    std::fs::write(&config, "{}").expect("a file");
    let nowhere = run(&program, &[&flag, "-v=5"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", error(&nowhere));
}

#[test]
fn curl_runs_the_probe_of_upstreams_dynamic_networks_controller() {
    let root = tempfile::tempdir().expect("a directory");
    let curl = root.path().join("curl");
    symlink(env!("CARGO_BIN_EXE_weft"), &curl).expect("a link");
    let socket = root.path().join("multus.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let answers = std::thread::spawn(move || {
        ["200 OK", "500 Internal Server Error"].map(|status| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).expect("a request");
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).expect("an answer");
            String::from_utf8_lossy(&request[..length]).into_owned()
        })
    });
    let socket = socket.display().to_string();
    let probe = ["--fail", "--unix-socket", &socket, "localhost/healthz"];
    assert!(run(&curl, &probe).status.success());
    assert!(!run(&curl, &probe).status.success(), "an error is one");
    let requests = answers.join().expect("the daemon");
    assert!(
        requests[0].starts_with("POST /healthz HTTP/1.1\r\n"),
        "{requests:?}"
    );
    // The server is gone, and other command lines of curl are refused.
    assert!(!run(&curl, &probe).status.success());
    for other in [
        &["--fail", "--unix-socket", &socket, "localhost/metrics"][..],
        &["--unix-socket", &socket, "localhost/healthz"],
        &["http://localhost/healthz"],
    ] {
        assert!(!run(&curl, other).status.success(), "{other:?}");
    }
}

#[test]
fn help_lists_every_command() {
    let output = weft(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8_lossy(&output.stdout);
    for command in [
        "manifests",
        "render",
        "diff",
        "status",
        "operator",
        "manifest-templator",
        "csv-generator",
        "thin-entrypoint",
        "kubeconfig-generator",
        "cert-approver",
        "install-multus",
        "install-plugins",
        "bridge-marker",
        "macvtap-device-plugin",
        "ovs-marker",
        "dynamic-networks",
    ] {
        assert!(
            help.contains(&format!("\n  {command}")),
            "{command} is missing:\n{help}"
        );
    }
}

/// Runs the program with this standard input.
fn fed(program: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input.as_bytes()).expect("input");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

const CONFIGURATION: &str = "apiVersion: networkaddonsoperator.network.kubevirt.io/v1\r\nkind: \
                             NetworkAddonsConfig\r\nmetadata: {name: cluster}\r\nspec: {multus: {}}\r\n";

#[test]
fn commands_for_users_are_a_kubectl_plugin() {
    let root = tempfile::tempdir().expect("a directory");
    let plugin = root.path().join("kubectl-weft");
    symlink(env!("CARGO_BIN_EXE_weft"), &plugin).expect("a link");
    let arguments = ["render", "-f-", "-ojson", "--image=weft:1"];
    let by_kubectl = fed(&plugin, &arguments, CONFIGURATION);
    assert!(by_kubectl.status.success(), "{}", error(&by_kubectl));
    let list: serde_json::Value = serde_json::from_slice(&by_kubectl.stdout).expect("JSON");
    assert_eq!(list["items"][0]["kind"], "Namespace");
    let itself = fed(Path::new(env!("CARGO_BIN_EXE_weft")), &arguments, CONFIGURATION);
    assert_eq!(by_kubectl.stdout, itself.stdout);

    let help = run(&plugin, &["diff", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("Usage: kubectl weft diff [OPTIONS]"), "{help}");
    for line in help.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let all = run(&plugin, &["--help"]);
    let all = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(all.contains("\n  status") && !all.contains("operator  "), "{all}");
    let who = run(&plugin, &["macpool", "who", "--help"]);
    let who = String::from_utf8_lossy(&who.stdout).into_owned();
    assert!(
        who.contains("Usage: kubectl weft macpool who [OPTIONS] <MAC>"),
        "{who}"
    );
}

#[test]
fn question_that_fails_exits_with_its_own_code() {
    let weft = Path::new(env!("CARGO_BIN_EXE_weft"));
    for (arguments, code, text) in [
        (&["render"][..], 2, "--filename"),
        (&["diff", "--nonsense"], 2, "--nonsense"),
        (&["status", "-o", "xml"], 2, "xml"),
        (
            &["diff", "--kubeconfig", "/nowhere"],
            2,
            "Name a kubeconfig by --kubeconfig FILE",
        ),
        (
            &["status", "--kubeconfig", "/nowhere"],
            2,
            "Name a kubeconfig by --kubeconfig FILE",
        ),
        (&["macpool"], 2, "usage"),
        (
            &["macpool", "usage", "--kubeconfig", "/nowhere"],
            2,
            "Name a kubeconfig by --kubeconfig FILE",
        ),
        (
            &["macpool", "who", "zz"],
            2,
            "address zz: invalid MAC address\nWrite it as 02:00:00:00:00:05",
        ),
        (
            &["render", "-f", "/nowhere"],
            1,
            "cannot read /nowhere: No such file",
        ),
        (&["render", "-f", "/"], 1, "cannot read /: Is a directory"),
    ] {
        let output = run(weft, arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?} {}",
            error(&output)
        );
        assert!(error(&output).contains(text), "{arguments:?} {}", error(&output));
    }
    let empty = fed(weft, &["render", "-f", "-"], "");
    assert_eq!(empty.status.code(), Some(1));
    assert!(
        error(&empty).contains("standard input is empty"),
        "{}",
        error(&empty)
    );
    // Standard error cannot be written.
    for (arguments, code) in [
        (&["status", "--kubeconfig", "/nowhere"][..], 2),
        (&["bridge-marker"], 1),
    ] {
        let full = File::options().write(true).open("/dev/full");
        let mut child = Command::new(weft);
        child.args(arguments).stderr(full.expect("the device"));
        let status = child.status().expect("the program runs");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    let binary = run(weft, &["render", "-f", env!("CARGO_BIN_EXE_weft")]);
    assert_eq!(binary.status.code(), Some(1));
    assert!(
        error(&binary).contains("too large for a manifest") || error(&binary).contains("is not UTF-8 text")
    );
}

#[test]
fn waiting_installer_exits_at_sigterm() {
    let root = tempfile::tempdir().expect("a directory");
    let (from, to) = (root.path().join("weft-cni"), root.path().join("bin"));
    std::fs::write(&from, "plugin").expect("a binary");
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["install-plugins", "--host-dir", "/opt/cni/bin", "bridge"])
        .args([Path::new("--to"), &to, Path::new("--from"), &from])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert_eq!(line, "Entering sleep... (success)\n");
    let killed = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .expect("kill runs");
    assert!(killed.success());
    assert!(child.wait().expect("it ends").success());
    assert_eq!(
        std::fs::read_to_string(to.join("cnv-bridge")).expect("a file"),
        "plugin"
    );
}

#[test]
fn bridge_marker_is_healthy_during_an_outage_of_the_api_server() {
    // cni-plugins#63
    let root = tempfile::tempdir().expect("a directory");
    let kubeconfig = root.path().join("kubeconfig");
    // The port of the API server is closed.
    std::fs::write(&kubeconfig, self::kubeconfig("http://127.0.0.1:1", "")).expect("a file");
    let port = cluster::free_port().expect("a free port");
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args([
            "bridge-marker",
            "-node-name",
            "n",
            "-health-probe-port",
            &port.to_string(),
        ])
        .args([Path::new("--kubeconfig"), &kubeconfig])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let log = BufReader::new(child.stderr.take().expect("its log"));
    let failures = log
        .lines()
        .map_while(Result::ok)
        .filter(|line| line.contains("cannot read the node"));
    assert_eq!(failures.take(2).count(), 2, "it ended instead of trying again");

    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream
        .write_all(b"GET /healthz HTTP/1.0\r\n\r\n")
        .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.lines().next().unwrap_or_default();
    assert!(
        status.contains(" 200 ") && answer.ends_with("\r\n\r\nok"),
        "{answer}"
    );
    assert!(child.try_wait().expect("its state").is_none(), "it lives");
    child.kill().and_then(|()| child.wait()).expect("ended");
}

/// A kubeconfig of one context, whose cluster has this server.
fn kubeconfig(server: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{server}'{more}}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{}}}}]}}"
    )
}

/// Error of `weft status` with a kubeconfig and these variables.
fn status(text: &str, variables: &[(&str, &str)]) -> String {
    let root = tempfile::tempdir().expect("a directory");
    let kubeconfig = root.path().join("kubeconfig");
    std::fs::write(&kubeconfig, text).expect("a file");
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args([Path::new("status"), Path::new("--kubeconfig"), &kubeconfig])
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .envs(variables.iter().copied())
        .output();
    error(&output.expect("the program runs"))
}

#[test]
fn commands_use_the_proxy_unless_the_environment_excepts_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let proxy = format!("http://{}", listener.local_addr().expect("an address"));
    // It refuses every request.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = String::new();
            BufReader::new(&stream)
                .read_line(&mut request)
                .expect("a request");
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n");
        }
    });
    let unanswered = "error: the API server does not answer: ";
    let refused = format!("proxy {proxy}: tunnel error: unsuccessful");
    let away = kubeconfig("https://192.0.2.1:6443", "");
    let text = status(&away, &[("HTTPS_PROXY", &proxy)]);
    assert!(text.starts_with(unanswered) && text.contains(&refused), "{text}");
    // The port of the API server is closed.
    let here = kubeconfig("https://127.0.0.1:1", "");
    for (proxy, exceptions) in [
        (&*proxy, ""),
        (&*proxy, "127.0.0.0/8"),
        ("http://a b", "127.0.0.1"),
    ] {
        let text = status(&here, &[("HTTPS_PROXY", proxy), ("NO_PROXY", exceptions)]);
        assert!(
            text.starts_with(unanswered) && text.contains("Connection refused"),
            "{text}"
        );
    }
    let named = kubeconfig("https://127.0.0.1:1", &format!(", proxy-url: '{proxy}'"));
    let text = status(&named, &[("NO_PROXY", "*")]);
    assert!(text.starts_with(unanswered) && text.contains(&refused), "{text}");
    for url in ["https://127.0.0.1:1", "http://a b"] {
        let text = status(&away, &[("HTTPS_PROXY", url)]);
        assert!(
            text.starts_with("error: cannot use the proxy of HTTPS_PROXY: "),
            "{text}"
        );
    }
}

#[test]
fn components_merge_the_files_of_kubeconfig() {
    let root = tempfile::tempdir().expect("a directory");
    let [first, second] = ["first", "second"].map(|name| root.path().join(name));
    // The first file has the context, the second one its cluster, whose port is closed.
    let context = "{apiVersion: v1, kind: Config, current-context: d, \
                   contexts: [{name: d, context: {cluster: c, user: u}}]}";
    std::fs::write(&first, context).expect("a file");
    std::fs::write(&second, kubeconfig("http://127.0.0.1:1", "")).expect("a file");
    let port = cluster::free_port().expect("a free port").to_string();
    let missing = root.path().join("missing");
    let files = std::env::join_paths([&missing, &first, &second]).expect("a list");
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["bridge-marker", "-node-name", "n", "-health-probe-port", &port])
        .env("KUBECONFIG", &files)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let log = BufReader::new(child.stderr.take().expect("its log"));
    let first_line = log
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("cannot "));
    let text = first_line.unwrap_or_default();
    assert!(text.contains("cannot read the node"), "{text}");
    child.kill().and_then(|()| child.wait()).expect("ended");
    // Commands merge them too.
    let run = |files: &OsStr| {
        let output = Command::new(env!("CARGO_BIN_EXE_weft"))
            .arg("status")
            .env("KUBECONFIG", files)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .output();
        error(&output.expect("the program runs"))
    };
    let text = run(&files);
    assert!(
        text.starts_with("error: the API server does not answer: "),
        "{text}"
    );
    let text = run(missing.as_os_str());
    assert!(
        text.starts_with("error: no usable kubeconfig: ") && text.contains(&*missing.to_string_lossy()),
        "{text}"
    );
}

#[test]
fn macvtap_device_plugin_with_an_invalid_configuration_exits() {
    // cni-plugins#68 (broken config)
    let root = tempfile::tempdir().expect("a directory");
    let plugin = root.path().join("macvtap-deviceplugin");
    symlink(env!("CARGO_BIN_EXE_weft"), &plugin).expect("a link");
    let run = |config: Option<&str>| {
        let mut command = Command::new(&plugin);
        command
            .args(["-v", "3", "-logtostderr"])
            .env_remove("DP_MACVTAP_CONF");
        command.envs(config.map(|config| ("DP_MACVTAP_CONF", config)));
        command.output().expect("the program runs")
    };
    for (config, text) in [
        (None, "DP_MACVTAP_CONF environment variable must be set"),
        (Some("not JSON"), "Error reading config: "),
        (Some("{}"), "Error reading config: "),
    ] {
        let output = run(config);
        assert_eq!(output.status.code(), Some(1), "{config:?}");
        assert!(error(&output).contains(text), "{}", error(&output));
    }
}

#[test]
fn macvtap_device_plugin_waits_for_kubelets_directory_and_exits_at_sigterm() {
    let root = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args([Path::new("macvtap-device-plugin"), Path::new("--kubelet-dir")])
        .arg(root.path().join("missing"))
        .env(
            "DP_MACVTAP_CONF",
            r#"[{"name": "a", "lowerDevice": "no-such-link"}]"#,
        )
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let log = BufReader::new(child.stderr.take().expect("its log"));
    let failures = log
        .lines()
        .map_while(Result::ok)
        .filter(|line| line.contains("cannot watch kubelet's directory") && line.contains("--kubelet-dir"));
    assert_eq!(failures.take(2).count(), 2, "it ended instead of trying again");
    let killed = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .expect("kill runs");
    assert!(killed.success());
    assert!(child.wait().expect("it ends").success());
}

// kubemacpool#87, kubemacpool#9
#[test]
fn mac_pool_with_an_invalid_environment_exits() {
    let intervals = |rotate| {
        [
            ("RUN_CERT_MANAGER", ""),
            ("CA_ROTATE_INTERVAL", "8760h0m0s"),
            ("CA_OVERLAP_INTERVAL", "24h0m0s"),
            ("CERT_ROTATE_INTERVAL", rotate),
            ("CERT_OVERLAP_INTERVAL", "24h0m0s"),
        ]
    };
    let long = intervals("8761h");
    let range = |start| {
        [
            ("POD_NAME", "p"),
            ("RANGE_START", start),
            ("RANGE_END", "02:00:00:00:00:ff"),
        ]
    };
    let (none, bad) = (range("02:00:00:00:00:00"), range("zz"));
    for (environment, text) in [
        (
            &long[..],
            "failed validating certificate options, 'CertRotateInterval' has to be <= 'CARotateInterval'",
        ),
        (
            &long[..4],
            "Failed to load CERT_OVERLAP_INTERVAL from environment",
        ),
        (&none[..1], "Environment variable RANGE_START don't exist"),
        (&bad, "address zz: invalid MAC address"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(["kubemacpool", "--v=production"])
            .env("POD_NAMESPACE", "pool")
            .envs(environment.iter().copied())
            .output()
            .expect("the program runs");
        assert_eq!(output.status.code(), Some(1), "{environment:?}");
        assert!(error(&output).contains(text), "{}", error(&output));
    }
}

// kubemacpool#90
#[test]
fn mac_pool_with_an_unknown_tls_version_exits() {
    let output = weft(&["kubemacpool", "--tls-min-version=VersionTLS99"]);
    assert_eq!(output.status.code(), Some(1));
    let text = error(&output);
    assert!(
        text.contains("invalid TLS version") && text.contains("VersionTLS99"),
        "{text}"
    );
}

#[test]
fn mac_pool_with_an_unknown_flag_exits_like_go() {
    for arguments in [
        &["kubemacpool", "-wait-tim=3"][..],
        &["kubemacpool", "--wait-time=soon"],
    ] {
        let output = weft(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            error(&output).contains("Usage: ") || error(&output).contains("--help"),
            "{}",
            error(&output)
        );
    }
    assert_eq!(weft(&["kubemacpool", "-help"]).status.code(), Some(0));
}

#[test]
fn programs_of_node_state_are_names_and_commands() {
    let root = tempfile::tempdir().expect("a directory");
    for name in ["weft-nmstate", "nmstatectl", "manager", "bash", "cat"] {
        symlink(env!("CARGO_BIN_EXE_weft"), root.path().join(name)).expect("a link");
    }
    let named = |name: &str, arguments: &[&str]| run(&root.path().join(name), arguments);
    let handler = named("weft-nmstate", &["handler", "--help"]);
    assert!(String::from_utf8_lossy(&handler.stdout).contains("weft-nmstate handler"));
    let families = named("manager", &["-dump-metric-families"]);
    let families = String::from_utf8_lossy(&families.stdout).into_owned();
    assert!(families.contains("kubernetes_nmstate"), "{families}");
    let ready = root.path().join("healthy");
    let file = ready.display().to_string();
    assert_eq!(named("cat", &[&file]).status.code(), Some(1));
    std::fs::write(&ready, "").expect("a file");
    assert_eq!(named("cat", &[&file]).status.code(), Some(0));
    let version = named("nmstatectl", &["--version"]);
    assert_eq!(
        named("bash", &["-c", "nmstatectl --version 2>&1"]).stdout,
        version.stdout
    );
    assert!(!version.stdout.is_empty(), "{}", error(&version));

    let preview = weft(&["nmstate", "preview", "--help"]);
    assert!(
        String::from_utf8_lossy(&preview.stdout).contains("policy"),
        "{}",
        error(&preview)
    );
    let help = weft(&["nmstate", "--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("preview"));
}

#[test]
fn secondary_dns_with_an_invalid_flag_exits_like_go() {
    // secondary-dns §2
    let root = tempfile::tempdir().expect("a directory");
    let coredns = root.path().join("coredns");
    symlink(env!("CARGO_BIN_EXE_weft"), &coredns).expect("a link");
    for arguments in [
        &["secondary-dns", "--no-such-flag"][..],
        &["secondary-dns", "monitor", "-zap-encoder=xml"],
    ] {
        let output = weft(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", error(&output));
    }
    assert_eq!(run(&coredns, &["-no-such-flag"]).status.code(), Some(2));
    let output = run(&coredns, &["-conf", "/no/such/Corefile"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).starts_with("cannot read the Corefile /no/such/Corefile"),
        "{}",
        error(&output)
    );
    let corefile = root.path().join("Corefile");
    std::fs::write(&corefile, ".:5353 {\n    cache 30\n}\n").expect("a file");
    let output = weft(&["secondary-dns", "serve", &format!("-conf={}", corefile.display())]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error(&output), "Corefile:2: unsupported directive 'cache'\n");
    let mut manager = Command::new(root.path().join("coredns"));
    let output = manager
        .arg0("/manager")
        .env("NAME_SERVER_IP", "")
        .env("DOMAIN", "a..b")
        .output();
    let output = output.expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error(&output), "DOMAIN \"a..b\" is not a DNS name\n");
}

#[test]
fn secondary_dns_exits_at_once_at_sigterm() {
    // secondary-dns#60
    let root = tempfile::tempdir().expect("a directory");
    let port = cluster::free_port().expect("a free port");
    let corefile = root.path().join("Corefile");
    let zones = root.path().display();
    std::fs::write(
        &corefile,
        format!(".:{port} {{\n auto {{\n  directory {zones}\n }}\n}}\n"),
    )
    .expect("a file");
    std::fs::write(
        root.path().join("db.vm"),
        "@ 1 SOA ns.vm. email.vm. (1 2 3 4 5)\na 1 A 10.0.0.1\n",
    )
    .expect("a file");
    let mut server = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["secondary-dns", "-conf"])
        .arg(&corefile)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut lines = BufReader::new(server.stderr.take().expect("its log")).lines();
    let inserted = format!("[INFO] plugin/auto: Inserting zone `vm.' from: {zones}/db.vm");
    assert!(lines.any(|line| line.is_ok_and(|line| line == inserted)));
    // One client has sent nothing yet, and one client is in the middle of its query.
    let _silent = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let mut slow = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    slow.write_all(&[0, 23, 0]).expect("sent");
    let began = std::time::Instant::now();
    let ended = Command::new("kill")
        .args(["-TERM", &server.id().to_string()])
        .status();
    assert!(ended.expect("kill runs").success());
    let status = server.wait().expect("it ends");
    assert!(status.success(), "{status}");
    // The product allows one second. The rest is for slow machines: silent clients are disconnected after ten.
    assert!(
        began.elapsed() < std::time::Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
}
