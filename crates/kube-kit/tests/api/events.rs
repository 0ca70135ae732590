//! Events.

use super::{objects, with_client};
use kube_kit::apply::Applier;
use kube_kit::events::{Kind, Recorder};
use kube_kit::kube::Client;
use kube_kit::kube::core::{
    Request,
    params::{DeleteParams, ListParams},
};
use kube_kit::merge::Policy;
use serde_json::{Value, json};

async fn events(client: &Client, namespace: &str, name: &str) -> Vec<Value> {
    let selector = format!("involvedObject.name={name}");
    let request = Request::new(format!("/api/v1/namespaces/{namespace}/events"))
        .list(&ListParams::default().fields(&selector))
        .expect("a request");
    let list: Value = client.request(request).await.expect("a list");
    list["items"].as_array().expect("items").clone()
}

#[test]
fn repeated_event_is_counted() {
    with_client(async |client| {
        let regarding = serde_json::from_value(
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "name": "counted",
            "uid": "u-1"}),
        )
        .expect("a reference");
        let recorder = Recorder::new(client.clone(), "cluster");
        for message in ["a", "a", "b", "a"] {
            recorder
                .publish(&regarding, Kind::Warning, "Failed: FailedToValidate", message)
                .await;
        }
        let events = events(&client, "default", "counted").await;
        assert_eq!(events.len(), 2, "{events:#?}");
        let first = events
            .iter()
            .find(|event| event["message"] == "a")
            .expect("the event");
        assert_eq!(first["count"], 3);
        assert_eq!(
            (&first["type"], &first["reason"]),
            (&json!("Warning"), &json!("Failed: FailedToValidate"))
        );
        assert_eq!(first["source"]["component"], "cluster");
    });
}

#[test]
fn deleted_event_is_created_again() {
    with_client(async |client| {
        let applier = Applier::new(client.clone(), Policy::default());
        applier
            .apply(&objects::namespace("events"))
            .await
            .expect("applied");
        let regarding = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "name": "p",
            "namespace": "events", "uid": "u-2"}))
        .expect("a reference");
        let recorder = Recorder::on_host(client.clone(), "multus", "node01");
        recorder
            .publish(&regarding, Kind::Normal, "AddedInterface", "text")
            .await;
        let first = events(&client, "events", "p").await;
        assert_eq!((first.len(), &first[0]["source"]["host"]), (1, &json!("node01")));
        let name = first[0]["metadata"]["name"].as_str().expect("a name");
        let request = Request::new("/api/v1/namespaces/events/events").delete(name, &DeleteParams::default());
        let _: Value = client
            .request(request.expect("a request"))
            .await
            .expect("deleted");
        recorder
            .publish(&regarding, Kind::Normal, "AddedInterface", "text")
            .await;
        let second = events(&client, "events", "p").await;
        assert_eq!((second.len(), &second[0]["count"]), (1, &json!(1)));
    });
}
