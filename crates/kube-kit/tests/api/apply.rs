//! Apply, repair, recreation and pruning.

use super::objects::{self, OWNER, owner};
use super::{with_client, within};
use kube_kit::apply::{Applied, Applier, Deleted};
use kube_kit::inventory::{self, Inventory, Ledger};
use kube_kit::kube::api::{Patch, PatchParams};
use kube_kit::kube::core::DynamicObject;
use kube_kit::kube::{Api, Client};
use kube_kit::merge::{self, Policy};
use kube_kit::object::{self, ObjectId};
use serde_json::{Value, json};

/// An applier without learned differences.
fn applier(client: &Client) -> Applier {
    Applier::new(client.clone(), Policy::owned_by(OWNER))
}

async fn apply(applier: &Applier, rendered: &Value) -> Applied {
    match applier.apply(rendered).await {
        Ok(applied) => applied,
        Err(error) => panic!("{error}"),
    }
}

async fn live(applier: &Applier, rendered: &Value) -> Value {
    applier
        .get(&ObjectId::of(rendered))
        .await
        .expect("an answer")
        .expect("the object is there")
}

/// Changes the live object as another client, with a merge patch.
async fn change(applier: &Applier, rendered: &Value, patch: &Value) {
    applier
        .merge_patch(&ObjectId::of(rendered), None, patch)
        .await
        .expect("a change");
}

#[test]
fn applied_object_needs_no_second_write() {
    with_client(async |client| {
        for rendered in objects::all("twice") {
            assert_eq!(
                apply(&applier(&client), &rendered).await,
                Applied::Created,
                "{rendered}"
            );
        }
        for rendered in objects::all("twice") {
            let again = applier(&client);
            let live = live(&again, &rendered).await;
            let found = merge::differences(&rendered, &live, &Policy::owned_by(OWNER)).expect("a comparison");
            assert!(found.is_empty(), "{}: {found:#?}", ObjectId::of(&rendered));
            assert_eq!(apply(&again, &rendered).await, Applied::Unchanged, "{rendered}");
        }
    });
}

#[test]
fn changed_object_is_repaired() {
    // Kind of the rendered object, and a change by another client.
    let changes = [
        ("ConfigMap", json!({"data": {"a": "2"}})),
        ("ConfigMap", json!({"data": {"more": "2"}})),
        ("Namespace", json!({"metadata": {"labels": {"a": null}}})),
        ("ServiceAccount", json!({"metadata": {"ownerReferences": null}})),
        ("Service", json!({"spec": {"selector": {"other": "x"}}})),
        ("Service", json!({"spec": {"sessionAffinity": "ClientIP"}})),
        (
            "DaemonSet",
            json!({"spec": {"template": {"metadata": {"annotations": {"added": "by hand"}}}}}),
        ),
        (
            "DaemonSet",
            json!({"spec": {"template": {"spec": {"nodeSelector": {"more": "x"}}}}}),
        ),
        (
            "DaemonSet",
            json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}),
        ),
        ("Deployment", json!({"spec": {"replicas": 3}})),
        (
            "Deployment",
            json!({"spec": {"template": {"spec": {"hostNetwork": true}}}}),
        ),
        ("ClusterRole", json!({"rules": []})),
        (
            "RoleBinding",
            json!({"subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}]}),
        ),
        ("NetworkPolicy", json!({"spec": {"egress": [{}]}})),
        ("PodDisruptionBudget", json!({"spec": {"minAvailable": 2}})),
        ("MutatingWebhookConfiguration", json!({"webhooks": []})),
        (
            "CustomResourceDefinition",
            json!({"spec": {"names": {"shortNames": ["y"]}}}),
        ),
    ];
    with_client(async |client| {
        let applier = applier(&client);
        let all = objects::all("repaired");
        for rendered in &all {
            apply(&applier, rendered).await;
        }
        for (kind, patch) in changes {
            let rendered = all
                .iter()
                .find(|object| object["kind"] == kind)
                .expect("an object");
            let policy = Policy::owned_by(OWNER);
            change(&applier, rendered, &patch).await;
            assert_eq!(
                apply(&applier, rendered).await,
                Applied::Updated,
                "{kind} {patch}"
            );
            let after = live(&applier, rendered).await;
            let left = merge::differences(rendered, &after, &policy).expect("a comparison");
            assert!(left.is_empty(), "{kind} {patch}: {left:#?}");
        }
    });
}

