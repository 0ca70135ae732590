use super::*;
use clap::Parser;
use std::collections::BTreeMap;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

const WHOLE: [(&str, &str); 4] = [
    ("POD_NAMESPACE", "pool"),
    ("POD_NAME", "manager-1"),
    ("RANGE_START", "02:00:00:00:00:00"),
    ("RANGE_END", "02:FF:FF:FF:FF:FF"),
];

fn args(flags: &[&str]) -> Args {
    let argv = ["kubemacpool"].iter().chain(flags);
    Command::try_parse_from(argv).expect("flags").args
}

/// Reads flags and a complete environment with changed variables; `None` removes one.
fn read(flags: &[&str], changes: &[(&str, Option<&str>)]) -> Result<Settings, String> {
    let mut environment: BTreeMap<_, _> = WHOLE.into_iter().collect();
    for (name, value) in changes {
        match value {
            Some(value) => environment.insert(name, value),
            None => environment.remove(name),
        };
    }
    let lookup = |name: &str| environment.get(name).map(|value| (*value).to_owned());
    Settings::read(&args(flags), lookup).map_err(|error| kube_kit::client::chain(&error))
}

#[test]
fn settings_default_to_those_of_upstream() {
    let settings = read(&[], &[]).expect("settings");
    assert_eq!((&*settings.namespace, &*settings.pod), ("pool", "manager-1"));
    assert_eq!(settings.range.start().to_string(), "02:00:00:00:00:00");
    assert_eq!(settings.range.end().to_string(), "02:ff:ff:ff:ff:ff");
    assert_eq!(settings.wait_time, Duration::from_secs(600));
    assert_eq!(settings.metrics, Bind::Everywhere(8443));
    assert_eq!(settings.share, Share::WHOLE);
    assert!(!settings.reject_duplicates);
    assert!(args(&[]).production());
    assert_eq!(settings.webhooks.profile, Profile::default());
    assert_eq!(settings.webhooks.bind, Bind::Everywhere(8000));
    assert_eq!(
        settings.webhooks.certificates.to_str(),
        Some("/tmp/k8s-webhook-server/serving-certs")
    );
}

#[test]
fn flags_override_defaults() {
    let flags = [
        "--v=debug",
        "--kubeconfig=/k",
        "--metrics-addr=127.0.0.1:1",
        "--wait-time=300",
        "--tls-min-version=VersionTLS12",
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_UNKNOWN",
        "--reject-duplicates",
    ];
    let settings = read(&flags, &[]).expect("settings");
    assert_eq!(settings.wait_time, Duration::from_secs(300));
    assert_eq!(settings.metrics, Bind::At("127.0.0.1".to_owned(), 1));
    assert!(settings.reject_duplicates);
    let ciphers = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_UNKNOWN"];
    assert_eq!(settings.webhooks.profile, Profile::read("VersionTLS12", &ciphers));
    let args = args(&flags);
    assert!(!args.production());
    assert_eq!(args.kubeconfig.as_deref(), Some("/k".as_ref()));
    assert_eq!(
        read(&["--metrics-addr=0"], &[]).expect("settings").metrics,
        Bind::Off
    );
}

// kubemacpool#1-4, kubemacpool#9
#[test]
fn missing_or_invalid_settings_are_refused() {
    let initial = "Failed to run the kubemacpool manager: unable to create pool manager: failed to set initial ranges: ";
    let range = |start, end| vec![("RANGE_START", Some(start)), ("RANGE_END", Some(end))];
    for (changes, text) in [
        (
            vec![("POD_NAMESPACE", None)],
            "Failed to load pod namespace from environment variable".to_owned(),
        ),
        (
            vec![("POD_NAME", None)],
            "Failed to load pod name from environment variable".to_owned(),
        ),
        (
            vec![("RANGE_START", None)],
            "Failed to load mac address from environment variable: Environment variable RANGE_START don't exist".to_owned(),
        ),
        (
            vec![("RANGE_END", None)],
            "Failed to load mac address from environment variable: Environment variable RANGE_END don't exist".to_owned(),
        ),
        (
            vec![("RANGE_START", Some("zz"))],
            "Failed to load mac address from environment variable: address zz: invalid MAC address".to_owned(),
        ),
        (
            vec![("RANGE_END", Some(""))],
            "Failed to load mac address from environment variable: invalid MAC address".to_owned(),
        ),
        (
            range("0A:00:00:00:00:00", "02:00:00:00:00:00"),
            format!("{initial}invalid range. rangeStart: 0a:00:00:00:00:00 rangeEnd: 02:00:00:00:00:00"),
        ),
        (
            range("03:00:00:00:00:00", "06:00:00:00:00:00"),
            format!(
                "{initial}invalid range start: invalid mac address. Multicast addressing is not supported. Unicast \
                 addressing must be used. The first octet is 0X3"
            ),
        ),
        (
            range("02:00:00:00:00:00", "05:00:00:00:00:00"),
            format!(
                "{initial}invalid range end: invalid mac address. Multicast addressing is not supported. Unicast \
                 addressing must be used. The first octet is 0X5"
            ),
        ),
        (
            range("02:00:00:00:00:00", "02:00:00:00:00:00"),
            format!("{initial}invalid range. rangeStart: 02:00:00:00:00:00 rangeEnd: 02:00:00:00:00:00"),
        ),
    ] {
        assert_eq!(read(&[], &changes).map(drop), Err(text), "{changes:?}");
    }
    assert_eq!(
        read(&["--tls-min-version=VersionTLS99"], &[]).map(drop),
        Err("invalid TLS version \"VersionTLS99\"".to_owned())
    );
    read(&["--metrics-addr=somewhere"], &[]).expect_err("no address");
}

#[test]
fn replica_ordinal_comes_from_pod_name() {
    let share = |pod, replicas: &str| {
        let flag = format!("--replicas={replicas}");
        let settings = read(&[&flag], &[("POD_NAME", Some(pod))]);
        settings.map(|settings| settings.share)
    };
    let replicas = 3;
    assert_eq!(share("manager-2", "3"), Ok(Share { ordinal: 2, replicas }));
    assert_eq!(share("manager-7d9f", "1"), Ok(Share::WHOLE));
    let error = share("manager-7d9f", "3").expect_err("no number");
    assert!(
        error.contains("pod name \"manager-7d9f\" does not end in the number of the replica"),
        "{error}"
    );
    let error = share("manager-3", "3").expect_err("one too many");
    assert!(error.contains("there is no replica 3 of 3"), "{error}");
    share("manager-0", "0").expect_err("nobody");
}

// kubemacpool#94
#[test]
fn client_ca_needs_client_name_and_readable_file() {
    let flags = |flags: &[&str]| {
        let argv = ["kubemacpool"].iter().chain(flags);
        Command::try_parse_from(argv).map_err(|error| error.kind())
    };
    let missing = clap::error::ErrorKind::MissingRequiredArgument;
    assert_eq!(flags(&["--client-ca-file=/ca"]).map(|_| ()), Err(missing));
    assert_eq!(flags(&["--client-name=kube-apiserver"]).map(|_| ()), Err(missing));
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, "nonsense").expect("a file");
    for path in [file, directory.path().join("none")] {
        let path = path.display();
        let error = read(&[&format!("--client-ca-file={path}"), "--client-name=x"], &[]);
        let error = error.map(|_| ()).expect_err("no authorities");
        assert!(
            error.starts_with(&format!(
                "cannot use the certificate authorities of --client-ca-file {path}: "
            )),
            "{error}"
        );
    }
}
