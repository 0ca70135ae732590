use super::*;

type TestStore = Store<String, u8>;

fn key(name: &str) -> String {
    name.to_owned()
}

/// A synced store; the version of its list is the last one given.
fn store(entries: &[(&str, &str)]) -> TestStore {
    let store = Store::new();
    store.begin();
    for (name, version) in entries {
        assert!(store.insert(key(name), version, None, || 0));
    }
    store.complete(entries.last().map_or("1", |(_, version)| version));
    store
}

fn reported(store: &TestStore, name: &str, version: &str, uid: &str, value: u8) -> bool {
    store.insert(key(name), version, Some(uid), || value)
}

#[test]
fn new_list_reports_new_and_deleted_objects() {
    let store = store(&[("a", "1"), ("b", "2")]);
    assert!(store.is_synced());
    store.begin();
    assert!(
        !store.insert(key("a"), "1", None, || 1),
        "the same version is no change"
    );
    assert!(store.insert(key("c"), "3", None, || 1));
    assert_eq!(store.complete("3"), ["b"]);
    assert_eq!(store.keys(), ["a", "c"]);
    assert_eq!(store.get(&key("a")), Some(0));
}

#[test]
fn object_that_became_malformed_is_kept() {
    let store = store(&[("a", "1")]);
    store.begin();
    store.keep(&key("a"));
    assert!(store.complete("2").is_empty());
    assert!(store.contains(&key("a")));
    // The same after a malformed own write.
    store.put(key("a"), "3", 3);
    store.keep(&key("a"));
    store.reach("4");
    assert!(store.overtaken().is_empty());
    assert!(store.contains(&key("a")));
}

#[test]
fn put_is_kept_until_watch_passes_it() {
    let store = store(&[("a", "5")]);
    store.put(key("a"), "6", 6);
    assert_eq!(store.get(&key("a")), Some(6));
    assert!(
        !store.insert(key("a"), "6", None, || 7),
        "our own write is no change"
    );
    assert!(store.remove(&key("a"), Some("8"), None));
    store.put(key("a"), "7", 7);
    assert_eq!(store.get(&key("a")), None, "deleted after that write");
}

#[test]
fn late_event_is_ignored() {
    let store = store(&[("a", "5")]);
    store.put(key("a"), "8", 8);
    assert!(!store.insert(key("a"), "6", None, || 6), "from before our write");
    assert!(
        !store.remove(&key("a"), Some("7"), None),
        "what we wrote is another one"
    );
    assert_eq!(store.get(&key("a")), Some(8));
    // A new list overrides the store: the API server may have been restored.
    store.begin();
    assert!(store.insert(key("a"), "4", None, || 4));
    store.complete("4");
    assert_eq!(store.get(&key("a")), Some(4));
}

#[test]
fn versions_compare_as_numbers() {
    let store = store(&[("a", "9")]);
    store.put(key("a"), "10", 10);
    assert!(!store.insert(key("a"), "9", None, || 9));
    assert_eq!(store.get(&key("a")), Some(10));
}

// operator#90, the store
#[test]
fn own_create_before_its_event_stays() {
    let store = store(&[("a", "5")]);
    store.put(key("b"), "7", 7);
    assert_eq!(store.get(&key("b")), Some(7));
    // Events of other objects up to that version do not affect it.
    assert!(store.insert(key("a"), "6", None, || 6));
    store.reach("6");
    assert!(store.overtaken().is_empty());
    assert!(!reported(&store, "b", "7", "b", 0), "our own write is no change");
    store.reach("100");
    assert!(store.overtaken().is_empty());
    assert_eq!(store.get(&key("b")), Some(7));
}

#[test]
fn own_create_that_watch_passes_unreported_is_dropped() {
    for bookmark in [false, true] {
        let store = store(&[("a", "5")]);
        store.put(key("b"), "7", 7);
        if bookmark {
            store.reach("8");
        } else {
            assert!(store.insert(key("a"), "8", None, || 8));
        }
        assert_eq!(store.overtaken(), ["b"]);
        assert!(!store.contains(&key("b")));
        assert!(store.overtaken().is_empty(), "it is reported once");
    }
    // The watch reports creation and deletion, late.
    let store = store(&[("a", "5")]);
    store.put(key("b"), "7", 7);
    assert!(!reported(&store, "b", "7", "b", 0));
    assert!(store.remove(&key("b"), Some("8"), Some("b")));
    assert!(!store.contains(&key("b")));
}

#[test]
fn complete_with_older_list_keeps_own_writes() {
    let store = store(&[("a", "5")]);
    store.put(key("b"), "8", 8);
    store.begin();
    store.put(key("c"), "9", 9);
    store.put(key("d"), "6", 6);
    assert!(!store.insert(key("a"), "5", None, || 0));
    // Listed before the own change.
    store.put(key("a"), "10", 10);
    assert_eq!(store.complete("7"), ["d"], "gone again at version 7");
    assert_eq!(store.keys(), ["a", "b", "c"]);
    assert_eq!(store.get(&key("a")), Some(10));

    // A page after the own write, of a list before it.
    store.begin();
    store.put(key("a"), "12", 12);
    assert!(!store.insert(key("a"), "10", None, || 0));
    assert_eq!(store.complete("11"), ["b", "c"]);
    assert_eq!(store.get(&key("a")), Some(12));

    store.begin();
    assert_eq!(store.complete("20"), ["a"]);
}

#[test]
fn own_delete_before_its_event_stays_deleted() {
    let store = store(&[("a", "5")]);
    store.bury(key("a"), "first", "5", |_| true);
    assert!(!store.contains(&key("a")));
    assert!(
        !reported(&store, "a", "6", "first", 6),
        "a change before the deletion is stale"
    );
    assert!(!store.contains(&key("a")));
    assert!(!store.remove(&key("a"), Some("7"), Some("first")), "no news");
    // Another client created an object with the same name.
    assert!(reported(&store, "a", "8", "second", 8));
    assert_eq!(store.get(&key("a")), Some(8));
}

