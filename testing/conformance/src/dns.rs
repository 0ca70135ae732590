//! CoreDNS as the DNS server of the cluster.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cluster::image::Image;
use cluster::{Cluster, Home, Progress, coredns};

use crate::error::{At, Result};

/// The objects: configuration, rights, Deployment and Service.
const OBJECTS: &str = include_str!("../dns.yaml");
/// Name of the image, without its version.
const IMAGE: &str = "localhost/coredns";
/// Generous, because machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Starts it on a cluster with a pod network. Can be repeated.
pub(crate) fn up(cluster: &Cluster, home: &Home, program: &Path, progress: &mut dyn Progress) -> Result<()> {
    let content = fs::read(program).at("read", program)?;
    let archive = home
        .dir("conformance")?
        .join(format!("coredns-{}.tar", cluster.name()));
    Image::new()
        .file("/coredns", 0o755, content)
        .entrypoint(&["/coredns"])
        .write(&archive, IMAGE, Some(coredns::VERSION))?;
    cluster.load(&archive)?;
    fs::remove_file(&archive).at("remove", &archive)?;
    let kubectl = cluster.kubectl();
    kubectl.apply(OBJECTS)?;
    let deployment = ["deployment", "--namespace", "kube-system", "coredns"];
    kubectl.wait_for(&deployment, "the cluster's DNS", TIMEOUT, |deployment| {
        progress.tick("waiting for CoreDNS");
        let (wanted, ready) = (
            &deployment["spec"]["replicas"],
            &deployment["status"]["readyReplicas"],
        );
        if wanted == ready {
            Ok(())
        } else {
            Err(format!("{ready} of {wanted} replicas are ready"))
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deployment_has_the_built_version() {
        let image = format!("image: {IMAGE}:{}\n", coredns::VERSION);
        assert!(OBJECTS.contains(&image), "dns.yaml does not contain {image}");
    }
}