// operator#94, the budget
#[test]
fn apply_of_reverted_object_backs_off_and_names_manager() {
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("contested")).await;
        let mut rendered = objects::config_map("contested", "c");
        let resource = object::CONFIG_MAP.api_resource();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "contested", &resource);
        let them = PatchParams {
            field_manager: Some("gitops".to_owned()),
            ..PatchParams::default()
        };
        let theirs = json!({"data": {"a": "theirs"}});
        let mut writes = 0;
        let error = loop {
            match applier.apply(&rendered).await {
                Ok(_) => writes += 1,
                Err(error) => break error,
            }
            assert!(writes < 10, "written again and again");
            api.patch("c", &them, &Patch::Merge(&theirs))
                .await
                .expect("a change");
        };
        assert!(error.is_contested());
        assert_eq!(
            error.to_string(),
            "could not apply (/v1, Kind=ConfigMap) contested/c: field manager \"gitops\" keeps changing data.a; \
             retrying with back-off"
        );
        assert_eq!(live(&applier, &rendered).await["data"]["a"], "theirs");
        // Another rendering is written at once, and so is an object that this process deleted itself.
        rendered["data"]["a"] = json!("new");
        assert_eq!(apply(&applier, &rendered).await, Applied::Updated);
        for _ in 0..10 {
            applier.delete(&ObjectId::of(&rendered)).await.expect("deleted");
            assert_eq!(apply(&applier, &rendered).await, Applied::Created);
        }
    });
}

#[test]
fn foreign_fields_survive_update() {
    // operator#57, operator#58, operator#59
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("survives")).await;
        let all = objects::all("survives");
        let of = |kind: &str| {
            all.iter()
                .find(|object| object["kind"] == kind)
                .expect("an object")
                .clone()
        };

        let mut config_map = of("ConfigMap");
        apply(&applier, &config_map).await;
        let foreign = json!({"metadata": {"labels": {"theirs": "1"}, "annotations": {"theirs": "2"},
            "finalizers": ["example.com/hold"]}});
        change(&applier, &config_map, &foreign).await;
        config_map["data"]["a"] = json!("new");
        assert_eq!(apply(&applier, &config_map).await, Applied::Updated);
        let after = live(&applier, &config_map).await;
        assert_eq!(after["metadata"]["labels"]["theirs"], "1");
        assert_eq!(after["metadata"]["annotations"]["theirs"], "2");
        assert_eq!(after["metadata"]["finalizers"], json!(["example.com/hold"]));
        assert_eq!(after["data"]["a"], "new");
        change(&applier, &config_map, &json!({"metadata": {"finalizers": null}})).await;

        let mut deployment = of("Deployment");
        apply(&applier, &deployment).await;
        let revision = json!({"metadata": {"annotations": {"deployment.kubernetes.io/revision": "4"}}});
        change(&applier, &deployment, &revision).await;
        deployment["spec"]["replicas"] = json!(2);
        apply(&applier, &deployment).await;
        let after = live(&applier, &deployment).await;
        assert_eq!(
            after["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
            "4"
        );

        let mut service = of("Service");
        apply(&applier, &service).await;
        let address = live(&applier, &service).await["spec"]["clusterIP"].clone();
        service["spec"]["selector"] = json!({"name": "y"});
        assert_eq!(apply(&applier, &service).await, Applied::Updated);
        assert_eq!(live(&applier, &service).await["spec"]["clusterIP"], address);

        let mut account = of("ServiceAccount");
        apply(&applier, &account).await;
        change(&applier, &account, &json!({"secrets": [{"name": "token"}]})).await;
        account["metadata"]["labels"]["more"] = json!("1");
        assert_eq!(apply(&applier, &account).await, Applied::Updated);
        assert_eq!(
            live(&applier, &account).await["secrets"],
            json!([{"name": "token"}])
        );

        let mut webhooks = of("MutatingWebhookConfiguration");
        apply(&applier, &webhooks).await;
        let mut issued = webhooks["webhooks"].clone();
        issued[0]["clientConfig"]["caBundle"] = json!("aXNzdWVk");
        change(&applier, &webhooks, &json!({ "webhooks": issued })).await;
        assert_eq!(apply(&applier, &webhooks).await, Applied::Unchanged);
        webhooks["webhooks"][0]["failurePolicy"] = json!("Fail");
        assert_eq!(apply(&applier, &webhooks).await, Applied::Updated);
        let after = live(&applier, &webhooks).await;
        assert_eq!(after["webhooks"][0]["clientConfig"]["caBundle"], "aXNzdWVk");
    });
}

