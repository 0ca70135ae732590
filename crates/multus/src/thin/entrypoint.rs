//! `thin_entrypoint`: installs multus of thin mode on a node and keeps its files up to date (multus.md §8.3).
//!
//! ```text
//! image: multus ────────────────────────────> <cni-bin-dir>/multus
//! service account: token, CA ──inotify──> <cni-conf-dir>/multus.d/multus.kubeconfig
//! primary CNI configuration ──inotify──> <cni-conf-dir>/00-multus.conf, or 00-multus.conflist
//! ```
//!
//! Service account tokens expire, so the kubeconfig is always updated, whatever the flags.

use super::conf::{self, Generated, Options};
use super::kubeconfig::{self, Trust};
use crate::names;
use crate::runtime_conf::conf_file;
use crate::runtime_conf::conf_keeper::{PRIMARY_WAIT, wait_for};
use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{ArgAction, Args as ClapArgs};
use cni::files::{remove_if_present, write_atomically};
use cni::json::Object;
use cni::names::key;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch_dir::{Change, DirWatcher, Event};
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tokio::time::timeout;

/// Value of `--multus-conf-file` that generates the file.
const AUTO: &str = "auto";
const AUTHORITY: &str = "ca.crt";
/// Path of the kubeconfig below the directory of CNI configurations.
const KUBECONFIG: &str = "multus.d/multus.kubeconfig";
/// Suffix of a renamed primary configuration.
const ASIDE: &str = "old";

/// Install multus of thin mode on this node, and keep its configuration up to date
#[derive(Debug, Clone, ClapArgs)]
#[allow(clippy::struct_excessive_bools, reason = "upstream's flags")]
pub struct Args {
    /// Directory of CNI binaries, as this container sees it
    #[arg(long, value_name = "DIR", default_value = "/host/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Directory of CNI configurations, as this container sees it
    #[arg(long, value_name = "DIR", default_value = "/host/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// The CNI version that the primary configuration must have
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub cni_version: String,
    /// `auto` to generate the configuration, or a file to copy
    #[arg(long, value_name = "FILE", default_value = AUTO)]
    pub multus_conf_file: String,
    /// The plugin to copy
    #[arg(long, value_name = "FILE", default_value = "/usr/src/multus-cni/bin/multus")]
    pub multus_bin_file: PathBuf,
    /// Directory of configurations that networks refer to by name, for `cniConf`
    #[arg(long, value_name = "DIR", default_value = "/host/etc/cni/multus/net.d")]
    pub multus_cni_conf_dir: String,
    /// Do not copy the plugin
    #[arg(long, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_multus_binary_copy: bool,
    /// The kubeconfig as the host sees it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/cni/net.d/multus.d/multus.kubeconfig"
    )]
    pub multus_kubeconfig_file_host: String,
    /// File name of the primary configuration, instead of the first one
    #[arg(long, value_name = "NAME", default_value = "")]
    pub multus_master_cni_file_name: String,
    /// Refuse networks of other namespaces
    #[arg(long, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub namespace_isolation: bool,
    /// Namespaces whose networks every pod may use, separated by commas
    #[arg(long, value_name = "NAMES", default_value = "")]
    pub global_namespaces: String,
    /// Directory of the primary configuration
    #[arg(long, value_name = "DIR", default_value = "/host/etc/cni/net.d")]
    pub multus_autoconfig_dir: PathBuf,
    /// Whether the plugin logs to standard error
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub multus_log_to_stderr: bool,
    /// Log level of the plugin: debug, verbose, error or panic
    #[arg(long, value_name = "LEVEL", default_value = "")]
    pub multus_log_level: String,
    /// Log file of the plugin
    #[arg(long, value_name = "FILE", default_value = "")]
    pub multus_log_file: String,
    /// Use the name of the primary network
    #[arg(long, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub override_network_name: bool,
    /// Remove the configuration at the end
    #[arg(long, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub cleanup_config_on_exit: bool,
    /// Do not follow changes of the primary configuration
    #[arg(long, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_config_watch: bool,
    /// Put the primary configuration aside, with `.old` behind its name
    #[arg(long, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub rename_conf_file: bool,
    /// A file whose existence means that the default network is ready
    #[arg(long, value_name = "FILE", default_value = "")]
    pub readiness_indicator_file: String,
    /// Directory that is searched first for plugins, for `binDir`
    #[arg(long, value_name = "DIR", default_value = "")]
    pub additional_bin_dir: String,
    /// Give the primary configuration the version `--cni-version` in the generated file
    #[arg(long, hide = true, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub force_cni_version: bool,
    /// Do not verify the certificate of the API server
    #[arg(long, hide = true, default_value_t, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_tls_verify: bool,
}

