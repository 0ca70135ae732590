//! `weft-cni` runs once for every pod event: the libraries of daemons would slow it down.

use std::process::Command;

/// Crates that must never come along, however indirectly.
const FORBIDDEN: [&str; 5] = ["tokio", "hyper", "kube", "k8s-openapi", "api"];

#[test]
fn plugins_depend_on_no_async_runtime_or_kubernetes_client() {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "-p",
            "plugins",
            "-e",
            "normal",
            "--prefix",
            "none",
            "--locked",
            "--offline",
            "--format",
            "{p}",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let listing = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names: Vec<_> = listing
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(names.contains(&"cni") && names.contains(&"linux"), "{listing}");
    for name in FORBIDDEN {
        assert!(
            !names.contains(&name),
            "{name} is among the dependencies:\n{listing}"
        );
    }
}
