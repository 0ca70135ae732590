//! Images of the tests' pods, made from programs on this machine under the names that the tests use.

use std::fs;
use std::path::Path;
use std::process::Command;

use cluster::image::{self, Image};
use cluster::kubernetes::Suite;
use cluster::{Cluster, Home, Packages, Progress, run};

use crate::error::{At, Error, Result};

/// The image of most pods, in any version.
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost";
/// An old Debian, whose shell, `dig` and `getent` the tests use. The tests check that names are resolved with another C
/// library; here the library is the same.
const DNSUTILS: &str = "registry.k8s.io/e2e-test-images/jessie-dnsutils";
/// Images of the harness, and their names in the tests.
const SAME: [(&str, &str); 2] = [
    (image::BUSYBOX, "registry.k8s.io/e2e-test-images/busybox"),
    (image::PAUSE, "registry.k8s.io/pause"),
];
/// Debian's programs, besides the shell.
const PROGRAMS: [(&str, &str); 6] = [
    ("usr/bin/curl", "/usr/bin/curl"),
    ("usr/bin/dig", "/usr/bin/dig"),
    ("usr/bin/getent", "/usr/bin/getent"),
    ("usr/bin/nc.openbsd", "/usr/bin/nc"),
    ("usr/bin/ss", "/usr/bin/ss"),
    // The static wget of busybox crashes if it finds the libraries of the other programs.
    ("usr/bin/wget", "/usr/bin/wget"),
];
/// The shell. The shell of busybox would prefer its built-in commands to other programs with the same names.
const SHELL: (&str, &str) = ("usr/bin/dash", "/bin/sh");
/// Commands of busybox that other programs replace.
const REPLACED: [&str; 9] = [
    "ash", "busybox", "getent", "hush", "nc", "netcat", "sh", "ss", "wget",
];

/// Loads the images of the tests into all nodes.
pub(crate) fn load(cluster: &Cluster, home: &Home, suite: &Suite, progress: &mut dyn Progress) -> Result<()> {
    let asked = run::output(Command::new(&suite.tests).arg("--list-images"))?;
    let dir = home.dir("conformance")?;
    let packages = Packages::ensure_suite(home, progress)?;
    let certificate = cluster.certificate(
        "agnhost",
        "/CN=agnhost",
        &["DNS:localhost".to_owned(), "IP:127.0.0.1".to_owned()],
    )?;
    let read = |path: &Path| fs::read(path).at("read", path);
    let mut image = Image::new()
        .file("/agnhost", 0o755, read(&suite.agnhost)?)
        .link("/agnhost-2", "agnhost")
        .file("/localhost.crt", 0o644, read(&certificate.certificate)?)
        .file("/localhost.key", 0o644, read(&certificate.key)?)
        .dir("/uploads", 0o755)
        .dir("/tmp", 0o1777)
        .file("/etc/passwd", 0o644, PASSWD)
        .file("/etc/group", 0o644, GROUP)
        .file("/etc/nsswitch.conf", 0o644, "hosts: files dns\n")
        // Like the wget of busybox, which the tests expect, it tries once.
        .file("/etc/wgetrc", 0o644, "tries = 1\n")
        .entrypoint(&["/agnhost"])
        .arguments(&["pause"]);
    image = with_busybox(image, &Packages::ensure(home, progress)?)?;
    for (path, place) in PROGRAMS.into_iter().chain([SHELL]) {
        image = image.program(&packages, path, place)?;
    }
    let archive = dir.join(format!("agnhost-{}.tar", cluster.name()));
    let name = image.write(&archive, "localhost/agnhost", None)?;
    cluster.load(&archive)?;
    fs::remove_file(&archive).at("remove", &archive)?;
    let ours = [(name.as_str(), AGNHOST), (name.as_str(), DNSUTILS)];
    for (ours, theirs) in ours.into_iter().chain(SAME) {
        for theirs in named(&asked, theirs)? {
            call(cluster, ours, theirs)?;
        }
    }
    Ok(())
}

/// Users and groups that tests expect in the image.
const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/sh
user-defined-in-image:x:1000:1000::/tmp:/bin/sh
";
/// See [`PASSWD`].
const GROUP: &str = "\
root:x:0:
nogroup:x:65534:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
";

/// Adds busybox with a link for each of its commands, except replaced ones.
fn with_busybox(image: Image, packages: &Packages) -> Result<Image> {
    let busybox = packages.file("usr/bin/busybox");
    let commands = run::output(Command::new(&busybox).arg("--list"))?;
    let content = fs::read(&busybox).at("read", &busybox)?;
    let mut image = image.file("/bin/busybox", 0o755, content);
    for command in commands.lines().filter(|command| !REPLACED.contains(command)) {
        image = image.link(&format!("/bin/{command}"), "busybox");
    }
    Ok(image)
}

/// Returns the names with the versions that the tests request.
fn named<'a>(asked: &'a str, name: &'static str) -> Result<Vec<&'a str>> {
    let is_wanted = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
    let found: Vec<&str> = asked.lines().map(str::trim).filter(is_wanted).collect();
    if found.is_empty() {
        return Err(Error::Image(name));
    }
    Ok(found)
}

/// Adds a name to an image that all nodes have.
fn call(cluster: &Cluster, image: &str, name: &str) -> Result<()> {
    for node in cluster.nodes() {
        let tag = [
            "ctr",
            "--namespace",
            "k8s.io",
            "images",
            "tag",
            "--force",
            image,
            name,
        ];
        run::output(&mut cluster.node_command(node, tag)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_matches_the_tests() {
        let asked = "gcr.io/k8s-authenticated-test/agnhost:2.6\n\
            registry.k8s.io/e2e-test-images/agnhost:2.56\nregistry.k8s.io/pause:3.10.1\n";
        assert_eq!(
            named(asked, AGNHOST).unwrap(),
            ["registry.k8s.io/e2e-test-images/agnhost:2.56"]
        );
        assert!(named("", AGNHOST).is_err());
    }
}