impl Args {
    fn is_auto(&self) -> bool {
        self.multus_conf_file == AUTO
    }

    fn options(&self) -> Options {
        Options {
            cni_version: self.cni_version.clone(),
            override_network_name: self.override_network_name,
            namespace_isolation: self.namespace_isolation,
            global_namespaces: self.global_namespaces.clone(),
            log_to_stderr: self.multus_log_to_stderr,
            log_level: self.multus_log_level.clone(),
            log_file: self.multus_log_file.clone(),
            bin_dir: self.additional_bin_dir.clone(),
            conf_dir: self.multus_cni_conf_dir.clone(),
            readiness_indicator: self.readiness_indicator_file.clone(),
            kubeconfig: self.multus_kubeconfig_file_host.clone(),
        }
    }

    /// Checks that all required files exist.
    fn verify(&self) -> anyhow::Result<()> {
        let there = |what: &str, path: &Path| {
            fs::metadata(path)
                .map(drop)
                .with_context(|| format!("{what} is not found: {}", path.display()))
        };
        there("cni-conf-dir", &self.cni_conf_dir)?;
        if !self.skip_multus_binary_copy {
            there("cni-bin-dir", &self.cni_bin_dir)?;
            there("multus-bin-file", &self.multus_bin_file)?;
        }
        if self.is_auto() {
            there("multus-autoconfig-dir", &self.multus_autoconfig_dir)?;
        } else {
            there("multus-conf-file", Path::new(&self.multus_conf_file))?;
        }
        Ok(())
    }
}

/// A pod's access to the API server, the source of the kubeconfig.
#[derive(Debug, Clone)]
pub struct Account {
    /// `https://host:port`
    pub server: String,
    /// Directory with token and CA.
    pub dir: PathBuf,
}

impl Account {
    fn from_environment() -> anyhow::Result<Self> {
        let variable = |name: &str| {
            let value = env::var(name).unwrap_or_default();
            ensure!(
                !value.is_empty(),
                "{name} is not set: this process does not run in a pod"
            );
            Ok(value)
        };
        let (host, port) = (
            variable("KUBERNETES_SERVICE_HOST")?,
            variable("KUBERNETES_SERVICE_PORT")?,
        );
        let protocol = env::var("KUBERNETES_SERVICE_PROTOCOL").unwrap_or_default();
        Ok(Self {
            server: kubeconfig::server(&protocol, &host, &port),
            dir: names::ACCOUNT_DIR.into(),
        })
    }

    /// The kubeconfig's text, from the current files of the directory.
    fn kubeconfig(&self, skip_tls_verify: bool) -> anyhow::Result<String> {
        let read = |name| {
            let path = self.dir.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let token = read(names::TOKEN)?;
        let authority = STANDARD.encode(read(AUTHORITY)?);
        let trust = if skip_tls_verify {
            Trust::Nothing
        } else {
            Trust::Authority(&authority)
        };
        Ok(kubeconfig::with_token(&self.server, trust, token.trim()))
    }
}

/// Installs all files and keeps them up to date until SIGTERM or SIGINT.
///
/// # Errors
/// A directory or file is missing or not writable, or no primary configuration is usable in time.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("signal handlers")?;
    let account = Account::from_environment()?;
    serve(args, account, shutdown).await
}

