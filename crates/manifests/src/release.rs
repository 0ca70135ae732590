//! All files of a release, in the layouts of both generations (operator §13.2, §15).
//!
//! ```text
//! namespace.yaml, …                                       files to apply, flat: assets of a release
//! manifests/cluster-network-addons/<version>/…            the same by version, with the ClusterServiceVersion
//! manifests/cluster-network-addons/….package.yaml         names the current version
//! bundle/manifests/, bundle/metadata/                     content of an OLM bundle image
//! chart/                                                  the Helm chart
//! kubemacpool.yaml, …                                     the MAC pool alone
//! nmstate/                                                the node state operator alone
//! multus/                                                 multus alone
//! pod-network/                                            the pod network
//! ```

use serde_json::json;

use super::{
    Choice, Error, File, Install, chart, csv, documents, in_order, mac_pool, multus_alone, node_state, parts,
    pod_network, render_admission, render_files, yaml,
};
use operator::names;

/// Renders all files of the release `install.version`.
pub(super) fn release(
    install: &Install<'_>,
    choice: &Choice,
    replaces: Option<&str>,
) -> Result<Vec<File>, Error> {
    let version = install.version;
    let replaces = replaces.filter(|version| !version.is_empty());
    for version in replaces.into_iter().chain([version]) {
        if !is_version(version) {
            return Err(Error::Version(version.to_owned()));
        }
    }
    let csv = csv::cluster_service_version(install, choice, version, replaces)?;
    let csv = yaml("ClusterServiceVersion", &csv)?;
    let tree = format!("manifests/{}", csv::PACKAGE);
    let mut files = Vec::new();
    for (name, content) in render_files(install, choice)?
        .into_iter()
        .chain(render_admission()?)
    {
        files.push((format!("{tree}/{version}/{name}"), content.clone()));
        files.push((name.to_owned(), content));
    }
    files.extend([
        (
            format!(
                "{tree}/{version}/{}.clusterserviceversion.yaml",
                csv::name(version)
            ),
            csv.clone(),
        ),
        (format!("{tree}/{}.package.yaml", csv::PACKAGE), package(version)?),
    ]);
    files.extend(bundle(install, choice, csv)?);
    files.extend(chart::files(install, choice)?);
    let pool = mac_pool::render(install)?.into_iter();
    files.extend(pool.map(|(name, content)| (name.to_owned(), content)));
    let alone = node_state::render(install)?.into_iter();
    files.extend(alone.map(|(name, content)| (format!("{}/{name}", node_state::FOLDER), content)));
    let alone = multus_alone::render(install)?.into_iter();
    files.extend(alone.map(|(name, content)| (format!("{}/{name}", multus_alone::FOLDER), content)));
    let network = pod_network::render(install)?.into_iter();
    files.extend(network.map(|(name, content)| (format!("{}/{name}", pod_network::FOLDER), content)));
    Ok(files)
}

/// The package manifest, which names the current version.
pub(super) fn package(version: &str) -> Result<String, Error> {
    yaml(
        "package.yaml",
        &json!({
            "packageName": csv::PACKAGE,
            "channels": [{ "name": csv::CHANNEL, "currentCSV": csv::name(version) }],
        }),
    )
}

/// The content of a bundle image, with the `ClusterServiceVersion` as text.
fn bundle(install: &Install<'_>, choice: &Choice, csv: String) -> Result<Vec<File>, Error> {
    const PREFIX: &str = "operators.operatorframework.io.bundle";
    let annotations = json!({ "annotations": {
        format!("{PREFIX}.mediatype.v1"): "registry+v1",
        format!("{PREFIX}.manifests.v1"): "manifests/",
        format!("{PREFIX}.metadata.v1"): "metadata/",
        format!("{PREFIX}.package.v1"): csv::PACKAGE,
        format!("{PREFIX}.channels.v1"): csv::CHANNEL,
        format!("{PREFIX}.channel.default.v1"): csv::CHANNEL,
    } });
    // OLM creates service account, roles and Deployment; the bundle contains the roles of operands.
    let granted = parts(install, choice)?.granted;
    let definition = in_order("bundle", &api::network_addons::crd()?)?;
    let mut files = vec![
        (
            format!("bundle/manifests/{}.clusterserviceversion.yaml", names::OPERATOR),
            csv,
        ),
        (
            "bundle/manifests/network-addons-config.crd.yaml".into(),
            definition,
        ),
        (
            "bundle/metadata/annotations.yaml".into(),
            yaml("annotations.yaml", &annotations)?,
        ),
        (
            "bundle/Containerfile".into(),
            include_str!("bundle.Containerfile").into(),
        ),
    ];
    for role in granted {
        let file = format!(
            "bundle/manifests/{}.clusterrole.yaml",
            node_state::own_name(&role)
        );
        files.push((file, documents("bundle", &[role])?));
    }
    Ok(files)
}

/// Whether a text is a semantic version like `1.2.3` or `1.2.3-rc.1`: a valid directory name, which OLM and Helm can
/// compare. No word begins or ends with `-`, because the version is part of the name of an object.
fn is_version(text: &str) -> bool {
    let (text, build) = text
        .split_once('+')
        .map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, pre) = text
        .split_once('-')
        .map_or((text, None), |(core, pre)| (core, Some(pre)));
    let has_digits_alone = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = |word: &str| has_digits_alone(word) && (word == "0" || !word.starts_with('0'));
    let is_word = |word: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !word.is_empty() && word.bytes().all(is_part) && word.trim_matches('-') == word
    };
    let mut numbers = core.split('.');
    core.split('.').count() == 3
        && numbers.all(|word| !word.is_empty() && is_number(word))
        && pre.is_none_or(|pre| {
            let mut words = pre.split('.');
            words.all(|word| is_word(word) && (is_number(word) || !has_digits_alone(word)))
        })
        && build.is_none_or(|build| build.split('.').all(is_word))
}

#[cfg(test)]
mod tests;
