//! Output for the builds of parent operators (operator §13.3).

use clap::{CommandFactory as _, Parser};

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(arguments: &[&str]) -> Args {
    let arguments = known(arguments.iter().map(OsString::from));
    let matches = Cli::command()
        .no_binary_name(true)
        .try_get_matches_from(arguments)
        .expect("arguments");
    Cli::from_arg_matches(&matches).expect("arguments").args
}

fn filled(template: &str, arguments: &[&str]) -> String {
    template::render(template, &data(&args(arguments)).expect("data")).expect("a filled template")
}

#[test]
fn defaults_equal_specification() {
    let args = args(&[]);
    assert_eq!(args.namespace, "cluster-network-addons");
    assert_eq!(args.image(), "localhost/cluster-network-addons-operator:latest");
    assert_eq!(args.image_pull_policy, "Always");
    assert!(args.allow_multus && !args.dump_crds && args.input_file.is_none());
    assert!(args.images.0.is_empty());
}

#[test]
fn flags_are_parsed_as_by_go_and_unknown_ones_ignored() {
    let args = args(&[
        "--csv-version=1",
        "--version=1.2.3",
        "--something",
        "else",
        "--operator-version",
        "4.5.6",
        "positional",
        "--allow-multus=false",
        "--dump-crds",
        "--container-prefix",
        "r.example/o",
        "--image-name=weft@sha256",
        "--container-tag=0123",
        "--kubemacpool-image=r.example/pool:1",
        "--multus-image=",
        "-x",
    ]);
    assert_eq!(
        (args.version.as_str(), args.operator_version.as_str()),
        ("1.2.3", "4.5.6")
    );
    assert!(!args.allow_multus && args.dump_crds);
    assert_eq!(args.image(), "r.example/o/weft@sha256:0123");
    let chosen: Vec<_> = args.images.0.clone().into_iter().collect();
    assert_eq!(chosen, [("KUBEMACPOOL_IMAGE", "r.example/pool:1".to_owned())]);
}

#[test]
fn image_flag_sets_its_variable_alone() {
    for (flag, variable) in [
        ("multus-image", "MULTUS_IMAGE"),
        (
            "multus-dynamic-networks-image",
            "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE",
        ),
        ("linux-bridge-cni-image", "LINUX_BRIDGE_IMAGE"),
        ("linux-bridge-marker-image", "LINUX_BRIDGE_MARKER_IMAGE"),
        ("kubemacpool-image", "KUBEMACPOOL_IMAGE"),
        ("ovs-cni-image", "OVS_CNI_IMAGE"),
        ("macvtap-cni-image", "MACVTAP_CNI_IMAGE"),
        ("kube-secondary-dns-image", "KUBE_SECONDARY_DNS_IMAGE"),
        ("core-dns-image", "CORE_DNS_IMAGE"),
        ("kubevirt-ipam-controller-image", "KUBEVIRT_IPAM_CONTROLLER_IMAGE"),
    ] {
        let text = filled("{{.CNA.Deployment}}", &[&format!("--{flag}=r.example/it:1")]);
        let deployment: Value = serde_saphyr::from_str(&text).expect("YAML");
        let environment = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        let set: Vec<&str> = environment
            .as_array()
            .expect("variables")
            .iter()
            .filter(|entry| entry["value"] == "r.example/it:1")
            .filter_map(|entry| entry["name"].as_str())
            .collect();
        assert_eq!(set, [variable], "{flag}");
    }
}

/// The form of parent operators' templates.
const CSV: &str = "\
metadata:
  name: cluster-network-addons-operator.{{.Version}}
spec:
{{if .VersionReplaces}}
  replaces: cluster-network-addons-operator.{{.VersionReplaces}}
{{end}}
  install:
    spec:
      permissions:
        - serviceAccountName: cluster-network-addons-operator
          rules:
{{.CNA.Rules}}
      clusterPermissions:
        - serviceAccountName: cluster-network-addons-operator
          rules:
{{.CNA.ClusterRules}}
      deployments:
        - name: cluster-network-addons-operator
          spec:
{{.CNA.DeploymentSpec}}
  relatedImages:
  {{- range .CNA.RelatedImages }}
    - image: \"{{ .Ref }}\"
      name: \"{{ .Name }}\"
  {{- end}}
  customresourcedefinitions:
    owned:
      - name: {{.CNA.CRD.ObjectMeta.Name}}
        version: {{.CNA.CRDVersion}}
        group: {{.CNA.CRD.Spec.Group}}
        kind: {{.CNA.CRD.Spec.Names.Kind}}
