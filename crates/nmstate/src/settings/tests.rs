//! Variables and flags.

use super::*;
use clap::Parser;
use rstest::rstest;

fn settings(variables: &[(&str, &str)]) -> Settings {
    Settings::read(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn defaults_are_those_of_upstream() {
    let settings = settings(&[("NNCP_MAX_RETRIES", "many"), ("NNCP_MAX_BACKOFF_SECONDS", "")]);
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.max_retries, 5);
    assert_eq!(settings.initial_backoff, Duration::from_secs(1));
    assert_eq!(settings.max_backoff, Duration::from_secs(30));
    assert_eq!(settings.probe_host, "root-servers.net");
    assert_eq!(settings.backend, Backend::NetworkManager);
    assert_eq!(settings.ready_file.to_str(), Some("/tmp/healthy"));
    assert_eq!(settings.drift, None);
    assert_eq!(settings.resync, Duration::from_secs(100));
}

#[test]
fn settings_are_read_from_the_environment() {
    let settings = settings(&[
        ("POD_NAMESPACE", "nmstate"),
        ("HANDLER_NAMESPACE", "elsewhere"),
        ("NMSTATE_INSTANCE_NODE_LOCK_FILE", "/var/k8s_nmstate/handler_lock"),
        ("PROBE_DNS_HOST", "example.org"),
        ("NNCP_MAX_RETRIES", "2"),
        ("NNCP_MAX_BACKOFF_SECONDS", "60"),
        ("NNCP_INITIAL_BACKOFF_SECONDS", "3"),
        ("COMPONENT", "network"),
        ("PART_OF", "hco"),
        ("VERSION", ""),
        ("MANAGED_BY", "operator"),
        ("WEFT_NMSTATE_BACKEND", "kernel"),
        ("WEFT_NMSTATE_ORIGINAL_DESIGN", "false"),
        ("WEFT_NMSTATE_DRIFT_SECONDS", "300"),
        ("WEFT_NMSTATE_RESYNC_SECONDS", "30"),
        ("WEFT_NMSTATE_READY_FILE", "/run/ready"),
    ]);
    assert_eq!(settings.namespace, "nmstate");
    assert_eq!(settings.lock_file.to_str(), Some("/var/k8s_nmstate/handler_lock"));
    assert_eq!(settings.probe_host, "example.org");
    assert_eq!(settings.max_retries, 2);
    assert_eq!(settings.max_backoff, Duration::from_secs(60));
    assert_eq!(settings.initial_backoff, Duration::from_secs(3));
    let labels: Vec<(&str, &str)> = settings
        .labels
        .iter()
        .map(|(label, value)| (label.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        labels,
        [
            ("app.kubernetes.io/component", "network"),
            ("app.kubernetes.io/managed-by", "operator"),
            ("app.kubernetes.io/part-of", "hco"),
        ]
    );
    assert_eq!(settings.backend, Backend::Kernel);
    assert!(!settings.original_design);
    assert_eq!(settings.drift, Some(Duration::from_secs(300)));
    assert_eq!(settings.resync, Duration::from_secs(30));
    assert_eq!(settings.ready_file.to_str(), Some("/run/ready"));
}

#[test]
fn back_off_is_between_its_settings() {
    let settings = Settings::default();
    let pauses = [1, 2, u32::MAX].map(|failures| settings.backoff(failures).as_secs());
    assert_eq!(pauses, [1, 2, 30]);
}

#[test]
fn missing_node_name_is_an_error() {
    for value in [None, Some(String::new())] {
        let missing = node(|_| value.clone()).expect_err("no node");
        assert_eq!(missing.to_string(), "NODE_NAME is mandatory");
    }
    assert_eq!(node(|_| Some("node01".to_owned())), Ok("node01".to_owned()));
}

#[rstest]
#[case::nothing(&[], "handler")]
#[case::operator(&["RUN_OPERATOR"], "operator")]
#[case::metrics(&["RUN_METRICS_MANAGER"], "metrics")]
#[case::webhook(&["RUN_METRICS_MANAGER", "RUN_WEBHOOK_SERVER"], "webhook")]
#[case::certificates(&["RUN_WEBHOOK_SERVER", "RUN_CERT_MANAGER", "RUN_METRICS_MANAGER"], "cert-manager")]
fn program_is_selected_by_set_variables(#[case] there: &[&str], #[case] chosen: &str) {
    assert_eq!(program(|name| there.contains(&name)), chosen);
}

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

#[test]
fn flags_of_upstream_are_accepted() {
    let flags = [
        "manager",
        "--v",
        "debug",
        "--zap-time-encoding=iso8601",
        "--zap-devel",
        "--zap-encoder=json",
        "--zap-log-level=info",
        "--zap-stacktrace-level",
        "error",
        "--execution-type",
        "client",
        "--kubeconfig=/tmp/config",
    ];
    let args = Command::try_parse_from(flags).expect("flags").args;
    assert_eq!(args.execution_type, ExecutionType::Client);
    assert_eq!(args.v.as_deref(), Some("debug"));
    assert!(Command::try_parse_from(["manager", "--execution-type=sometimes"]).is_err());
}
