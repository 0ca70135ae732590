//! The configuration of the network for container runtimes, and the configurations of other networks in the same
//! directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cni::files;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::names::{BANDWIDTH, CNI_VERSION, CONF_EXTENSIONS, DELEGATING, HOST_LOCAL, PORTMAP, PTP};

/// All users may read the file, like the other files in the directory.
const MODE: u32 = 0o644;
/// Longer files are not read, bytes.
const LONGEST: u64 = 1024 * 1024;

/// Renders the configuration for pods in these ranges.
pub(crate) fn render(network: &str, ranges: &[IpNet], mtu: Option<u32>) -> String {
    let default = |range: &IpNet| {
        let all = if range.addr().is_ipv4() {
            "0.0.0.0/0"
        } else {
            "::/0"
        };
        json!({ "dst": all })
    };
    let mut ptp = json!({ "type": PTP });
    if let Some(mtu) = mtu {
        ptp["mtu"] = mtu.into();
    }
    ptp["ipam"] = json!({
        "type": HOST_LOCAL,
        "ranges": ranges.iter().map(|range| json!([{ "subnet": range }])).collect::<Vec<_>>(),
        "routes": ranges.iter().map(default).collect::<Vec<_>>(),
    });
    let list = json!({
        "cniVersion": CNI_VERSION,
        "name": network,
        "plugins": [
            ptp,
            { "type": PORTMAP, "capabilities": { "portMappings": true } },
            { "type": BANDWIDTH, "capabilities": { "bandwidth": true } },
        ],
    });
    format!("{list:#}\n")
}

/// Writes the file if its content differs. Returns true if the file was written.
///
/// # Errors
/// If the directory cannot be created or the file cannot be written.
pub(crate) fn ensure(path: &Path, text: &str) -> io::Result<bool> {
    match fs::read(path) {
        Ok(found) if found == text.as_bytes() => return Ok(false),
        _ => {}
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    files::write_atomically(path, text.as_bytes(), MODE)?;
    Ok(true)
}

/// Returns the configuration of another network that runtimes use instead of ours, because its file name sorts before
/// ours. A configuration that delegates to the next one, such as multus', does not count.
pub(crate) fn other_before(ours: &Path) -> Option<PathBuf> {
    let (folder, name) = (ours.parent()?, ours.file_name()?);
    let mut before: Vec<_> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|other| other < name) && is_read(path))
        .collect();
    before.sort();
    before.into_iter().find(|path| is_network(path))
}

fn is_read(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| CONF_EXTENSIONS.contains(&extension))
}

/// Returns true if a file configures a network by itself. Runtimes skip unreadable files too.
fn is_network(path: &Path) -> bool {
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct Config {
        r#type: String,
        plugins: Vec<Plugin>,
    }
    #[derive(Deserialize)]
    struct Plugin {
        r#type: Value,
    }
    let is_short = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= LONGEST);
    let text = is_short.then(|| fs::read(path).ok()).flatten();
    let config: Option<Config> = text.and_then(|text| serde_json::from_slice(&text).ok());
    let Some(config) = config else {
        return false;
    };
    let first = config.plugins.first().and_then(|plugin| plugin.r#type.as_str());
    let kind = first.unwrap_or(&config.r#type);
    !kind.is_empty() && !DELEGATING.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_both_families_has_ranges_and_default_routes() {
        let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().unwrap());
        let text = render("weft", &ranges, Some(1450));
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            list,
            json!({
                "cniVersion": "1.0.0",
                "name": "weft",
                "plugins": [
                    {
                        "type": "cnv-ptp",
                        "mtu": 1450,
                        "ipam": {
                            "type": "host-local",
                            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
                            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                        },
                    },
                    { "type": "cnv-portmap", "capabilities": { "portMappings": true } },
                    { "type": "cnv-bandwidth", "capabilities": { "bandwidth": true } },
                ],
            })
        );
        assert!(text.ends_with("}\n"));
        let text = render("weft", &ranges[..1], None);
        assert!(!text.contains("mtu") && !text.contains("::/0"), "{text}");
    }

    #[test]
    fn render_uses_only_plugins_of_weft() {
        let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().unwrap());
        let list: Value = serde_json::from_str(&render("weft", &ranges, Some(1450))).unwrap();
        for plugin in list["plugins"].as_array().unwrap() {
            let name = plugin["type"].as_str().unwrap();
            assert!(plugins::plugin_by_name(name).is_some(), "{name}");
        }
        assert!(plugins::plugin_by_name(HOST_LOCAL).is_some());
    }

    #[test]
    fn ensure_writes_the_whole_file_only_if_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.d/10-weft.conflist");
        assert!(ensure(&path, "one\n").unwrap());
        assert!(!ensure(&path, "one\n").unwrap());
        assert!(ensure(&path, "two\n").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two\n");
        let files: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(files.len(), 1, "nothing is left beside it: {files:?}");
    }

    #[test]
    fn other_before_returns_the_network_that_the_runtime_uses() {
        let folder = tempfile::tempdir().unwrap();
        let ours = folder.path().join("10-weft.conflist");
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(other_before(&ours), None);
        put("10-weft.conflist", r#"{"plugins":[{"type":"cnv-ptp"}]}"#);
        put("20-late.conflist", r#"{"plugins":[{"type":"bridge"}]}"#);
        put("00-multus.conf", r#"{"type":"multus-shim"}"#);
        put("05-broken.conf", "{");
        put("06-none.conf", "{}");
        put("07-note.txt", r#"{"type":"bridge"}"#);
        fs::create_dir(folder.path().join("08-folder.conf")).unwrap();
        assert_eq!(other_before(&ours), None);
        put(
            "10-flannel.conflist",
            r#"{"plugins":[{"type":"flannel"},{"type":"portmap"}]}"#,
        );
        assert_eq!(
            other_before(&ours),
            Some(folder.path().join("10-flannel.conflist"))
        );
        put("09-old.conf", r#"{"type":"bridge"}"#);
        assert_eq!(other_before(&ours), Some(folder.path().join("09-old.conf")));
    }
}
