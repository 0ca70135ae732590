//! The API server without a cluster.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::fs;
use std::time::Duration;

use cluster::{ApiServer, wait};

#[test]
fn server_stores_objects_and_logs_requests() {
    let server = ApiServer::start().unwrap();
    let kubectl = server.kubectl();
    kubectl
        .apply(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"some"},"data":{"key":"value"}}"#)
        .unwrap();
    let object = kubectl.json(["get", "configmap", "some"]).unwrap();
    assert_eq!(object["data"]["key"], "value");
    assert_eq!(kubectl.get(["configmap", "other"]).unwrap(), None);

    // The audit log is written after the answer.
    let record = wait::until("the request in the audit log", Duration::from_mins(1), || {
        let text = fs::read_to_string(server.audit_log()).unwrap();
        let line = text
            .lines()
            .find(|line| line.contains(r#""name":"some""#))
            .map(str::to_owned);
        line.ok_or(format!("{} other lines", text.lines().count()))
    });
    let record: serde_json::Value = serde_json::from_str(&record.unwrap()).unwrap();
    assert_eq!(record["user"]["username"], "admin");
    assert_eq!(record["level"], "Metadata");
}

#[test]
fn two_servers_coexist_and_leave_nothing_when_dropped() {
    let shared = ApiServer::shared().unwrap();
    assert_eq!(ApiServer::shared().unwrap().url(), shared.url());
    let own = ApiServer::start().unwrap();
    assert_ne!(own.url(), shared.url());
    own.kubectl().run(["create", "namespace", "only-here"]).unwrap();
    assert_eq!(shared.kubectl().get(["namespace", "only-here"]).unwrap(), None);

    let dir = own.audit_log().parent().unwrap().to_owned();
    assert!(!processes_of(&dir).is_empty());
    drop(own);
    assert_eq!(processes_of(&dir), [] as [String; 0]);
    assert!(!dir.exists());
}

/// Returns the command lines of the processes that use `dir`.
fn processes_of(dir: &std::path::Path) -> Vec<String> {
    let dir = dir.to_string_lossy().into_owned() + "/";
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&dir)).collect()
}
