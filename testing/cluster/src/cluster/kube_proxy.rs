//! kube-proxy: a program of the nodes, or an image for the pods of an operator.

use std::fs;

use serde_json::Value;

use super::Cluster;
use crate::debian::Packages;
use crate::error::{At, Result};
use crate::image::Image;
use crate::kubernetes::{Program, Programs};
use crate::progress::Progress;

/// Key of the cluster's record: true if kube-proxy is a program of the nodes.
pub(super) const RECORDED: &str = "kubeProxy";
/// Name of the image, without its tag.
const IMAGE: &str = "localhost/kube-proxy";
/// The program in the image.
const PROGRAM: &str = "/usr/local/bin/kube-proxy";
/// The program for packet rules, which kube-proxy runs in mode nftables: among Debian's packages, and in the image.
const NFT: (&str, &str) = ("usr/sbin/nft", "/usr/bin/nft");
/// The protocols of Services, by name and number. Without this file nft lists numbers, and kube-proxy removes all elements
/// of its maps after a restart: it takes them for those of unknown Services.
const PROTOCOLS: (&str, &str) = ("/etc/protocols", "tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n");

impl Cluster {
    /// Returns true if kube-proxy is a program of the nodes. The first start decides that.
    pub fn has_kube_proxy(&self) -> bool {
        keeps_kube_proxy(&self.record(), self.options.kube_proxy)
    }

    /// Creates an image of kube-proxy for mode nftables, imports it into every node, and returns its name.
    pub fn load_kube_proxy(&self, progress: &mut dyn Progress) -> Result<String> {
        let home = &self.options.home;
        let programs = Programs::ensure(home, &[Program::Proxy], progress)?;
        let packages = Packages::ensure(home, progress)?;
        progress.step("loading kube-proxy into the nodes");
        let program = programs.path(Program::Proxy);
        let content = fs::read(&program).at("read", &program)?;
        let (nft, place) = NFT;
        let (protocols, names) = PROTOCOLS;
        let archive = self.dir.join("kube-proxy.tar");
        let reference = Image::new()
            .file(PROGRAM, 0o755, content)
            .file(protocols, 0o644, names)
            .program(&packages, nft, place)?
            .entrypoint(&[PROGRAM])
            .write(&archive, IMAGE, None)?;
        self.load(&archive)?;
        fs::remove_file(&archive).at("remove", &archive)?;
        Ok(reference)
    }
}

/// Returns the recorded choice, or the one for a cluster that is new. The nodes of clusters whose record lacks it have
/// kube-proxy.
fn keeps_kube_proxy(record: &Value, chosen: bool) -> bool {
    match record {
        Value::Null => chosen,
        record => record[RECORDED].as_bool().unwrap_or(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kube_proxy_of_a_cluster_is_chosen_once() {
        for chosen in [true, false] {
            assert_eq!(keeps_kube_proxy(&Value::Null, chosen), chosen);
            assert_eq!(keeps_kube_proxy(&json!({ RECORDED: chosen }), !chosen), chosen);
            assert!(keeps_kube_proxy(&json!({ "host": "169.254.1.1" }), chosen));
        }
    }
}
