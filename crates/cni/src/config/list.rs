//! Lists of plugins, from a text, from one plugin's config, and from a folder (multus §10.1, §10.2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::NetworkConfig;
use crate::env::is_identifier;
use crate::json::{self, Object};
use crate::names::key;
use crate::version::Version;

/// A network: plugins that run in order, each seeing the result of the one before.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the switches of the format")]
pub struct NetworkList {
    /// The network's name.
    pub name: String,
    /// `cniVersion` as written, or the greatest of `cniVersions`; empty means 0.1.0.
    pub version_text: String,
    /// CHECK succeeds without calling anything.
    pub disable_check: bool,
    /// GC does nothing.
    pub disable_gc: bool,
    /// No plugins are added from the folder beside the file.
    pub load_only_inlined: bool,
    /// The plugins, in order of ADD.
    pub plugins: Vec<NetworkConfig>,
    /// Whether this was the config of one plugin and not a list: the plugin's text is then the network's.
    pub single: bool,
    /// The text this was read from; for [`single`](Self::single) ones the plugin's.
    pub text: String,
}

/// Why a network could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A list that is no JSON object, or a key of the wrong type.
    #[error("error parsing configuration list: {0}")]
    List(#[source] json::Error),
    /// A list without a name.
    #[error("error parsing configuration list: no name")]
    NoName,
    /// A switch that is neither a boolean nor its text.
    #[error("error parsing configuration list: invalid {key} value \"{value}\"")]
    Switch {
        /// The key.
        key: &'static str,
        /// Its JSON text.
        value: String,
    },
    /// A list with an empty `plugins`.
    #[error("error parsing configuration list: no plugins in list")]
    NoPlugins,
    /// A plugin of a list.
    #[error("failed to parse plugin config {index}: {cause}")]
    Plugin {
        /// Its place in the list.
        index: usize,
        /// What is wrong with it.
        #[source]
        cause: Box<LoadError>,
    },
    /// A plugin's config that is no JSON object, or a key of the wrong type.
    #[error("error parsing configuration: {0}")]
    Config(#[source] json::Error),
    /// A plugin's config without a type.
    #[error("error parsing configuration: missing 'type'")]
    NoType,
    /// A file that could not be read.
    #[error("error reading {}: {cause}", .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        cause: io::Error,
    },
    /// A file that holds no valid list.
    #[error("Error loading CNI conflist file {}: {cause}", .path.display())]
    ListFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: Box<LoadError>,
    },
    /// A file that holds no valid config.
    #[error("Error loading CNI config file {}: {cause}", .path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: Box<LoadError>,
    },
    /// A list file whose name can not name a folder.
    #[error("invalid characters found in network name {0}")]
    Name(String),
    /// Nothing inlined and nothing in the folder.
    #[error("no plugin configs found")]
    NoPluginConfigs,
    /// An empty folder.
    #[error("No networks found in {}", .0.display())]
    EmptyFolder(PathBuf),
    /// No file holds that name.
    #[error("no network available in the name {name} in cni dir {}", .folder.display())]
    NotFound {
        /// The name that was asked for.
        name: String,
        /// Where.
        folder: PathBuf,
    },
}

