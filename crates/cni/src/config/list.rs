//! Networks as lists of plugins: from a text, a single plugin's config, or a directory (multus §10.1, §10.2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::NetworkConfig;
use crate::env::is_identifier;
use crate::json::{self, Object};
use crate::names::key;
use crate::version::Version;

/// A network: plugins that are called in order, each with the previous plugin's result.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the switches of the format")]
pub struct NetworkList {
    /// The network's name.
    pub name: String,
    /// `cniVersion` verbatim, or the greatest of `cniVersions`; empty means 0.1.0.
    pub version_text: String,
    /// CHECK succeeds without a plugin call.
    pub disable_check: bool,
    /// GC does nothing.
    pub disable_gc: bool,
    /// No plugins are added from the directory beside the file.
    pub load_only_inlined: bool,
    /// The plugins, in order of ADD.
    pub plugins: Vec<NetworkConfig>,
    /// Whether it was parsed from a single plugin's config instead of a list.
    pub single: bool,
    /// The source text, of the list or of the [`single`](Self::single) plugin.
    pub text: String,
}

/// A network could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A list is not a JSON object, or a key has the wrong type.
    #[error("error parsing configuration list: {0}")]
    List(#[source] json::Error),
    /// A list has no name.
    #[error("error parsing configuration list: no name")]
    NoName,
    /// A switch is neither a boolean nor the text of one.
    #[error("error parsing configuration list: invalid {key} value \"{value}\"")]
    Switch {
        /// The key.
        key: &'static str,
        /// Its JSON text.
        value: String,
    },
    /// A list has no plugins.
    #[error("error parsing configuration list: no plugins in list")]
    NoPlugins,
    /// A plugin of a list is invalid.
    #[error("failed to parse plugin config {index}: {cause}")]
    Plugin {
        /// Index in the list.
        index: usize,
        /// The cause.
        #[source]
        cause: Box<LoadError>,
    },
    /// A plugin's config is not a JSON object, or a key has the wrong type.
    #[error("error parsing configuration: {0}")]
    Config(#[source] json::Error),
    /// A plugin's config has no type.
    #[error("error parsing configuration: missing 'type'")]
    NoType,
    /// A file could not be read.
    #[error("error reading {}: {cause}", .path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A file has no valid list.
    #[error("Error loading CNI conflist file {}: {cause}", .path.display())]
    ListFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: Box<LoadError>,
    },
    /// A file has no valid config.
    #[error("Error loading CNI config file {}: {cause}", .path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: Box<LoadError>,
    },
    /// The name of a list is not valid as a directory's name.
    #[error("invalid characters found in network name {0}")]
    Name(String),
    /// The list has no inline plugins, and none in its directory.
    #[error("no plugin configs found")]
    NoPluginConfigs,
    /// The directory has no files.
    #[error("No networks found in {}", .0.display())]
    EmptyFolder(PathBuf),
    /// No file has a network of this name.
    #[error("no network available in the name {name} in cni dir {}", .folder.display())]
    NotFound {
        /// The name.
        name: String,
        /// The directory.
        folder: PathBuf,
    },
}

impl NetworkList {
    /// Parses a list (an object with `plugins`).
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

    /// Parses a single plugin's config as a network. The name may be missing.
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

    /// Parses a list if there is a key `plugins`, else a single plugin's config.
    pub fn parse_any(text: &[u8]) -> Result<Self, LoadError> {
        let object = Object::parse(text).map_err(LoadError::Config)?;
        if object.contains(key::PLUGINS) {
            Self::parse(text)
        } else {
            Self::parse_single(text)
        }
    }

    /// Loads a file: `.conflist` as a list, with the plugins of the directory `<name>/` beside it; others as a single
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

    /// Adds the plugins of the `*.conf` files in `<folder>/<name>/`, sorted by name. [`text`](Self::text) is not
    /// changed. An error if the list still has no plugins.
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

    /// The network's version; `None` if the text is not a version.
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

/// Parses `true`, `false`, or the text of one.
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

/// The greatest supported version of `cniVersion` and `cniVersions`; without `cniVersions`, `cniVersion` verbatim.
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

/// The files of a directory with one of the extensions, sorted by name. Empty without a directory.
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

/// Finds the network `name` in a directory, for NADs without a config (multus §10.1). An empty `name` matches the
/// first file. A broken file before the match is an error.
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
    fn errors_of_broken_lists_name_cause() {
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
