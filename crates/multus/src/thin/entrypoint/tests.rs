use super::*;
use clap::FromArgMatches as _;
use std::time::Duration;

const PRIMARY: &str = r#"{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"ptp"}]}"#;
const OTHER: &str =
    r#"{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"ptp","capabilities":{"ips":true}}]}"#;
const NEWER: &str = r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"ptp"}]}"#;

fn parse(flags: &[&str]) -> Args {
    let command = Args::augment_args(clap::Command::new("thin_entrypoint"));
    let matches = command
        .try_get_matches_from([&["thin_entrypoint"], flags].concat())
        .unwrap();
    Args::from_arg_matches(&matches).unwrap()
}

/// A host in a directory, and the entry point that works on it.
struct Host {
    dir: tempfile::TempDir,
    shutdown: Shutdown,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["net.d", "bin", "account"] {
            fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let host = Self {
            dir,
            shutdown: Shutdown::new(),
        };
        host.put("account/token", "t1");
        host.put("account/ca.crt", "CA");
        host.put("multus", "binary");
        fs::set_permissions(host.path("multus"), fs::Permissions::from_mode(0o755)).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// Begins to work in the background.
    fn start(&self, flags: &[&str]) -> tokio::task::JoinHandle<anyhow::Result<()>> {
        let mut args = parse(flags);
        args.cni_conf_dir = self.path("net.d");
        args.multus_autoconfig_dir = self.path("net.d");
        args.cni_bin_dir = self.path("bin");
        args.multus_bin_file = self.path("multus");
        let account = Account {
            server: "https://10.96.0.1:443".into(),
            dir: self.path("account"),
        };
        tokio::spawn(serve(args, account, self.shutdown.clone()))
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let held = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = timeout(Duration::from_secs(60), held).await;
        assert!(
            seen.is_ok(),
            "never happened: {what}; {:?}",
            fs::read_dir(self.path("net.d")).unwrap().collect::<Vec<_>>()
        );
    }
}

#[test]
fn flags_are_upstreams() {
    let args = parse(&[]);
    assert_eq!(args.cni_bin_dir, Path::new("/host/opt/cni/bin"));
    assert_eq!(args.cni_conf_dir, Path::new("/host/etc/cni/net.d"));
    assert_eq!(args.multus_bin_file, Path::new("/usr/src/multus-cni/bin/multus"));
    let options = args.options();
    assert_eq!(options.conf_dir, "/host/etc/cni/multus/net.d");
    assert_eq!(options.kubeconfig, "/etc/cni/net.d/multus.d/multus.kubeconfig");
    assert!(
        args.is_auto()
            && options.log_to_stderr
            && !options.namespace_isolation
            && !args.cleanup_config_on_exit
    );

    let args = parse(&[
        "--multus-log-to-stderr=false",
        "--namespace-isolation",
        "--global-namespaces",
        "a,b",
        "--multus-conf-file=/tmp/multus-conf/70-multus.conf",
        "--cleanup-config-on-exit=true",
        "--skip-tls-verify",
    ]);
    let options = args.options();
    assert!(
        !options.log_to_stderr
            && options.namespace_isolation
            && args.cleanup_config_on_exit
            && !args.is_auto()
    );
    assert_eq!(options.global_namespaces, "a,b");
}

#[tokio::test]
async fn node_is_installed_and_updated() {
    // multus#75 (token and CA, the primary)
    let host = Host::new();
    host.put("net.d/10-a.conflist", PRIMARY);
    let running = host.start(&["--cleanup-config-on-exit=true"]);
    host.until("the configuration", || host.path("net.d/00-multus.conf").exists())
        .await;
    assert_eq!(host.read("bin/multus").as_deref(), Some("binary"));
    let mode = |name| fs::metadata(host.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("bin/multus"), 0o755);
    assert_eq!(mode("net.d/multus.d/multus.kubeconfig"), 0o600);
    let kubeconfig = || host.read("net.d/multus.d/multus.kubeconfig").unwrap();
    assert!(
        kubeconfig().contains("token: \"t1\"") && kubeconfig().contains("certificate-authority-data: Q0E=")
    );

    // Kubelet makes another directory `..data`.
    host.put("account/token.new", "t2");
    fs::rename(host.path("account/token.new"), host.path("account/token")).unwrap();
    host.until("the new token", || kubeconfig().contains("token: \"t2\""))
        .await;
    host.put("account/ca.crt", "CB");
    host.until("the new CA", || {
        kubeconfig().contains("certificate-authority-data: Q0I=")
    })
    .await;

    let conf = |name: &str| host.read(name).unwrap_or_default();
    host.put("net.d/10-a.conflist", OTHER);
    host.until("regenerated", || {
        conf("net.d/00-multus.conf").contains(r#""capabilities": {"ips":true}"#)
    })
    .await;
    // Unusable: the generated file stays, and is restored.
    host.put("net.d/10-a.conflist", "{");
    fs::remove_file(host.path("net.d/00-multus.conf")).unwrap();
    host.until("put back", || {
        conf("net.d/00-multus.conf").contains(r#""capabilities": {"ips":true}"#)
    })
    .await;
    // Gone: nothing happens until the file exists again.
    fs::remove_file(host.path("net.d/10-a.conflist")).unwrap();
    host.put("net.d/10-a.conflist", NEWER);
    host.until("the other form", || {
        host.path("net.d/00-multus.conflist").exists()
    })
    .await;
    host.until("the old form is gone", || {
        !host.path("net.d/00-multus.conf").exists()
    })
    .await;

    host.shutdown.trigger();
    running.await.unwrap().unwrap();
    assert!(!host.path("net.d/00-multus.conflist").exists());
}

#[tokio::test]
async fn configuration_is_kept_without_cleanup_flag() {
    let host = Host::new();
    host.put("net.d/10-a.conflist", PRIMARY);
    let running = host.start(&["--skip-config-watch", "--skip-multus-binary-copy=true"]);
    host.until("the configuration", || host.path("net.d/00-multus.conf").exists())
        .await;
    assert!(!host.path("bin/multus").exists());
    // The token is still watched, and by then the change of the primary was seen too.
    host.put("net.d/10-a.conflist", OTHER);
    host.put("account/token", "t2");
    host.until("the new token", || {
        host.read("net.d/multus.d/multus.kubeconfig")
            .unwrap()
            .contains("t2")
    })
    .await;
    assert!(
        !host
            .read("net.d/00-multus.conf")
            .unwrap()
            .contains("capabilities")
    );
    host.shutdown.trigger();
    running.await.unwrap().unwrap();
    assert!(host.path("net.d/00-multus.conf").exists());
}

#[tokio::test]
async fn provided_file_is_copied() {
    let host = Host::new();
    host.put("70-multus.conf", "{}");
    let file = host.path("70-multus.conf").display().to_string();
    let running = host.start(&["--multus-conf-file", &file, "--cleanup-config-on-exit"]);
    host.until("the copy", || host.path("net.d/70-multus.conf").exists())
        .await;
    host.shutdown.trigger();
    running.await.unwrap().unwrap();
    assert!(!host.path("net.d/70-multus.conf").exists());
}

#[tokio::test]
async fn renamed_primary_is_found_and_restored() {
    let host = Host::new();
    host.put(
        "net.d/20-b.conf",
        r#"{"cniVersion":"0.3.1","name":"b","type":"b"}"#,
    );
    host.put("net.d/10-a.conflist", PRIMARY);
    let flags = [
        "--rename-conf-file=true",
        "--force-cni-version=true",
        "--cni-version=0.4.0",
    ];
    let first = host.start(&flags);
    host.until("put aside", || host.path("net.d/10-a.conflist.old").exists())
        .await;
    assert!(
        host.read("net.d/00-multus.conf")
            .unwrap()
            .contains(r#"{"cniVersion":"0.4.0","name":"a","plugins":[{"type":"ptp"}]}"#)
    );
    first.abort();
    fs::remove_file(host.path("net.d/00-multus.conf")).unwrap();
    let again = host.start(
        &[
            &flags[..2],
            &["--cni-version=0.3.1", "--cleanup-config-on-exit=true"],
        ]
        .concat(),
    );
    host.until("found again", || {
        host.read("net.d/00-multus.conf")
            .is_some_and(|text| text.contains("\"ptp\""))
    })
    .await;
    host.shutdown.trigger();
    again.await.unwrap().unwrap();
    assert_eq!(host.read("net.d/10-a.conflist").as_deref(), Some(PRIMARY));
    assert!(!host.path("net.d/10-a.conflist.old").exists());
}

#[tokio::test]
async fn forced_version_changes_the_generated_file_alone() {
    // multus#116 (thin mode)
    let host = Host::new();
    host.put("net.d/10-a.conflist", PRIMARY);
    let primary = host.path("net.d/10-a.conflist");
    fs::set_permissions(&primary, fs::Permissions::from_mode(0o644)).unwrap();
    let running = host.start(&["--force-cni-version=true", "--cni-version=1.0.0"]);
    host.until("the configuration", || {
        host.path("net.d/00-multus.conflist").exists()
    })
    .await;
    let generated = host.read("net.d/00-multus.conflist").unwrap();
    assert!(
        generated.contains(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"ptp"}]}"#),
        "{generated}"
    );
    host.shutdown.trigger();
    running.await.unwrap().unwrap();
    assert_eq!(host.read("net.d/10-a.conflist").as_deref(), Some(PRIMARY));
    assert_eq!(
        fs::metadata(&primary).unwrap().permissions().mode() & 0o777,
        0o644
    );
}

#[tokio::test]
async fn missing_value_is_named() {
    let host = Host::new();
    for (missing, text) in [
        ("multus", "multus-bin-file is not found"),
        ("bin", "cni-bin-dir is not found"),
        ("net.d", "cni-conf-dir is not found"),
    ] {
        let path = host.path(missing);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        let error = host.start(&[]).await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