/// [`run`], with its inputs as arguments.
///
/// # Errors
/// As [`run`].
pub async fn serve(args: Args, account: Account, shutdown: Shutdown) -> anyhow::Result<()> {
    args.verify()?;
    let mut watcher = DirWatcher::new().context("inotify")?;
    for dir in BTreeSet::from([&args.cni_conf_dir, &args.multus_autoconfig_dir, &account.dir]) {
        if dir.exists() {
            watcher
                .add(dir)
                .with_context(|| format!("cannot watch {}", dir.display()))?;
        }
    }
    if !args.skip_multus_binary_copy {
        copy_binary(&args)?;
    }
    let mut node = Node {
        args,
        account,
        primary: None,
        written: None,
    };
    node.write_kubeconfig()?;
    let outcome = tokio::select! {
        outcome = node.keep(&mut watcher) => outcome,
        () = shutdown.wait() => Ok(()),
    };
    if node.args.cleanup_config_on_exit {
        node.clean_up();
    }
    outcome
}

fn copy_binary(args: &Args) -> anyhow::Result<()> {
    let from = &args.multus_bin_file;
    let to = args
        .cni_bin_dir
        .join(from.file_name().unwrap_or(OsStr::new(names::THIN)));
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mode = fs::metadata(from).map_or(0o755, |file| file.permissions().mode() & 0o7777);
    write_atomically(&to, &content, mode).with_context(|| format!("cannot write {}", to.display()))?;
    tracing::info!("multus {} copy succeeded!", to.display());
    Ok(())
}

/// The installed files.
struct Node {
    args: Args,
    account: Account,
    primary: Option<PathBuf>,
    written: Option<(PathBuf, Vec<u8>)>,
}

impl Node {
    /// Writes the configuration and follows its sources. Returns only errors.
    async fn keep(&mut self, watcher: &mut DirWatcher) -> anyhow::Result<()> {
        if self.args.is_auto() {
            self.find_primary(watcher).await?;
        } else {
            self.copy_provided()?;
        }
        loop {
            let events = watcher
                .next()
                .await
                .context("cannot watch the directories any longer")?;
            // One update for all pending events.
            self.follow(&events);
        }
    }

