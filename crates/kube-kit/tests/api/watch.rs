//! Watches and the cache behind the applier.

use super::objects::{self, OWNER};
use super::{with_client, within};
use kube_kit::apply::{Applied, Applier};
use kube_kit::cache::{Cache, Changes, Lookup, keep_all};
use kube_kit::kube::core::Object;
use kube_kit::kube::{Api, Client};
use kube_kit::merge::Policy;
use kube_kit::object::{self, ObjectId};
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options, Watch};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// A network definition with a stricter schema than a real client has.
#[derive(Debug, Clone, Deserialize, Serialize)]
struct StrictSpec {
    config: String,
}

type Strict = Object<StrictSpec, Value>;

fn network(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn watch_networks(client: &Client) -> Watch<Name, String> {
    let resource = object::NETWORK_ATTACHMENT_DEFINITION.api_resource();
    let api: Api<DeserializeGuard<Strict>> = Api::namespaced_with(client.clone(), "default", &resource);
    watch::start_named(api, &Options::all(), |network: Strict| network.spec.config)
}

#[test]
fn malformed_object_does_not_hide_others() {
    with_client(async |client| {
        let applier = Applier::new(client.clone(), Policy::default());
        let mut early = watch_networks(&client);
        let definition = objects::definition(
            "k8s.cni.cncf.io",
            "NetworkAttachmentDefinition",
            "network-attachment-definitions",
        );
        assert_eq!(
            applier.apply(&definition).await.expect("applied"),
            Applied::Created
        );
        // Until the API server serves the new kind.
        let good = network("good", &json!({"config": "1"}));
        within("the kind to be served", async {
            while applier
                .apply(&good)
                .await
                .is_err_and(|error| error.is_unknown_kind())
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
        applier.apply(&network("bad", &json!({}))).await.expect("applied");

        let mut watch = watch_networks(&client);
        let (good_name, bad) = (Name::new("default", "good"), Name::new("default", "bad"));
        let mut seen = Vec::new();
        within("the first list", async {
            while seen.last() != Some(&Change::Synced) {
                seen.push(watch.next().await.expect("a change"));
            }
        })
        .await;
        assert_eq!(seen.len(), 3, "{seen:?}");
        assert!(seen.contains(&Change::Applied(good_name.clone())), "{seen:?}");
        assert!(
            matches!(&seen[..], [Change::Invalid(name, error), ..] if *name == bad && error.contains("config"))
        );
        assert_eq!(watch.store().get(&good_name), Some("1".to_owned()));
        assert!(!watch.store().contains(&bad));

        // While it watches, too: a valid object that becomes malformed is kept, and later events are applied.
        applier
            .merge_patch(&ObjectId::of(&good), None, &json!({"spec": {"config": null}}))
            .await
            .expect("changed");
        let change = within("the malformed object", watch.next()).await;
        assert!(
            matches!(&change, Some(Change::Invalid(name, _)) if *name == good_name),
            "{change:?}"
        );
        assert_eq!(watch.store().get(&good_name), Some("1".to_owned()));
        applier
            .apply(&network("next", &json!({"config": "2"})))
            .await
            .expect("applied");
        let next = Name::new("default", "next");
        assert_eq!(
            within("the next object", watch.next()).await,
            Some(Change::Applied(next.clone()))
        );
        applier
            .delete(&object::NETWORK_ATTACHMENT_DEFINITION.object(Some("default"), "next"))
            .await
            .expect("deleted");
        assert_eq!(
            within("the deletion", watch.next()).await,
            Some(Change::Deleted(next))
        );

        // A watch that started before the kind was served finds it after a retry.
        early.retry();
        within("the early watch", async {
            while early.next().await != Some(Change::Synced) {}
        })
        .await;
    });
}

/// Waits for a change. The watch may report own writes before it: it is sometimes faster than their answers.
async fn follow(what: &str, changes: &mut Changes, expected: &Change<ObjectId>) {
    within(what, async { while changes.next().await != *expected {} }).await;
}

#[test]
fn cache_has_watched_objects_and_reports_changes() {
    with_client(async |client| {
        let cache = Cache::new();
        let applier = Applier::with_cache(client.clone(), Policy::owned_by(OWNER), cache.clone());
        applier
            .apply(&objects::namespace("cached"))
            .await
            .expect("applied");
        let mut rendered = objects::config_map("cached", "c");
        let id = ObjectId::of(&rendered);
        assert_eq!(cache.lookup(&id), Lookup::Unknown);

        let mut changes = Changes::new();
        let options = Options::all().labels("networkaddonsoperator.network.kubevirt.io/version");
        changes.push(cache.watch(
            client.clone(),
            object::CONFIG_MAP,
            Some("cached"),
            &options,
            keep_all,
        ));
        assert_eq!(within("the first list", changes.next()).await, Change::Synced);
        assert!(cache.is_synced());
        assert_eq!(cache.lookup(&id), Lookup::Absent);
        let elsewhere = object::CONFIG_MAP.object(Some("default"), "c");
        assert_eq!(
            cache.lookup(&elsewhere),
            Lookup::Unknown,
            "another namespace is not watched"
        );

        assert_eq!(applier.apply(&rendered).await.expect("applied"), Applied::Created);
        let Lookup::Present(object) = cache.lookup(&id) else {
            panic!("not in the cache")
        };
        assert_eq!(
            (&object["kind"], object["metadata"].get("managedFields")),
            (&json!("ConfigMap"), None)
        );

        // The own write is in the cache at once.
        rendered["data"]["a"] = json!("2");
        assert_eq!(applier.apply(&rendered).await.expect("applied"), Applied::Updated);
        let Lookup::Present(object) = cache.lookup(&id) else {
            panic!("not in the cache")
        };
        assert_eq!(object["data"]["a"], "2");
        assert_eq!(
            applier.apply(&rendered).await.expect("applied"),
            Applied::Unchanged
        );

        // Another client removes the label: the object leaves the watch, and is still found when it is applied.
        let other = Applier::new(client.clone(), Policy::default());
        let unlabel = json!({"metadata": {"labels": null}});
        other.merge_patch(&id, None, &unlabel).await.expect("changed");
        follow("the change", &mut changes, &Change::Deleted(id.clone())).await;
        assert_eq!(applier.apply(&rendered).await.expect("applied"), Applied::Updated);
        assert!(matches!(cache.lookup(&id), Lookup::Present(_)), "its return");

        other.delete(&id).await.expect("deleted");
        follow("the deletion", &mut changes, &Change::Deleted(id.clone())).await;
        assert_eq!(applier.apply(&rendered).await.expect("applied"), Applied::Created);

        // A deleted object is absent at once, and its successor is present at once.
        for _ in 0..3 {
            applier.delete(&id).await.expect("deleted");
            assert_eq!(cache.lookup(&id), Lookup::Absent);
            assert_eq!(applier.apply(&rendered).await.expect("applied"), Applied::Created);
            assert!(matches!(cache.lookup(&id), Lookup::Present(_)));
        }
        // The same once the watch has reported all of it.
        let last = objects::config_map("cached", "last");
        other.apply(&last).await.expect("applied");
        follow(
            "the last one",
            &mut changes,
            &Change::Applied(ObjectId::of(&last)),
        )
        .await;
        assert!(matches!(cache.lookup(&id), Lookup::Present(_)));

        // A finalizer keeps a deleted object until it is removed.
        let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
        other.merge_patch(&id, None, &held).await.expect("changed");
        applier.delete(&id).await.expect("deleted");
        assert!(matches!(cache.lookup(&id), Lookup::Present(_)));
        let free = json!({"metadata": {"finalizers": null}});
        other.merge_patch(&id, None, &free).await.expect("changed");
        follow("its end", &mut changes, &Change::Deleted(id.clone())).await;
        assert_eq!(cache.lookup(&id), Lookup::Absent);
    });
}

#[test]
fn unserved_kind_is_not_awaited_and_cached_once_served() {
    with_client(async |client| {
        let applier = Applier::new(client.clone(), Policy::default());
        let cache = Cache::new();
        let definitions = Cache::new();
        let kind = object::ISSUER;
        let mut definition = objects::definition(kind.group, kind.kind, kind.plural);
        definition["metadata"]["annotations"] = json!({"copy": "of the whole"});
        let id = ObjectId::of(&definition);
        let mut changes = Changes::new();
        let named = Options::all().named(&id.name);
        let watch = definitions.watch_metadata(client.clone(), object::CUSTOM_RESOURCE_DEFINITION, &named);
        changes.push(watch);
        assert_eq!(within("the first list", changes.next()).await, Change::Synced);
        assert_eq!(definitions.lookup(&id), Lookup::Absent);

        changes.push(cache.watch_if_served(client.clone(), kind, None, &Options::all(), keep_all));
        assert!(cache.is_synced(), "it is not awaited");
        let issuer = json!({"apiVersion": "cert-manager.io/v1", "kind": "Issuer",
            "metadata": {"name": "i", "namespace": "default"}, "spec": {"config": "x"}});
        assert!(!cache.serves(kind));
        assert_eq!(cache.lookup(&ObjectId::of(&issuer)), Lookup::Unknown);

        applier.apply(&definition).await.expect("defined");
        within("the kind to be served", async {
            while !cache.serves(kind) {
                changes.retry();
                let _ = tokio::time::timeout(Duration::from_millis(50), changes.next()).await;
            }
        })
        .await;
        let Lookup::Present(found) = definitions.lookup(&id) else {
            panic!("the definition is not known")
        };
        // The metadata of a definition is enough.
        assert_eq!(found["kind"], "CustomResourceDefinition");
        for pointer in ["/spec", "/status", "/metadata/annotations"] {
            assert_eq!(found.pointer(pointer), None, "{pointer}");
        }
        applier.apply(&issuer).await.expect("applied");
        follow(
            "the issuer",
            &mut changes,
            &Change::Applied(ObjectId::of(&issuer)),
        )
        .await;

        cache.forget(kind);
        assert!(!cache.serves(kind));
        assert_eq!(cache.lookup(&ObjectId::of(&issuer)), Lookup::Unknown);
        applier.delete(&id).await.expect("deleted");
        follow("the end of the definition", &mut changes, &Change::Deleted(id)).await;
    });
}
