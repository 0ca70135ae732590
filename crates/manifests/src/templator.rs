//! `manifest-templator` and `csv-generator`, which builds of parent operators run in the image (operator §13.3).

use std::{collections::BTreeMap, ffi::OsString, fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches};
use serde_json::{Value, json};

use super::{
    Choice, Error, Install, csv, documents, example_objects, in_order, parts, print, template, yaml,
};
use operator::{
    images::{OPERANDS, Operand},
    manifest::Manifest,
    names,
};

/// Arguments of both commands.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Version of the `ClusterServiceVersion`
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) version: String,
    /// Version that it replaces
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) version_replaces: String,
    /// Version of the operator, for status and labels
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) operator_version: String,
    /// Namespace of the operator
    #[arg(long, default_value = names::DEFAULT_NAMESPACE)]
    pub(crate) namespace: String,
    /// Registry and organisation of the operator's image
    #[arg(long, default_value = "localhost")]
    pub(crate) container_prefix: String,
    /// Name of the operator's image
    #[arg(long, default_value = names::OPERATOR)]
    pub(crate) image_name: String,
    /// Tag of the operator's image
    #[arg(long, default_value = "latest")]
    pub(crate) container_tag: String,
    /// Pull policy of the operator's image
    #[arg(long, default_value = "Always")]
    pub(crate) image_pull_policy: String,
    /// Whether the operator gets the rights that it needs in order to deploy multus
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", value_parser = go_bool)]
    pub(crate) allow_multus: bool,
    /// Append the definition of NetworkAddonsConfig
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", value_parser = go_bool)]
    pub(crate) dump_crds: bool,
    /// Template to fill in; csv-generator has one of its own
    #[arg(long, value_name = "FILE")]
    pub(crate) input_file: Option<PathBuf>,
    /// Images of the components.
    #[command(flatten)]
    pub(crate) images: ImageArgs,
}

