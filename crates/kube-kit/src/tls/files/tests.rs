use super::*;
use rcgen::{CertificateParams, KeyPair};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use tokio::sync::Notify;

/// A certificate and its key, as PEM.
fn pair() -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["webhook.addons.svc".to_owned()]).expect("parameters");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    (certificate, key.serialize_pem())
}

/// Writes files as the kubelet does: into a new directory, which a link then points to.
fn publish(volume: &Path, number: u32, (certificate, key): &(String, String)) {
    let data = volume.join(format!("..{number}"));
    fs::create_dir(&data).expect("a directory");
    fs::write(data.join(CERTIFICATE), certificate).expect("a certificate");
    fs::write(data.join(KEY), key).expect("a key");
    let new = volume.join("..data_tmp");
    symlink(format!("..{number}"), &new).expect("a link");
    fs::rename(new, volume.join("..data")).expect("the link takes the place of the old one");
    for file in [CERTIFICATE, KEY] {
        let visible = volume.join(file);
        if !visible.exists() {
            symlink(format!("..data/{file}"), visible).expect("a link");
        }
    }
}

fn same(identity: &Identity, (certificate, key): &(String, String)) -> bool {
    let expected = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).expect("an identity");
    identity.certificate() == expected.certificate()
}

#[test]
fn read_returns_changed_files_alone() {
    let volume = tempfile::tempdir().expect("a directory");
    let mut files = Files::new(volume.path());
    let missing = files.read().expect_err("nothing is there").to_string();
    assert!(
        missing.starts_with("cannot read /") && missing.ends_with("/tls.crt"),
        "{missing}"
    );
    let (first, second) = (pair(), pair());
    publish(volume.path(), 1, &first);
    assert!(same(&files.read().expect("files").expect("an identity"), &first));
    assert!(files.read().expect("files").is_none(), "it is what it was");
    // A certificate whose key does not exist yet.
    fs::remove_file(volume.path().join(CERTIFICATE)).expect("a link less");
    fs::write(volume.path().join(CERTIFICATE), &second.0).expect("a file");
    let error = files.read().expect_err("they don't belong together").to_string();
    assert!(error.starts_with("no certificate and its key in /"), "{error}");
    assert!(files.read().expect("files").is_none(), "it is reported once");
    fs::remove_file(volume.path().join(KEY)).expect("a link less");
    fs::write(volume.path().join(KEY), &second.1).expect("a file");
    assert!(same(&files.read().expect("files").expect("an identity"), &second));
}

#[tokio::test]
async fn follow_uses_last_published_certificate() {
    let volume = tempfile::tempdir().expect("a directory");
    let tls = Tls::new(Identity::self_signed(&["temporary".to_owned()]).expect("an identity")).expect("TLS");
    let used = Arc::new(Notify::new());
    let (following, tell) = (tls.clone(), Arc::clone(&used));
    let files = Files::new(volume.path());
    let follower = tokio::spawn(async move { files.follow(&following, || tell.notify_one()).await });
    let known_by = |pair: &(String, String)| same(&super::super::lock(&tls.0).identity, pair);
    let begin = tokio::time::Instant::now();
    let mut last = pair();
    for number in 1..5 {
        last = pair();
        publish(volume.path(), number, &last);
        used.notified().await;
        // Two links are created first, and with the kubelet's order each file appears at its own time.
        while !known_by(&last) {
            used.notified().await;
        }
    }
    assert!(begin.elapsed() < 4 * CHECK, "events report changes");
    publish(volume.path(), 5, &("nothing".to_owned(), last.1.clone()));
    let good = pair();
    publish(volume.path(), 6, &good);
    used.notified().await;
    assert!(known_by(&good), "what can't be used in between changes nothing");
    follower.abort();
}

#[tokio::test(start_paused = true)]
async fn follow_finds_directory_created_later() {
    let parent = tempfile::tempdir().expect("a directory");
    let volume = parent.path().join("serving-certs");
    let tls = Tls::new(Identity::self_signed(&["temporary".to_owned()]).expect("an identity")).expect("TLS");
    let used = Arc::new(Notify::new());
    let (following, tell) = (tls.clone(), Arc::clone(&used));
    let files = Files::new(&volume);
    let follower = tokio::spawn(async move { files.follow(&following, || tell.notify_one()).await });
    tokio::task::yield_now().await;
    fs::create_dir(&volume).expect("a directory");
    let expected = pair();
    publish(&volume, 1, &expected);
    used.notified().await;
    assert!(same(&super::super::lock(&tls.0).identity, &expected));
    follower.abort();
}
