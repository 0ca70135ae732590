//! A certificate authority for test clusters, by the `openssl` command.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::Packages;
use crate::error::{At, Result};
use crate::run;

const DAYS: &str = "3650";
/// The certificate authority of the cluster, for the API server and its clients.
const AUTHORITY: &str = "ca";
const KEY: [&str; 5] = [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
];

/// Certificates, keys and tokens in one directory. Each is created once.
#[derive(Debug)]
pub(crate) struct Pki {
    dir: PathBuf,
    packages: Packages,
}

impl Pki {
    /// Returns a PKI with its files in `dir`.
    pub(crate) fn new(dir: &Path, packages: &Packages) -> Result<Self> {
        fs::create_dir_all(dir).at("create", dir)?;
        let pki = Self {
            dir: dir.to_owned(),
            packages: packages.clone(),
        };
        pki.authority(AUTHORITY, "/CN=weft-test-cluster")?;
        if !pki.file("sa.key").exists() {
            let mut key = pki.openssl();
            key.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"])
                .arg(pki.file("sa.new"));
            pki.finish(&mut key, "sa.new", "sa.key")?;
        }
        Ok(pki)
    }

    /// Returns a file of the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates `NAME.crt` and `NAME.key` of a certificate authority.
    pub(crate) fn authority(&self, name: &str, subject: &str) -> Result<()> {
        let certificate = format!("{name}.crt");
        if self.file(&certificate).exists() {
            return Ok(());
        }
        let unfinished = format!("{name}.new");
        let mut ca = self.openssl();
        ca.args(["req", "-x509", "-days", DAYS, "-subj", subject])
            .args(KEY);
        ca.arg("-keyout")
            .arg(self.file(&format!("{name}.key")))
            .arg("-out")
            .arg(self.file(&unfinished));
        self.finish(&mut ca, &unfinished, &certificate)
    }

    fn openssl(&self) -> Command {
        self.packages.command("usr/bin/openssl")
    }

    fn finish(&self, command: &mut Command, unfinished: &str, file: &str) -> Result<()> {
        run::output(command)?;
        fs::rename(self.file(unfinished), self.file(file)).at("create", &self.file(file))
    }

    /// Creates `NAME.crt` and `NAME.key`, signed by the certificate authority of the cluster. `names` are subject
    /// alternative names in openssl's form, `IP:10.0.0.1` or `DNS:kubernetes`. A certificate with other names is
    /// replaced.
    pub(crate) fn certificate(&self, name: &str, subject: &str, names: &[String]) -> Result<()> {
        self.certificate_of(AUTHORITY, name, subject, names)
    }

    /// Like [`Self::certificate`], signed by another certificate authority of the directory.
    pub(crate) fn certificate_of(
        &self,
        authority: &str,
        name: &str,
        subject: &str,
        names: &[String],
    ) -> Result<()> {
        let extension = self.file(&format!("{name}.ext"));
        let mut wanted =
            "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
                .to_owned();
        if !names.is_empty() {
            wanted.push_str(&format!("subjectAltName={}\n", names.join(",")));
        }
        let certificate = format!("{name}.crt");
        let same = fs::read_to_string(&extension).is_ok_and(|text| text == wanted);
        if same && self.file(&certificate).exists() {
            return Ok(());
        }
        let _ = fs::remove_file(self.file(&certificate));
        fs::write(&extension, wanted).at("write", &extension)?;
        let request = self.file(&format!("{name}.csr"));
        let mut ask = self.openssl();
        ask.args(["req", "-new", "-subj", subject]).args(KEY);
        run::output(
            ask.arg("-keyout")
                .arg(self.file(&format!("{name}.key")))
                .arg("-out")
                .arg(&request),
        )?;
        let mut sign = self.openssl();
        sign.args(["x509", "-req", "-days", DAYS, "-CAcreateserial"]);
        sign.arg("-in").arg(&request).arg("-extfile").arg(&extension);
        sign.arg("-CA")
            .arg(self.file(&format!("{authority}.crt")))
            .arg("-CAkey")
            .arg(self.file(&format!("{authority}.key")));
        let unfinished = format!("{name}.new");
        sign.arg("-out").arg(self.file(&unfinished));
        self.finish(&mut sign, &unfinished, &certificate)
    }

    /// Returns a random token for the user `name`, created once.
    pub(crate) fn token(&self, name: &str) -> Result<String> {
        let file = self.file(&format!("{name}.token"));
        if let Ok(token) = fs::read_to_string(&file)
            && token.len() == 32
        {
            return Ok(token);
        }
        let random = Path::new("/dev/urandom");
        let mut bytes = [0_u8; 16];
        fs::File::open(random)
            .and_then(|mut file| file.read_exact(&mut bytes))
            .at("read", random)?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        write_secret(&file, &token)?;
        Ok(token)
    }

    /// Writes the API server's file of static tokens. `users` are (user, comma-separated groups).
    pub(crate) fn token_file(&self, users: &[(&str, &str)]) -> Result<PathBuf> {
        let mut text = String::new();
        for (user, groups) in users {
            text.push_str(&format!(
                "{},{user},{user},\"{groups}\"\n",
                self.token(&user.replace(':', "-"))?
            ));
        }
        let file = self.file("tokens.csv");
        write_secret(&file, &text)?;
        Ok(file)
    }

    /// Writes a kubeconfig for `user` at `server` to `file`.
    pub(crate) fn kubeconfig(&self, file: &Path, server: &str, user: &str) -> Result<()> {
        let token = self.token(&user.replace(':', "-"))?;
        self.kubeconfig_with(file, server, user, &token)
    }

    /// Writes a kubeconfig with `token`, in which the user is called `user`.
    pub(crate) fn kubeconfig_with(&self, file: &Path, server: &str, user: &str, token: &str) -> Result<()> {
        let ca = self.file("ca.crt");
        let ca = fs::read(&ca).at("read", &ca)?;
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "weft", "cluster": { "server": server, "certificate-authority-data": base64(&ca) } }],
            "users": [{ "name": user, "user": { "token": token } }],
            "contexts": [{ "name": "weft", "context": { "cluster": "weft", "user": user } }],
            "current-context": "weft",
        });
        write_secret(file, &format!("{config:#}\n"))
    }
}

/// Writes or replaces a file that only its owner may read.
fn write_secret(file: &Path, text: &str) -> Result<()> {
    let unfinished = file.with_extension("unfinished");
    let _ = fs::remove_file(&unfinished);
    let open = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished);
    open.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
        .at("write", &unfinished)?;
    fs::rename(&unfinished, file).at("create", file)
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for position in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * position)) as usize & 63];
            text.push(if position <= chunk.len() {
                letter.into()
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_follows_the_test_vectors_of_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