impl NetworkList {
    /// Reads a list (an object with `plugins`).
    pub fn parse(text: &[u8]) -> Result<Self, LoadError> {
        let object = Object::parse(text).map_err(LoadError::List)?;
        let name: String = object
            .read(key::NAME)
            .map_err(LoadError::List)?
            .unwrap_or_default();
        if name.is_empty() {
            return Err(LoadError::NoName);
        }
        let load_only_inlined = switch(&object, key::LOAD_ONLY_INLINED)?;
        let plugins: Option<Vec<Box<RawValue>>> = object
            .get(key::PLUGINS)
            .map(|raw| serde_json::from_str(raw.get()))
            .transpose()
            .map_err(|error| LoadError::List(json::Error::from(error)))?;
        let plugins = match plugins {
            Some(plugins) if plugins.is_empty() => return Err(LoadError::NoPlugins),
            None if load_only_inlined => return Err(LoadError::NoPlugins),
            Some(plugins) => plugins,
            None => Vec::new(),
        };
        let plugins = plugins
            .iter()
            .enumerate()
            .map(|(index, raw)| {
                parse_plugin(raw.get().as_bytes()).map_err(|cause| LoadError::Plugin {
                    index,
                    cause: Box::new(cause),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name,
            version_text: chosen_version(&object)?,
            disable_check: switch(&object, key::DISABLE_CHECK)?,
            disable_gc: switch(&object, key::DISABLE_GC)?,
            load_only_inlined,
            plugins,
            single: false,
            text: String::from_utf8_lossy(text).into_owned(),
        })
    }

    /// Reads one plugin's config as a network of its own. The name may be missing.
    pub fn parse_single(text: &[u8]) -> Result<Self, LoadError> {
        let plugin = parse_plugin(text)?;
        Ok(Self {
            name: plugin.name().to_owned(),
            version_text: plugin.version_text().to_owned(),
            plugins: vec![plugin],
            single: true,
            text: String::from_utf8_lossy(text).into_owned(),
            ..Self::default()
        })
    }

    /// Reads a list, or one plugin's config, by whether there is a `plugins` key.
    pub fn parse_any(text: &[u8]) -> Result<Self, LoadError> {
        let object = Object::parse(text).map_err(LoadError::Config)?;
        if object.contains(key::PLUGINS) {
            Self::parse(text)
        } else {
            Self::parse_single(text)
        }
    }

    /// Reads a file: `.conflist` as a list with the plugins of the folder `<name>/` beside it, anything else as one
    /// plugin's config.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = read(path)?;
        if path.extension().is_some_and(|extension| extension == "conflist") {
            let mut list = Self::parse(&text)?;
            if !list.load_only_inlined {
                list.append_folder(path.parent().unwrap_or_else(|| Path::new(".")))?;
            }
            return Ok(list);
        }
        Self::parse_single(&text)
    }

    /// Adds the plugins of the `*.conf` files in `<folder>/<name>/`, sorted by name. [`text`](Self::text) stays what was
    /// read. A list that has no plugins even then is an error.
    pub fn append_folder(&mut self, folder: &Path) -> Result<(), LoadError> {
        if !is_identifier(&self.name) {
            return Err(LoadError::Name(self.name.clone()));
        }
        let folder = folder.join(&self.name);
        for path in files_with_extension(&folder, &["conf"])? {
            let plugin = parse_plugin(&read(&path)?).map_err(|cause| LoadError::ConfigFile {
                path: path.clone(),
                cause: Box::new(cause),
            })?;
            self.plugins.push(plugin);
        }
        if self.plugins.is_empty() {
            Err(LoadError::NoPluginConfigs)
        } else {
            Ok(())
        }
    }

    /// The network's version; `None` when the text is no version.
    pub fn version(&self) -> Option<Version> {
        self.version_text.parse().ok()
    }
}

fn parse_plugin(text: &[u8]) -> Result<NetworkConfig, LoadError> {
    let config = NetworkConfig::parse(text).map_err(LoadError::Config)?;
    if config.plugin().is_empty() {
        Err(LoadError::NoType)
    } else {
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|cause| LoadError::Read {
        path: path.to_owned(),
        cause,
    })
}

/// `true`, `false`, or either as a text.
fn switch(object: &Object, key: &'static str) -> Result<bool, LoadError> {
    match object.get(key).map(RawValue::get) {
        None => Ok(false),
        Some(text) => match text.trim_matches('"').to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" | "" => Ok(false),
            _ => Err(LoadError::Switch {
                key,
                value: text.to_owned(),
            }),
        },
    }
}

/// The greatest of `cniVersion` and `cniVersions` that is known; `cniVersion` alone is taken as it is.
fn chosen_version(object: &Object) -> Result<String, LoadError> {
    let single: String = object
        .read(key::CNI_VERSION)
        .map_err(LoadError::List)?
        .unwrap_or_default();
    let several: Vec<String> = object
        .read(key::CNI_VERSIONS)
        .map_err(LoadError::List)?
        .unwrap_or_default();
    let greatest = several
        .iter()
        .chain([&single])
        .filter_map(|text| text.parse::<Version>().ok())
        .max();
    Ok(match greatest {
        Some(version) if !several.is_empty() => version.to_string(),
        _ => single,
    })
}