/// Images of the components by their variable; a missing one is Weft's own.
#[derive(Clone, Debug, Default)]
pub struct ImageArgs(BTreeMap<&'static str, String>);

impl clap::Args for ImageArgs {
    fn augment_args(command: Command) -> Command {
        let flag = |operand: Operand| {
            Arg::new(operand.flag)
                .long(operand.flag)
                .value_name("REF")
                .help(operand.about)
        };
        command
            .next_help_heading("Images of components, Weft's own by default")
            .args(csv::images_of_parents().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ImageArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |operand: Operand| {
            let image = matches.get_one::<String>(operand.flag)?;
            (!image.is_empty()).then(|| (operand.variable, image.clone()))
        };
        Ok(Self(OPERANDS.into_iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses the value of a boolean flag as Go does.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not true or false".to_owned()),
    }
}

/// The arguments without unknown flags: parents pass the flags of other generators too.
pub fn known(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = Args::augment_args(Command::new("templator"));
    let takes_value = |flag: &str| {
        let name = flag.split('=').next().unwrap_or_default();
        let argument = command
            .get_arguments()
            .find(|argument| argument.get_long() == Some(name));
        argument.map(|argument| !argument.is_require_equals_set() && !flag.contains('='))
    };
    let mut kept = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        if text == "--" {
            break;
        }
        if matches!(text.as_str(), "-h" | "--help") {
            kept.push(argument);
            continue;
        }
        match text.strip_prefix("--").map(takes_value) {
            Some(Some(true)) => {
                kept.push(argument);
                kept.extend(arguments.next());
            }
            Some(Some(false)) => kept.push(argument),
            Some(None) | None => {}
        }
    }
    kept
}

/// Error without `--input-file`.
const NO_INPUT_FILE: &str = "Must specify input file";

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", NO_INPUT_FILE)]
    NoInputFile,
}

/// `manifest-templator`: fills in a template, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let file = args.input_file.as_ref().ok_or(Failure::NoInputFile)?;
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let data = data(args)?;
    let mut text =
        template::render(&text, &data).with_context(|| format!("cannot fill in {}", file.display()))?;
    if args.dump_crds {
        text.push_str(&definition()?);
    }
    print(&text)
}

/// `csv-generator`: prints the `ClusterServiceVersion`, or fills in a template.
pub fn run_csv(args: &Args) -> anyhow::Result<()> {
    if args.input_file.is_some() {
        return run(args);
    }
    print(&generated_csv(args)?)
}

fn generated_csv(args: &Args) -> Result<String, Error> {
    let image = args.image();
    let replaces = Some(args.version_replaces.as_str());
    let csv = csv::cluster_service_version(&args.install(&image), &args.choice(), &args.version, replaces)?;
    let mut text = yaml("ClusterServiceVersion", &csv)?;
    if args.dump_crds {
        text.push_str(&definition()?);
    }
    Ok(text)
}

impl Args {
    /// `prefix/name:tag`; parents that pin a digest set `name@sha256` as the name.
    fn image(&self) -> String {
        format!(
            "{}/{}:{}",
            self.container_prefix, self.image_name, self.container_tag
        )
    }

    fn install<'a>(&'a self, image: &'a str) -> Install<'a> {
        Install {
            image,
            namespace: &self.namespace,
            version: &self.operator_version,
            pull_policy: &self.image_pull_policy,
        }
    }

    fn choice(&self) -> Choice {
        Choice {
            images: self.images.0.clone(),
            allow_multus: self.allow_multus,
        }
    }
}

/// The data of templates.
fn data(args: &Args) -> Result<Value, Error> {
    let image = args.image();
    let (install, choice) = (args.install(&image), args.choice());
    let parts = parts(&install, &choice)?;
    let role = parts.accounts.iter().find(|object| object.kind() == "Role");
    // Parents set the image variables, and their templates have a single role.
    let (Some(cluster_role), Some(role)) = (parts.whole_cluster_role(), role) else {
        return Err(Error::Empty {
            file: "accounts.yaml",
        });
    };
    let definition_object = api::network_addons::crd()?;
    let names = &definition_object.spec.names;
    let versions = definition_object.spec.versions.iter();
    let versions: Vec<Value> = versions.map(|version| json!({ "Name": version.name })).collect();
    let related = csv::related_images(&install, &choice).into_iter();
    let related: Vec<Value> = related
        .map(|image| json!({ "Name": image.name, "Ref": image.reference }))
        .collect();
    let image = |variable| args.images.0.get(variable).map_or("", String::as_str);
    let addons: serde_json::Map<String, Value> = OPERANDS
        .into_iter()
        .map(|operand| (operand.field.to_owned(), json!(image(operand.variable))))
        .collect();
    Ok(json!({
        "Version": args.version,
        "VersionReplaces": args.version_replaces,
        "OperatorVersion": args.operator_version,
        "Namespace": args.namespace,
        "ContainerPrefix": args.container_prefix,
        "ImageName": args.image_name,
        "ContainerTag": args.container_tag,
        "ImagePullPolicy": args.image_pull_policy,
        "AddonsImages": addons,
        "CNA": {
            "Deployment": document(&parts.deployment)?,
            "DeploymentSpec": indented(&parts.deployment.value()["spec"])?,
            "RoleString": document(role)?,
            "Rules": indented(&role.value()["rules"])?,
            "ClusterRoleString": document(&cluster_role)?,
            "ClusterRules": indented(&cluster_role.value()["rules"])?,
            "NodeStateClusterRoleString": format!("---\n{}", documents("nmstate-role.yaml", &parts.granted)?),
            "CRD": {
                "ObjectMeta": { "Name": definition_object.metadata.name },
                "Spec": {
                    "Group": definition_object.spec.group,
                    "Scope": definition_object.spec.scope,
                    "Names": {
                        "Kind": names.kind, "ListKind": names.list_kind,
                        "Plural": names.plural, "Singular": names.singular,
                    },
                    "Versions": versions,
                },
            },
            "CRDVersion": versions[0]["Name"],
            "CRDString": definition()?,
            "CRString": format!("---\n{}", documents("example.yaml", &example_objects()?)?),
            "RelatedImages": related,
        },
    }))
}

/// The definition, to be appended to another document.
fn definition() -> Result<String, Error> {
    Ok(format!(
        "---\n{}",
        in_order("NetworkAddonsConfig", &api::network_addons::crd()?)?
    ))
}

fn document(object: &Manifest) -> Result<String, Error> {
    Ok(format!("---\n{}", yaml("operator.yaml", object.value())?))
}

/// The form in a `ClusterServiceVersion`: rules below `rules:`, a specification below `spec:`, indented by twelve
/// blanks.
fn indented(value: &Value) -> Result<String, Error> {
    let text = yaml("ClusterServiceVersion", value)?;
    Ok(text.lines().map(|line| format!("            {line}\n")).collect())
}

#[cfg(test)]
mod tests;
