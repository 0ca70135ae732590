//! Lists in pages.

use k8s_openapi::api::core::v1::ConfigMap;
use kube_kit::kube::Api;
use kube_kit::kube::api::{ListParams, PostParams};
use kube_kit::pages::Pages;

use crate::{objects, with_client, within};

#[test]
fn list_is_read_page_by_page_until_the_last() {
    with_client(async |client| {
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let names = ["paged-a", "paged-b", "paged-c"];
        for name in names {
            let map = serde_json::from_value(objects::config_map("default", name)).expect("a ConfigMap");
            within("a ConfigMap", maps.create(&PostParams::default(), &map))
                .await
                .expect("it is created");
        }
        let version = objects::metadata(None, "")["labels"].clone();
        let (label, value) = version
            .as_object()
            .and_then(|labels| labels.iter().next())
            .expect("a label");
        let selector = format!("{label}={}", value.as_str().expect("a text"));
        let parameters = ListParams::default().labels(&selector).limit(2);
        let is_ours = |map: &ConfigMap| {
            names
                .iter()
                .any(|name| map.metadata.name.as_deref() == Some(name))
        };

        let mut pages = Pages::new(maps.clone(), parameters.clone());
        let first = within("the first page", pages.next())
            .await
            .expect("an answer")
            .expect("a page");
        assert_eq!(first.len(), 2);
        let mut found = first;
        while let Some(page) = within("a page", pages.next()).await.expect("an answer") {
            assert!(page.len() <= 2);
            found.extend(page);
        }
        assert_eq!(found.iter().filter(|map| is_ours(map)).count(), names.len());
        assert!(
            within("nothing", pages.next())
                .await
                .expect("an answer")
                .is_none()
        );

        let all = within("all pages", Pages::new(maps, parameters).all())
            .await
            .expect("an answer");
        assert_eq!(all.iter().filter(|map| is_ours(map)).count(), names.len());
    });
}