#[test]
fn successor_of_deleted_object_stays() {
    // An own one.
    let store = store(&[("a", "5")]);
    store.bury(key("a"), "first", "5", |_| true);
    store.put(key("a"), "9", 9);
    assert_eq!(store.get(&key("a")), Some(9));
    assert!(!reported(&store, "a", "6", "first", 6));
    assert!(!store.remove(&key("a"), Some("8"), Some("first")));
    assert_eq!(store.get(&key("a")), Some(9));
    assert!(!reported(&store, "a", "9", "second", 9));
    store.reach("20");
    assert!(store.overtaken().is_empty());
    assert_eq!(store.get(&key("a")), Some(9));

    // Another client's, which the watch reports before the answer to the deletion.
    let store = self::store(&[("a", "5")]);
    assert!(store.remove(&key("a"), Some("6"), Some("first")));
    assert!(reported(&store, "a", "7", "second", 7));
    store.bury(key("a"), "first", "5", |value| *value == 0);
    assert_eq!(store.get(&key("a")), Some(7));
}

#[test]
fn own_delete_of_unreported_object_stays_deleted() {
    let store = store(&[("a", "5")]);
    store.bury(key("b"), "b", "7", |_| true);
    assert!(!reported(&store, "b", "6", "b", 6));
    assert!(!reported(&store, "b", "7", "b", 7));
    assert!(!store.remove(&key("b"), Some("8"), Some("b")));
    // The watch has reported this deletion already, so it is not remembered.
    store.bury(key("b"), "b", "7", |_| true);
    assert!(reported(&store, "b", "9", "b", 9));
}

#[test]
fn complete_forgets_deletions_covered_by_list() {
    let store = store(&[("a", "5"), ("b", "6")]);
    store.begin();
    store.bury(key("a"), "a", "5", |_| true);
    store.bury(key("b"), "b", "6", |_| true);
    // From before the deletion.
    assert!(!reported(&store, "a", "5", "a", 0));
    assert!(store.complete("7").is_empty());
    assert!(store.is_empty());
    assert!(
        !reported(&store, "a", "8", "a", 0),
        "listed, so that its end is not reported yet"
    );
    // Not listed, so its deletion is covered by the list. A restored API server may have it again.
    assert!(reported(&store, "b", "6", "b", 0));
    // A list that starts after the deletion overrides it.
    store.begin();
    assert!(reported(&store, "a", "5", "a", 5));
    store.complete("5");
    assert_eq!(store.get(&key("a")), Some(5));
}

#[test]
fn object_listed_before_its_own_deletion_counts_as_listed() {
    let store = store(&[("a", "5"), ("b", "6")]);
    store.begin();
    for (name, version) in [("a", "5"), ("b", "6")] {
        assert!(!reported(&store, name, version, name, 0));
        store.bury(key(name), name, version, |_| true);
    }
    // Another object of the same name, with a version that the list seems to cover.
    store.put(key("b"), "7", 7);
    assert!(store.complete("9").is_empty());
    assert!(
        !reported(&store, "a", "8", "a", 0),
        "its deletion is not reported yet"
    );
    assert_eq!(store.keys(), ["b"]);
}

#[test]
fn put_without_decimal_version_adds_absent_object_until_later_list() {
    let store = store(&[("a", "x1")]);
    store.put(key("a"), "x2", 2);
    assert_eq!(store.get(&key("a")), Some(0), "it may be stale");
    store.begin();
    store.put(key("b"), "x3", 3);
    assert!(!store.insert(key("a"), "x1", None, || 0));
    assert!(store.complete("x2").is_empty(), "the list may be older");
    assert!(store.contains(&key("b")));
    store.reach("x4");
    assert!(store.overtaken().is_empty());
    store.begin();
    assert!(!store.insert(key("a"), "x1", None, || 0));
    assert_eq!(store.complete("x5"), ["b"]);
}

#[tokio::test]
async fn synced_resolves_with_first_list() {
    let store = TestStore::new();
    assert!(!store.is_synced());
    store.begin();
    let waiting = store.clone();
    let wait = tokio::spawn(async move { waiting.synced().await });
    store.complete("1");
    wait.await.expect("the wait ends");
}

#[tokio::test(start_paused = true)]
async fn lasting_trouble_is_returned() {
    let limit = Duration::from_secs(30);
    let wait = || tokio::time::advance(limit);
    let store = TestStore::new();
    assert_eq!(store.trouble(limit), None);
    wait().await;
    assert_eq!(store.trouble(limit), Some(Trouble::Silent));
    store.failed(Trouble::Refused("list"));
    assert_eq!(store.trouble(limit), Some(Trouble::Refused("list")));
    store.begin();
    store.complete("1");
    store.recovered();
    assert_eq!(store.trouble(limit), None);

    store.failed(Trouble::Failed("watch", "first".to_owned()));
    assert_eq!(store.trouble(limit), None, "it may be over at once");
    wait().await;
    store.failed(Trouble::Failed("watch", "last".to_owned()));
    let last = Trouble::Failed("watch", "last".to_owned());
    assert_eq!(store.trouble(limit), Some(last));
    store.recovered();
    assert_eq!(store.trouble(limit), None);

    store.put(key("a"), "5", 5);
    assert_eq!(store.trouble(limit), None);
    wait().await;
    assert_eq!(store.trouble(limit), Some(Trouble::Behind));
    store.insert(key("a"), "5", None, || 5);
    assert_eq!(store.trouble(limit), None);
}
