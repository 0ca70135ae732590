//! Generates kubeconfigs for the plugin, which runs on the host. Pure.

use std::path::Path;

/// How clients verify the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust<'a> {
    /// By this certificate authority (PEM, base64).
    Authority(&'a str),
    /// By the host's certificate authorities.
    System,
    /// No verification.
    Nothing,
}

/// `protocol://host:port` with the brackets that IPv6 needs.
pub fn server(protocol: &str, host: &str, port: &str) -> String {
    let protocol = if protocol.is_empty() { "https" } else { protocol };
    if host.contains(':') {
        format!("{protocol}://[{host}]:{port}")
    } else {
        format!("{protocol}://{host}:{port}")
    }
}

/// A kubeconfig with a token, as upstream's entry point writes it.
pub fn with_token(server: &str, trust: Trust<'_>, token: &str) -> String {
    let user = format!("    token: {}\n", quoted(token));
    config(server, trust, &user, ("local", "multus", "multus-context"))
}

/// A kubeconfig with certificate and key in one file, as upstream's generator writes it.
pub fn with_certificate(server: &str, trust: Trust<'_>, certificate: &Path) -> String {
    let file = quoted(&certificate.to_string_lossy());
    let user = format!("    client-certificate: {file}\n    client-key: {file}\n");
    config(
        server,
        trust,
        &user,
        ("default-cluster", "default-auth", "default-context"),
    )
}

fn config(
    server: &str,
    trust: Trust<'_>,
    user: &str,
    (cluster, name, context): (&str, &str, &str),
) -> String {
    let trust = match trust {
        Trust::Authority(authority) => format!("    certificate-authority-data: {authority}\n"),
        Trust::System => String::new(),
        Trust::Nothing => "    insecure-skip-tls-verify: true\n".to_owned(),
    };
    format!(
        "# Kubeconfig of the multus CNI plugin, written by its pod on this node.
apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: {server}
{trust}users:
- name: {name}
  user:
{user}contexts:
- name: {context}
  context:
    cluster: {cluster}
    user: {name}
current-context: {context}
"
    )
}

/// A quoted YAML string: JSON strings are valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_address_supports_both_families() {
        assert_eq!(server("", "10.96.0.1", "443"), "https://10.96.0.1:443");
        assert_eq!(server("http", "fd00::1", "443"), "http://[fd00::1]:443");
    }

    #[test]
    fn kubeconfig_contains_token() {
        assert_eq!(
            with_token("https://10.96.0.1:443", Trust::Authority("Q0E="), "a.b.c"),
            "# Kubeconfig of the multus CNI plugin, written by its pod on this node.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://10.96.0.1:443
    certificate-authority-data: Q0E=
users:
- name: multus
  user:
    token: \"a.b.c\"
contexts:
- name: multus-context
  context:
    cluster: local
    user: multus
current-context: multus-context
"
        );
        assert!(
            with_token("https://h:1", Trust::Nothing, "t").contains("    insecure-skip-tls-verify: true\n")
        );
    }
}