";

#[test]
fn template_of_parent_gets_output_of_csv_generator() {
    let arguments = [
        "--version=1.2.3",
        "--version-replaces=1.2.2",
        "--operator-version=1.2.3",
        "--container-prefix=r.example/o",
        "--image-name=weft",
        "--ovs-cni-image=r.example/ovs:1",
    ];
    let text = filled(CSV, &arguments);
    let found: Value = serde_saphyr::from_str(&text).expect("YAML");
    let printed = generated_csv(&args(&arguments)).expect("a version");
    let expected: Value = serde_saphyr::from_str(&printed).expect("YAML");
    assert_eq!(found["metadata"]["name"], expected["metadata"]["name"]);
    for field in ["replaces", "install", "relatedImages"] {
        let mut expected = expected["spec"][field].clone();
        if field == "install" {
            expected = json!({ "spec": expected["spec"] });
        }
        assert_eq!(found["spec"][field], expected, "{field}");
    }
    let owned =
        |csv: &Value, field: &str| csv["spec"]["customresourcedefinitions"]["owned"][0][field].clone();
    for field in ["name", "version", "group", "kind"] {
        assert_eq!(owned(&found, field), owned(&expected, field), "{field}");
    }
}

#[test]
fn objects_equal_those_of_manifests() {
    let arguments = [
        "--operator-version=1.2.3",
        "--namespace=addons",
        "--container-prefix=r.example",
        "--image-name=weft",
        "--container-tag=v1",
        "--image-pull-policy=IfNotPresent",
    ];
    let template = "{{.CNA.ClusterRoleString}}\n{{.CNA.RoleString}}\n{{.CNA.Deployment}}\n\
                    {{.CNA.NodeStateClusterRoleString}}\n{{.CNA.CRDString}}\n{{.CNA.CRString}}";
    let found: Vec<Value> = serde_saphyr::from_multiple(&filled(template, &arguments)).expect("YAML");
    let install = Install {
        image: "r.example/weft:v1",
        namespace: "addons",
        version: "1.2.3",
        pull_policy: "IfNotPresent",
    };
    let files = crate::render_install(&install).expect("files");
    let [_, definition, operator, example] =
        [0, 1, 2, 3].map(|index| serde_saphyr::from_multiple::<Value>(&files[index].1).expect("YAML"));
    // A template has a single role.
    let mut cluster_role = operator[1].clone();
    let rules = [1, 5].map(|index| operator[index]["rules"].as_array().cloned().expect("rules"));
    cluster_role["rules"] = json!(rules.concat());
    let expected = [
        &cluster_role,
        &operator[3],
        &operator[7],
        &operator[8],
        &operator[9],
        &definition[0],
        &example[0],
    ];
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
}

#[test]
fn allow_multus_false_omits_rights_for_multus() {
    let rules = |arguments: &[&str]| -> Value {
        let role = filled("{{.CNA.ClusterRoleString}}", arguments);
        serde_saphyr::from_str::<Value>(&role).expect("YAML")["rules"].clone()
    };
    let (with, without) = (rules(&[]), rules(&["--allow-multus=false"]));
    let everything = json!({ "apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] });
    let devices = json!({ "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "resourceslices"],
        "verbs": ["get", "list"] });
    let daemon_set = json!({ "apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": ["multus"],
        "verbs": ["get"] });
    let with = with.as_array().expect("rules");
    let rest: Vec<&Value> = with
        .iter()
        .filter(|rule| ![&everything, &devices, &daemon_set].contains(rule))
        .collect();
    assert_eq!(rest.len() + 3, with.len());
    assert_eq!(without, json!(rest));
}

#[test]
fn run_without_template_is_an_error() {
    let error = run(&args(&["--version=1"])).expect_err("an error");
    assert_eq!(error.to_string(), "Must specify input file");
}

#[test]
fn dump_crds_appends_definition() {
    let text = generated_csv(&args(&["--version=1.2.3", "--dump-crds"])).expect("a version");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let kinds: Vec<&Value> = documents.iter().map(|document| &document["kind"]).collect();
    assert_eq!(kinds, ["ClusterServiceVersion", "CustomResourceDefinition"]);
}