#[test]
fn new_webhook_is_added_to_live_configuration() {
    // operator#61
    with_client(async |client| {
        let applier = applier(&client);
        let mut webhooks = objects::webhooks("MutatingWebhookConfiguration", "grows");
        apply(&applier, &webhooks).await;
        let mut second = webhooks["webhooks"][0].clone();
        second["name"] = json!("second.example.com");
        webhooks["webhooks"].as_array_mut().expect("a list").push(second);
        assert_eq!(apply(&applier, &webhooks).await, Applied::Updated);
        let after = live(&applier, &webhooks).await;
        assert_eq!(after["webhooks"][1]["name"], "second.example.com");
    });
}

#[test]
fn existing_tls_secret_is_unchanged() {
    // operator#63
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("tls")).await;
        let secret = |certificate: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": "s", "namespace": "tls"}, "data": {"tls.crt": certificate, "tls.key": ""}})
        };
        assert_eq!(apply(&applier, &secret("b2xk")).await, Applied::Created);
        assert_eq!(apply(&applier, &secret("bmV3")).await, Applied::Unchanged);
        assert_eq!(live(&applier, &secret("")).await["data"]["tls.crt"], "b2xk");
    });
}

#[test]
fn service_account_with_secrets_is_never_sent() {
    // operator#62
    with_client(async |client| {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "with-secrets", "namespace": "default"}, "secrets": [{"name": "x"}]});
        let error = applier(&client).apply(&account).await.expect_err("an error");
        assert_eq!(
            error.to_string(),
            "could not apply (/v1, Kind=ServiceAccount) default/with-secrets: cannot create ServiceAccount with secrets"
        );
        let id = ObjectId::of(&account);
        assert_eq!(applier(&client).get(&id).await.expect("an answer"), None);
    });
}

#[test]
fn owned_workload_with_other_selector_is_recreated_and_foreign_one_is_not() {
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("selector")).await;
        for make in [objects::daemon_set, objects::deployment] {
            let before = make("selector", "w");
            apply(&applier, &before).await;
            let uid = live(&applier, &before).await["metadata"]["uid"].clone();
            let mut after = before.clone();
            after["spec"]["selector"]["matchLabels"] = json!({"np.kubevirt.io/allow-access": ""});
            assert_eq!(apply(&applier, &after).await, Applied::Recreated);
            assert_ne!(live(&applier, &after).await["metadata"]["uid"], uid);
            assert_eq!(apply(&applier, &after).await, Applied::Unchanged);
            let foreign = json!({"metadata": {"ownerReferences": null}});
            change(&applier, &after, &foreign).await;
            let error = applier
                .apply(&before)
                .await
                .expect_err("the server refuses")
                .to_string();
            assert!(error.contains("field is immutable"), "{error}");
        }
    });
}

#[test]
fn new_owner_replaces_old_one() {
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("owners")).await;
        let mut rendered = objects::config_map("owners", "c");
        apply(&applier, &rendered).await;
        let stranger = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "s",
            "uid": "00000000-0000-0000-0000-000000000009", "controller": true});
        change(
            &applier,
            &rendered,
            &json!({"metadata": {"ownerReferences": [stranger]}}),
        )
        .await;
        let ours = owner("00000000-0000-0000-0000-000000000002");
        rendered["metadata"]["ownerReferences"] = json!([ours]);
        assert_eq!(apply(&applier, &rendered).await, Applied::Updated);
        let owners = live(&applier, &rendered).await["metadata"]["ownerReferences"].clone();
        assert_eq!((&owners[0]["controller"], &owners[1]), (&json!(false), &ours));
        assert_eq!(apply(&applier, &rendered).await, Applied::Unchanged);
    });
}