    /// Waits for a usable primary, and keeps the kubeconfig up to date meanwhile.
    async fn find_primary(&mut self, watcher: &mut DirWatcher) -> anyhow::Result<()> {
        let mut last = None;
        let found = wait_for(watcher, || {
            self.refresh_kubeconfig();
            match self
                .primary_now()
                .and_then(|primary| primary.map(|path| self.generate(path)).transpose())
            {
                Ok(done) => done,
                Err(error) => {
                    let text = format!("{error:#}");
                    if last.as_ref() != Some(&text) {
                        tracing::warn!("{text}, waiting for another");
                    }
                    last = Some(text);
                    None
                }
            }
        });
        let found = timeout(PRIMARY_WAIT, found).await;
        match (found, last) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => bail!(error),
            (Err(_), None) => bail!(
                "no master plugin was found: no CNI configuration in {} within {} s",
                self.args.multus_autoconfig_dir.display(),
                PRIMARY_WAIT.as_secs()
            ),
        }
    }

    fn follow(&mut self, events: &[Event]) {
        let concerns = |event: &Event, path: &Path| event.change == Change::Unknown || event.path == path;
        if events
            .iter()
            .any(|event| event.change == Change::Unknown || event.path.starts_with(&self.account.dir))
        {
            self.refresh_kubeconfig();
        }
        if let Some(primary) = self.primary.clone()
            && !self.args.skip_config_watch
            && primary.exists()
            && events
                .iter()
                .any(|event| event.change != Change::Gone && concerns(event, &primary))
            && let Err(error) = self.generate(primary)
        {
            tracing::error!("{error:#}, keeping the generated configuration");
        }
        if let Some((path, _)) = &self.written
            && events.iter().any(|event| concerns(event, path))
            && !path.exists()
        {
            tracing::warn!(file = %path.display(), "the configuration was removed or renamed, writing it again");
            if let Err(error) = self.write() {
                tracing::error!("{error:#}");
            }
        }
    }

    /// The current primary configuration, under its original name.
    fn primary_now(&self) -> anyhow::Result<Option<PathBuf>> {
        let dir = &self.args.multus_autoconfig_dir;
        let wanted = Some(self.args.multus_master_cni_file_name.as_str()).filter(|name| !name.is_empty());
        let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        let mut files: BTreeSet<String> = entries
            .flatten()
            .filter(|entry| !entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        if self.args.rename_conf_file {
            let aside: Vec<_> = files
                .iter()
                .filter_map(|name| name.strip_suffix(ASIDE)?.strip_suffix('.'))
                .map(str::to_owned)
                .collect();
            files.extend(aside);
        }
        Ok(conf_file::primary(dir, files.iter().map(String::as_str), wanted)?)
    }

    /// Generates and writes the configuration, then renames the primary if configured.
    fn generate(&mut self, primary: PathBuf) -> anyhow::Result<()> {
        let aside = aside(&primary);
        let is_aside = self.args.rename_conf_file && !primary.exists();
        let source = if is_aside { &aside } else { &primary };
        let mut text = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        if self.args.force_cni_version && !self.args.cni_version.is_empty() {
            text = with_version(&text, &self.args.cni_version)
                .with_context(|| format!("cannot change the version of {}", source.display()))?;
        }
        let Generated { name, text } = conf::generate(&primary, &text, &self.args.options())?;
        self.written = Some((self.args.cni_conf_dir.join(name), text.into_bytes()));
        self.write()?;
        // The file name depends on the primary's version: remove the other file.
        for other in [names::CONF_FILE, names::CONF_LIST_FILE]
            .into_iter()
            .filter(|other| *other != name)
        {
            remove(&self.args.cni_conf_dir.join(other))?;
        }
        if self.args.rename_conf_file && !is_aside {
            fs::rename(&primary, &aside).with_context(|| format!("cannot rename {}", primary.display()))?;
        }
        self.primary = Some(primary);
        Ok(())
    }

    fn copy_provided(&mut self) -> anyhow::Result<()> {
        let from = Path::new(&self.args.multus_conf_file);
        let text = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let to = self.args.cni_conf_dir.join(from.file_name().unwrap_or_default());
        self.written = Some((to, text));
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        let Some((path, text)) = &self.written else {
            return Ok(());
        };
        if fs::read(path).is_ok_and(|there| there == *text) {
            return Ok(());
        }
        write_atomically(path, text, 0o600).with_context(|| format!("cannot write {}", path.display()))?;
        tracing::info!(file = %path.display(), "wrote the CNI configuration");
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.args.cni_conf_dir.join(KUBECONFIG)
    }

    fn write_kubeconfig(&self) -> anyhow::Result<()> {
        let text = self.account.kubeconfig(self.args.skip_tls_verify)?;
        let path = self.kubeconfig();
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        write_atomically(&path, text.as_bytes(), 0o600)
            .with_context(|| format!("cannot write {}", path.display()))?;
        tracing::info!(file = %path.display(), "wrote the kubeconfig");
        Ok(())
    }

    fn refresh_kubeconfig(&self) {
        // The old one may still be valid; the next change retries.
        if let Err(error) = self.write_kubeconfig() {
            tracing::error!("{error:#}");
        }
    }

    /// Removes the configuration, and restores the primary's name.
    fn clean_up(&self) {
        let mut files = vec![names::CONF_FILE, names::CONF_LIST_FILE];
        let provided = Path::new(&self.args.multus_conf_file)
            .file_name()
            .and_then(OsStr::to_str);
        if !self.args.is_auto() {
            files = provided.into_iter().collect();
        }
        for file in files {
            if let Err(error) = remove(&self.args.cni_conf_dir.join(file)) {
                tracing::error!("{error:#}");
            }
        }
        if let Some(primary) = self
            .primary
            .as_ref()
            .filter(|primary| self.args.rename_conf_file && !primary.exists())
            && let Err(error) = fs::rename(aside(primary), primary)
        {
            tracing::error!(file = %primary.display(), %error, "cannot restore the name of the primary CNI configuration");
        }
    }
}

fn aside(primary: &Path) -> PathBuf {
    let mut name = primary.as_os_str().to_owned();
    name.push(format!(".{ASIDE}"));
    name.into()
}

/// A primary configuration's text with another version. The file itself is not changed: it belongs to the cluster's
/// network.
fn with_version(primary: &[u8], version: &str) -> anyhow::Result<Vec<u8>> {
    let mut object = Object::parse(primary)?;
    object.set(key::CNI_VERSION, &version)?;
    Ok(object.to_json().into_bytes())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    remove_if_present(path).with_context(|| format!("cannot remove {}", path.display()))
}

#[cfg(test)]
mod tests;