/// The files of a folder with one of the extensions, sorted by name; no folder, no files.
pub fn files_with_extension(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |cause| LoadError::Read {
        path: folder.to_owned(),
        cause,
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let wanted = path
            .extension()
            .is_some_and(|found| extensions.iter().any(|extension| found == *extension));
        if wanted && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The network called `name` in a folder, as attachments without a config of their own find it (multus §10.1). An empty
/// `name` takes the first file. A broken file sorted before the match is an error.
pub fn find_by_name(folder: &Path, name: &str) -> Result<NetworkList, LoadError> {
    let files = files_with_extension(folder, &["conf", "json", "conflist"])?;
    if files.is_empty() {
        return Err(LoadError::EmptyFolder(folder.to_owned()));
    }
    for path in files {
        let is_list = path.extension().is_some_and(|extension| extension == "conflist");
        let network = NetworkList::load(&path).map_err(|cause| {
            let (path, cause) = (path.clone(), Box::new(cause));
            if is_list {
                LoadError::ListFile { path, cause }
            } else {
                LoadError::ConfigFile { path, cause }
            }
        })?;
        if name.is_empty() || network.name == name {
            return Ok(network);
        }
    }
    Err(LoadError::NotFound {
        name: name.to_owned(),
        folder: folder.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        NetworkList::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn lists_are_read() {
        let list = NetworkList::parse(
            br#"{"cniVersion":"0.4.0","cniVersions":["1.0.0","9.0.0","0.3.1"],"name":"n","disableCheck":"true","plugins":[{"type":"a"},{"type":"b"}]}"#,
        )
        .unwrap();
        assert_eq!(list.version(), Some(Version::V1_0_0));
        assert!(list.disable_check && !list.disable_gc);
        assert_eq!(
            list.plugins.iter().map(NetworkConfig::plugin).collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn broken_lists_say_what_is_wrong() {
        assert_eq!(
            error(r#"{"plugins":[]}"#),
            "error parsing configuration list: no name"
        );
        assert_eq!(
            error(r#"{"name":"n","plugins":[]}"#),
            "error parsing configuration list: no plugins in list"
        );
        assert_eq!(
            error(r#"{"name":"n","plugins":[{"type":"a"},{}]}"#),
            "failed to parse plugin config 1: error parsing configuration: missing 'type'"
        );
        assert!(error(r#"{"name":"n","disableGC":3,"plugins":[{"type":"a"}]}"#).contains("disableGC"));
    }

    #[test]
    fn a_folder_beside_the_file_adds_plugins() {
        // multus#29
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("10-n.conflist");
        fs::create_dir(folder.path().join("n")).unwrap();
        fs::write(folder.path().join("n/x.conf"), r#"{"type":"x"}"#).unwrap();
        fs::write(folder.path().join("n/ignored.json"), "broken").unwrap();
        let types = |text: &str| {
            fs::write(&file, text).unwrap();
            let list = NetworkList::load(&file)?;
            Ok::<_, LoadError>(
                list.plugins
                    .iter()
                    .map(|p| p.plugin().to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            types(r#"{"name":"n","plugins":[{"type":"a"}]}"#).unwrap(),
            ["a", "x"]
        );
        assert_eq!(
            types(r#"{"name":"n","loadOnlyInlinedPlugins":true,"plugins":[{"type":"a"}]}"#).unwrap(),
            ["a"]
        );
        assert_eq!(types(r#"{"name":"n"}"#).unwrap(), ["x"]);
        assert_eq!(
            types(r#"{"name":"other"}"#).unwrap_err().to_string(),
            "no plugin configs found"
        );
    }

    #[test]
    fn networks_are_found_by_name() {
        // multus#20, multus#21
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let find = |name: &str| find_by_name(folder.path(), name).map(|network| network.name);
        assert_eq!(
            find("x").unwrap_err().to_string(),
            format!("No networks found in {}", folder.path().display())
        );
        fs::write(at("20-b.conf"), r#"{"name":"b","type":"t"}"#).unwrap();
        fs::write(at("10-a.conflist"), r#"{"name":"a","plugins":[{"type":"t"}]}"#).unwrap();
        assert_eq!(find("b").unwrap(), "b");
        assert_eq!(find("").unwrap(), "a");
        assert!(
            find("c")
                .unwrap_err()
                .to_string()
                .starts_with("no network available in the name c in cni dir")
        );
        fs::write(at("15-broken.conf"), "{").unwrap();
        assert!(
            find("b")
                .unwrap_err()
                .to_string()
                .starts_with("Error loading CNI config file")
        );
        assert_eq!(find("a").unwrap(), "a");
    }
}
