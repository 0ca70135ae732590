//! Certificates on disk, in the upstream layout: one file for each certificate with its key, and a link to the
//! current one.

use cni::files::write_atomically;
use k8s_openapi::jiff::Timestamp;
use kube::config::AuthInfo;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use x509_parser::pem::parse_x509_pem;

const PREFIX: &str = "multus-client-";
const SUFFIX: &str = ".pem";
const CURRENT: &str = "current";
/// Format of the time in a file's name.
const TIME: &str = "%Y-%m-%d-%H-%M-%S";
/// Number of files kept: the current one, and the previous one that a client may still read.
const KEPT: usize = 2;

/// A certificate cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a certificate with a key.
    #[error("the issued certificate is malformed")]
    Malformed,
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCertificate {
    /// The certificate and its intermediates (PEM).
    pub certificate: String,
    /// The key (PEM).
    pub key: String,
    /// Common name of the subject.
    pub common_name: String,
    /// Start of validity, in seconds since 1970.
    pub not_before: i64,
    /// End of validity, in seconds since 1970.
    pub not_after: i64,
}

impl NodeCertificate {
    /// Parses certificates that a key follows. `None` when one of them is missing or malformed.
    pub fn parse(pem: &str) -> Option<Self> {
        let key = pem.match_indices("-----BEGIN ").map(|(at, _)| at).find(|at| {
            let line = pem[*at..].lines().next().unwrap_or_default();
            line.ends_with("KEY-----")
        })?;
        let (certificate, key) = pem.split_at(key);
        let (_, block) = parse_x509_pem(certificate.as_bytes()).ok()?;
        let parsed = block.parse_x509().ok()?;
        // A truncated key lacks its end line.
        key.trim_end().ends_with("KEY-----").then_some(())?;
        let common_name = parsed
            .subject()
            .iter_common_name()
            .next()?
            .as_str()
            .ok()?
            .to_owned();
        let validity = parsed.validity();
        Some(Self {
            common_name,
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        })
    }

    /// The certificate as user of a kubeconfig.
    pub fn auth_info(&self) -> AuthInfo {
        use base64::Engine as _;
        use base64::engine::general_purpose::STANDARD;
        AuthInfo {
            client_certificate_data: Some(STANDARD.encode(&self.certificate)),
            client_key_data: Some(STANDARD.encode(&self.key).into()),
            ..AuthInfo::default()
        }
    }
}

/// A directory of certificates.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// A store in this directory, which may be missing.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The link to the current certificate.
    pub fn current(&self) -> PathBuf {
        self.dir.join(format!("{PREFIX}{CURRENT}{SUFFIX}"))
    }

    /// The current certificate, if it is complete and has this common name.
    pub fn load(&self, common_name: &str) -> Option<NodeCertificate> {
        let path = self.current();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "cannot read the certificate of this node");
                return None;
            }
        };
        let stored = NodeCertificate::parse(&text).filter(|stored| stored.common_name == common_name);
        if stored.is_none() {
            tracing::warn!(file = %path.display(), "the stored certificate is unusable, requesting another");
        }
        stored
    }

    /// Stores a certificate and makes it the current one.
    pub fn save(&self, pem: &str) -> Result<NodeCertificate, Error> {
        let stored = NodeCertificate::parse(pem).ok_or(Error::Malformed)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| Error::Write { path, source }
        };
        fs::create_dir_all(&self.dir).map_err(failed(&self.dir))?;
        let name = format!("{PREFIX}{}{SUFFIX}", Timestamp::now().strftime(TIME));
        let path = self.dir.join(&name);
        write_atomically(&path, pem.as_bytes(), 0o600).map_err(failed(&path))?;
        let (current, aside) = (self.current(), self.dir.join(format!(".{PREFIX}{CURRENT}.new")));
        // A leftover of a process that died.
        let _ = fs::remove_file(&aside);
        // Relative, so that the link works on the host too.
        symlink(&name, &aside).map_err(failed(&aside))?;
        fs::rename(&aside, &current).map_err(failed(&current))?;
        self.sweep();
        Ok(stored)
    }

    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        let current = self.current();
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(PREFIX) && name.ends_with(SUFFIX) && *path != current
            })
            .collect();
        // Names sort by time.
        files.sort();
        files.reverse();
        for old in files.iter().skip(KEPT) {
            // The next sweep retries.
            let _ = fs::remove_file(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn pem(common_name: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        format!(
            "{}{}",
            params.self_signed(&key).unwrap().pem(),
            key.serialize_pem()
        )
    }

    #[test]
    fn newest_certificate_is_current_and_old_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(&dir.path().join("certs"));
        assert_eq!(store.load("system:multus:n1"), None);
        let first = store.save(&pem("system:multus:n1")).unwrap();
        assert_eq!(store.load("system:multus:n1"), Some(first.clone()));
        assert_eq!(store.load("system:multus:n2"), None, "of another node");
        let target = fs::read_link(store.current()).unwrap();
        let name = target.to_str().unwrap();
        assert!(
            name.starts_with("multus-client-2") && target.extension() == Some("pem".as_ref()),
            "{name}"
        );
        for old in [
            "2001-01-01-00-00-00",
            "2002-01-01-00-00-00",
            "2003-01-01-00-00-00",
        ] {
            fs::write(dir.path().join(format!("certs/multus-client-{old}.pem")), "").unwrap();
        }
        let second = store.save(&pem("system:multus:n1")).unwrap();
        assert_ne!(first.certificate, second.certificate);
        assert_eq!(store.load("system:multus:n1"), Some(second));
        assert!(
            !dir.path()
                .join("certs/multus-client-2002-01-01-00-00-00.pem")
                .exists()
        );
    }

    #[test]
    fn truncated_certificate_is_refused() {
        let whole = pem("system:multus:n1");
        assert!(NodeCertificate::parse(&whole).is_some());
        let key = whole.find("-----BEGIN PRIVATE").unwrap();
        for part in [
            "",
            &whole[..key],
            &whole[key..],
            &whole[..whole.len() - 10],
            "-----BEGIN CERTIFICATE-----\nAA",
        ] {
            assert_eq!(NodeCertificate::parse(part), None, "{part}");
        }
    }
}
