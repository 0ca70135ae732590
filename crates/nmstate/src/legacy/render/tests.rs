use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::apply;
use crate::engine::Request;

fn nic(lldp: &Value) -> Value {
    json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up", "lldp": lldp}]})
}

fn heard() -> Value {
    nic(&json!({"enabled": true, "neighbors": [[
        {"type": 127, "ieee-802-1-vlans": [{"name": "v", "vid": 101}], "oui": "00:80:c2", "subtype": 3},
    ]]}))
}

fn spec() -> Value {
    json!({
        "match": {"interfaces": {"type": "ethernet", "lldp": {"vlan-ids": [101]}}},
        "desiredState": {"interfaces": [{"mtu": 9000}]},
    })
}

/// Answers as a host whose neighbour is in the given report, and collects the applied documents.
async fn host(mut requests: mpsc::UnboundedReceiver<Request>, heard_at: usize) -> Vec<Value> {
    let (mut reports, mut applied) = (0, Vec::new());
    while let Some(request) = requests.recv().await {
        match request {
            Request::Report(back) => {
                reports += 1;
                let report = if reports >= heard_at {
                    heard()
                } else {
                    nic(&json!({"enabled": !applied.is_empty()}))
                };
                let _ = back.send(Ok(report));
            }
            Request::Apply(desired, back) => {
                applied.push(desired);
                let _ = back.send(Ok(()));
            }
            Request::Commit(back) | Request::Rollback(back) | Request::Close(back) => drop(back.send(Ok(()))),
            Request::Diff(_, back) => drop(back.send(Ok(json!({})))),
            other => panic!("{other:?}"),
        }
    }
    applied
}

fn pipeline(engine: &Engine) -> Pipeline {
    let config = kube::Config::new("http://127.0.0.1:1".parse().expect("an address"));
    let client = kube::Client::try_from(config).expect("a client");
    let settings = apply::Settings {
        probes: false,
        ..apply::Settings::default()
    };
    Pipeline::new(engine.clone(), client, "node01".to_owned(), settings)
}

async fn rendered(heard_at: usize, may_change: bool) -> (Value, Vec<Value>, Duration) {
    let (engine, requests) = Engine::channel();
    let host = tokio::spawn(host(requests, heard_at));
    let pipeline = may_change.then(|| pipeline(&engine));
    let begun = Instant::now();
    let document = document(&engine, pipeline.as_ref(), &spec(), Backend::default())
        .await
        .expect("a document")
        .expect("an old policy");
    let taken = begun.elapsed();
    drop((engine, pipeline));
    assert_eq!(document.is_matched, !document.desired.is_null());
    (document.desired, host.await.expect("a host"), taken)
}

#[tokio::test(start_paused = true)]
async fn rendering_enables_lldp_and_waits_for_neighbours() {
    let lldp_document = json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up", "lldp": {"enabled": true}}]});
    let (document, applied, taken) = rendered(30, true).await;
    assert_eq!(
        document,
        json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up", "mtu": 9000}]})
    );
    assert_eq!(applied, std::slice::from_ref(&lldp_document));
    assert!(taken < Duration::from_secs(60), "{taken:?}");

    let (document, applied, taken) = rendered(usize::MAX, true).await;
    assert_eq!((document, applied), (Value::Null, vec![lldp_document]));
    assert!((60..62).contains(&taken.as_secs()), "neighbours had {taken:?}");
}

#[tokio::test(start_paused = true)]
async fn known_neighbours_need_no_wait_and_a_dry_run_changes_nothing() {
    let (document, applied, taken) = rendered(1, true).await;
    assert_eq!(document["interfaces"][0]["mtu"], 9000);
    assert_eq!((applied.len(), taken), (0, Duration::ZERO));

    let (document, applied, taken) = rendered(usize::MAX, false).await;
    assert_eq!((document, applied.len(), taken), (Value::Null, 0, Duration::ZERO));
}