#[test]
fn unknown_default_of_server_causes_single_write() {
    with_client(async |client| {
        let learning = applier(&client);
        apply(
            &learning,
            &objects::definition("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
        )
        .await;
        let rendered = json!({"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
            "metadata": {"name": "m", "namespace": "default"}, "spec": {"config": "x"}});
        within("the kind to be served", async {
            while learning
                .apply(&rendered)
                .await
                .is_err_and(|error| error.is_unknown_kind())
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // The schema has a default for it.
        assert_eq!(live(&learning, &rendered).await["spec"]["count"], 0);
        assert_eq!(apply(&learning, &rendered).await, Applied::Unchanged);
        let restarted = applier(&client);
        assert_eq!(apply(&restarted, &rendered).await, Applied::Updated);
        assert_eq!(apply(&restarted, &rendered).await, Applied::Unchanged);
        change(&learning, &rendered, &json!({"spec": {"count": 5}})).await;
        assert_eq!(apply(&learning, &rendered).await, Applied::Updated);
        assert_eq!(live(&learning, &rendered).await["spec"]["count"], 0);
    });
}

#[test]
fn unserved_kind_is_named_or_skipped() {
    with_client(async |client| {
        let applier = applier(&client);
        let certificate = json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
            "metadata": {"name": "c", "namespace": "default"}});
        let error = applier.apply(&certificate).await.expect_err("an error");
        assert!(error.is_unknown_kind());
        assert_eq!(
            error.to_string(),
            "could not apply (cert-manager.io/v1, Kind=Certificate) default/c: \
             no matches for kind \"Certificate\" in version \"cert-manager.io/v1\""
        );
        let id = ObjectId::of(&certificate);
        assert_eq!(
            applier.delete_if_owned(&id, OWNER).await.expect("skipped"),
            Deleted::UnknownKind
        );
        let nothing = object::CONFIG_MAP.object(Some("default"), "nothing");
        assert_eq!(
            applier.delete_if_owned(&nothing, OWNER).await.expect("skipped"),
            Deleted::Absent
        );
    });
}

#[test]
fn prune_deletes_unrendered_objects_and_keeps_foreign_ones() {
    // operator#64, operator#65
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("pruned")).await;
        let names = ["kept", "gone", "adopted"];
        let rendered: Vec<Value> = names
            .iter()
            .map(|name| objects::config_map("pruned", name))
            .collect();
        for object in &rendered {
            apply(&applier, object).await;
        }
        let foreign = json!({"metadata": {"ownerReferences": null}});
        change(&applier, &rendered[2], &foreign).await;

        let ledger = Ledger::new(ObjectId::of(&rendered[0]));
        let unknown = object::CERTIFICATE.object(Some("pruned"), "of-a-kind-that-is-not-served");
        let recorded = Inventory::of(rendered.iter().map(ObjectId::of).chain([unknown]));
        let now = Inventory::of([ObjectId::of(&rendered[0])]);
        ledger.record(&applier, &recorded).await.expect("recorded");
        let plan = recorded.prune(&now, |_| false);
        let pruned = inventory::prune(&applier, &ledger, &recorded, &plan, OWNER).await;

        assert!(pruned.failures.is_empty(), "{:?}", pruned.failures);
        assert_eq!(
            (pruned.recorded, pruned.deleted),
            (now.clone(), vec![ObjectId::of(&rendered[1])])
        );
        let there = async |object: &Value| {
            applier
                .get(&ObjectId::of(object))
                .await
                .expect("an answer")
                .is_some()
        };
        assert!(there(&rendered[0]).await && !there(&rendered[1]).await && there(&rendered[2]).await);
        let written = live(&applier, &rendered[0]).await;
        let written = written["data"][inventory::KEY]
            .as_str()
            .expect("an inventory")
            .to_owned();
        assert_eq!(Inventory::parse(&written).expect("an inventory"), now);
        assert_eq!(written, now.to_json());
    });
}

#[test]
fn failed_deletion_stays_on_record_and_does_not_block_others() {
    with_client(async |client| {
        let applier = applier(&client);
        apply(&applier, &objects::namespace("interrupted")).await;
        let gone = objects::config_map("interrupted", "gone");
        let home = objects::config_map("interrupted", "home");
        apply(&applier, &gone).await;
        apply(&applier, &home).await;
        let ledger = Ledger::new(ObjectId::of(&home));
        let now = Inventory::of([ObjectId::of(&home)]);
        let there = async || {
            let live = applier.get(&ObjectId::of(&gone)).await;
            live.expect("an answer").is_some()
        };
        // An invalid name.
        let bad = |kind: object::Kind| kind.object(Some("interrupted"), "a b");
        let webhook = bad(object::MUTATING_WEBHOOK_CONFIGURATION);
        for (bad, blocks) in [(webhook, true), (bad(object::CONFIG_MAP), false)] {
            let recorded = Inventory::of([ObjectId::of(&home), bad.clone(), ObjectId::of(&gone)]);
            let plan = recorded.prune(&now, |_| false);
            let pruned = inventory::prune(&applier, &ledger, &recorded, &plan, OWNER).await;
            assert_eq!(pruned.failures.len(), 1, "{:?}", pruned.failures);
            assert_eq!(there().await, blocks, "without {bad}");
            let left = if blocks {
                vec![bad, ObjectId::of(&gone)]
            } else {
                vec![bad]
            };
            assert_eq!(pruned.recorded.prune(&now, |_| false), left);
        }
        let written = live(&applier, &home).await;
        let written = written["data"][inventory::KEY]
            .as_str()
            .expect("an inventory")
            .to_owned();
        let left = Inventory::parse(&written).expect("an inventory");
        assert_eq!(left.prune(&now, |_| false), [bad(object::CONFIG_MAP)]);
    });
}
