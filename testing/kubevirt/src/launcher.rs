//! The image of launcher pods, with the stand-in alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use cluster::image::Image;
use cluster::{Cluster, run};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Name of the image. Its tag is the digest of its content, so that each build is a new image.
const NAME: &str = "localhost/virt-launcher-stand-in";
/// The program.
const PROGRAM: &str = "/usr/bin/virt-launcher";
/// Names under which KubeVirt runs it.
const LINKS: [&str; 5] = [
    "/usr/bin/virt-launcher-monitor",
    "/usr/bin/virt-probe",
    "/usr/bin/virt-tail",
    "/usr/bin/container-disk",
    "/usr/bin/cp",
];

/// Loads the image into every node that lacks it, and returns its name. `cache` is the directory of its archive.
pub(crate) fn load(cluster: &Cluster, program: &Path, cache: &Path) -> Result<String> {
    let file = |what, path: &Path, source| Error::File {
        what,
        path: path.to_owned(),
        source,
    };
    let digest = |content: &[u8]| -> String {
        let digest = Sha256::digest(content);
        digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    };
    let content = fs::read(program).map_err(|source| file("read", program, source))?;
    let archive = cache.join(format!("launcher-{}.tar", digest(&content)));
    if !archive.is_file() {
        let stripped = archive.with_extension("stripped");
        // Without strip, the image is larger.
        let strip = run::output(Command::new("strip").arg("-o").arg(&stripped).arg(program));
        let content = if strip.is_ok() {
            fs::read(&stripped).map_err(|source| file("read", &stripped, source))?
        } else {
            content
        };
        let _ = fs::remove_file(&stripped);
        LINKS
            .iter()
            .fold(Image::new().file(PROGRAM, 0o755, content), |image, link| {
                image.link(link, PROGRAM)
            })
            .entrypoint(&[PROGRAM])
            .write(&archive, NAME, None)?;
    }
    let names = cluster.load(&archive)?;
    Ok(names.into_iter().next().unwrap_or_else(|| NAME.to_owned()))
}
