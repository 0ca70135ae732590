use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;
use webhook::admission::Denial;

use super::*;
use crate::objects::{InstanceNetwork, Interface, Source};

const NAD: &str = r#"{"name":"goodnet","allowPersistentIPs":true}"#;
const PRIMARY: &str = r#"{"name":"primarynet","role":"primary","allowPersistentIPs":true,"subnets":"192.168.0.0/16,fd12:1234::123/64"}"#;
const ELEMENT: &str = "ns1/supadupanet";

#[derive(Clone, Default)]
struct Known {
    networks: HashMap<Name, Arc<Network>>,
    claims: HashMap<Name, Claim>,
    machine: Option<Machine>,
}

impl Known {
    fn with(mut self, name: &str, config: &str) -> Self {
        let id = Name::new("ns1", name);
        self.networks
            .insert(id.clone(), Arc::new(Network::read(id, config)));
        self
    }

    fn nad() -> Self {
        Self::default().with("supadupanet", NAD)
    }

    fn primary() -> Self {
        Self::default().with("udn", PRIMARY)
    }

    fn both() -> Self {
        Self::nad().with("udn", PRIMARY)
    }
}

impl Networks for Known {
    fn network(&self, definition: &Name) -> Option<Arc<Network>> {
        self.networks.get(definition).cloned()
    }

    fn primary(&self, namespace: &str) -> Option<Arc<Network>> {
        let mut primary = self.networks.values();
        primary
            .find(|network| network.id.namespace == namespace && network.is_primary())
            .cloned()
    }
}

impl Lookup for Known {
    fn claim(&self, id: &Name) -> Option<Claim> {
        self.claims.get(id).cloned()
    }

    fn machine(&self, name: &Name) -> Option<Machine> {
        assert_eq!(*name, Name::new("ns1", "vm1"));
        self.machine.clone()
    }
}

fn instance() -> Instance {
    let network = |name: &str, source| InstanceNetwork {
        name: name.to_owned(),
        source,
    };
    Instance {
        networks: [
            network("podnet", Source::Pod),
            network("randomnet", Source::Multus(Name::new("ns1", "supadupanet"))),
        ]
        .into(),
        interfaces: [Interface {
            name: "podnet".to_owned(),
            ..Interface::default()
        }]
        .into(),
        ..Instance::default()
    }
}

fn with_mac(mac: &str) -> Instance {
    let mut instance = instance();
    Arc::make_mut(&mut instance.interfaces)[0].mac = mac.to_owned();
    instance
}

fn asking(addresses: &str) -> Instance {
    let mut instance = instance();
    instance.addresses = Some(addresses.into());
    instance
}

fn pod(annotations: &[(&str, &str)]) -> Value {
    let annotations: HashMap<_, _> = annotations.iter().copied().collect();
    json!({ "metadata": { "name": "pod1", "namespace": "ns1", "annotations": annotations } })
}

fn launcher(selection: Option<&str>) -> Value {
    let selection = selection.map(|text| (names::SELECTION, text));
    let domain = (names::DOMAIN, "vm1");
    pod(&[domain].into_iter().chain(selection).collect::<Vec<_>>())
}

fn request(operation: Operation, object: &Value, old: Option<&Value>) -> Request {
    let raw = |object: &Value| RawValue::from_string(object.to_string()).unwrap();
    Request {
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        uid: "uid".to_owned(),
        operation,
        namespace: "ns1".to_owned(),
        name: "pod1".to_owned(),
        dry_run: false,
        object: Some(raw(object)),
        old_object: old.map(raw),
    }
}

/// The whole decision without the reads of the API server.
fn decide(request: &Request, instance: Option<&Instance>, known: &Known) -> Verdict {
    let review = match Review::read(request) {
        Ok(review) => review,
        Err(verdict) => return verdict,
    };
    if let Some(verdict) = review.early(known) {
        return verdict;
    }
    assert_eq!(review.instance(), Name::new("ns1", "vm1"));
    match instance {
        Some(instance) => mutate(&review, instance, known, "randomNS"),
        None => review.without_instance(),
    }
}

fn create(pod: &Value, instance: &Instance, known: &Known) -> Verdict {
    decide(&request(Operation::Create, pod, None), Some(instance), known)
}

#[track_caller]
fn assert_allowed(verdict: &Verdict, message: &str) {
    assert_eq!(verdict.denied, None);
    assert_eq!(verdict.patch, []);
    assert_eq!(verdict.message.as_deref(), Some(message));
}

#[track_caller]
fn assert_denied(verdict: &Verdict, code: u16, message: &str) {
    let expected = Denial {
        code,
        message: message.to_owned(),
    };
    assert_eq!(verdict.denied, Some(expected));
}

/// Steps of a patch, in the order of their paths: `(op, annotation, value)`.
fn steps(verdict: &Verdict) -> Vec<(&'static str, String, String)> {
    assert_eq!(verdict.denied, None);
    assert_eq!(verdict.message, None);
    let step = |change: &Change| {
        let (op, path, value) = match change {
            Change::Add { path, value } => ("add", path, value),
            Change::Replace { path, value } => ("replace", path, value),
        };
        let key = path
            .strip_prefix("/metadata/annotations/")
            .expect("an annotation");
        (
            op,
            key.replace("~1", "/"),
            value.as_str().expect("a text").to_owned(),
        )
    };
    let mut steps: Vec<_> = verdict.patch.iter().map(step).collect();
    steps.sort();
    steps
}

fn add(key: &str, value: &str) -> (&'static str, String, String) {
    ("add", key.to_owned(), value.to_owned())
}

fn replace_networks(value: &str) -> (&'static str, String, String) {
    ("replace", names::SELECTION.to_owned(), value.to_owned())
}

/// A network with a range.
const LAN: &str =
    r#"{"name":"lan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/24"}]}"#;
const LEGACY: &str = "k8s.ovn.org/primary-udn-ipamclaim";
const DEFAULT: &str = "v1.multus-cni.io/default-network";
const REFERRING: &str =
    r#"[{"name":"supadupanet","namespace":"ns1","ipam-claim-reference":"vm1.randomnet"}]"#;

#[test]
fn pod_without_a_domain_is_no_virtual_machine() {
    // kubevirt-ipam#1, kubevirt-ipam#2
    let bare = json!({ "metadata": { "name": "pod1" } });
    assert_allowed(&create(&bare, &instance(), &Known::nad()), "not a VM");
    let selecting = pod(&[(names::SELECTION, ELEMENT)]);
    assert_allowed(&create(&selecting, &instance(), &Known::nad()), "not a VM");
}

#[test]
fn secondary_and_primary_networks_get_references() {
    // kubevirt-ipam#3
    let verdict = create(&launcher(Some(ELEMENT)), &instance(), &Known::both());
    assert_eq!(
        steps(&verdict),
        [add(LEGACY, "vm1.podnet"), replace_networks(REFERRING)]
    );
}

#[test]
fn primary_network_alone_gets_the_legacy_annotation() {
    // kubevirt-ipam#4
    let verdict = create(&launcher(None), &instance(), &Known::primary());
    assert_eq!(steps(&verdict), [add(LEGACY, "vm1.podnet")]);
}

#[test]
fn hardware_address_is_requested_on_the_default_network() {
    // kubevirt-ipam#5
    let verdict = create(&launcher(None), &with_mac("02:03:04:05:06:07"), &Known::primary());
    let element = r#"[{"name":"default","namespace":"randomNS","mac":"02:03:04:05:06:07","ipam-claim-reference":"vm1.podnet"}]"#;
    assert_eq!(
        steps(&verdict),
        [add(LEGACY, "vm1.podnet"), add(DEFAULT, element)]
    );
}

#[test]
fn addresses_are_requested_on_the_default_network() {
    // kubevirt-ipam#6
    let mut asking = asking(r#"{"podnet":["192.168.1.10","fd20:1234::200"]}"#);
    Arc::make_mut(&mut asking.interfaces)[0].mac = "02:03:04:05:06:07".to_owned();
    let verdict = create(&launcher(None), &asking, &Known::primary());
    let element = r#"[{"name":"default","namespace":"randomNS","ips":["192.168.1.10/16","fd20:1234::200/64"],"mac":"02:03:04:05:06:07","ipam-claim-reference":"vm1.podnet"}]"#;
    assert_eq!(
        steps(&verdict),
        [add(LEGACY, "vm1.podnet"), add(DEFAULT, element)]
    );
}

#[test]
fn addresses_without_a_hardware_address_leave_that_out() {
    // kubevirt-ipam#7
    let verdict = create(
        &launcher(None),
        &asking(r#"{"podnet":["192.168.1.10"]}"#),
        &Known::primary(),
    );
    let element = r#"[{"name":"default","namespace":"randomNS","ips":["192.168.1.10/16"],"ipam-claim-reference":"vm1.podnet"}]"#;
    assert_eq!(
        steps(&verdict),
        [add(LEGACY, "vm1.podnet"), add(DEFAULT, element)]
    );
}

#[test]
fn secondary_network_alone_is_one_replacement() {
    // kubevirt-ipam#8
    let verdict = create(&launcher(Some(ELEMENT)), &instance(), &Known::nad());
    assert_eq!(steps(&verdict), [replace_networks(REFERRING)]);
}

#[test]
fn network_that_did_not_opt_in_is_left_alone() {
    // kubevirt-ipam#9, kubevirt-ipam#28
    for config in [r#"{"name":"goodnet"}"#, r#"{"allowPersistentIPs":false}"#, ""] {
        let known = Known::default().with("supadupanet", config);
        assert_allowed(&create(&launcher(Some(ELEMENT)), &instance(), &known), "carry on");
    }
}

#[test]
fn unreadable_selection_is_refused() {
    // kubevirt-ipam#10, kubevirt-ipam#24
    for text in ["{not json}", "a/b/c", "x@y@z", "UPPER"] {
        let verdict = create(&launcher(Some(text)), &instance(), &Known::both());
        assert_denied(&verdict, 400, "failed to parse pod network selection elements");
    }
}

#[test]
fn unknown_network_leaves_the_selection_alone() {
    // kubevirt-ipam#11, kubevirt-ipam#25
    assert_allowed(
        &create(&launcher(Some("ns1/none")), &instance(), &Known::nad()),
        "carry on",
    );
    let two = format!("{ELEMENT},ns1/none");
    assert_allowed(
        &create(&launcher(Some(&two)), &instance(), &Known::nad()),
        "carry on",
    );
}

#[test]
fn pod_without_networks_needs_no_instance() {
    // kubevirt-ipam#12
    let verdict = decide(
        &request(Operation::Create, &launcher(None), None),
        None,
        &Known::nad(),
    );
    assert_allowed(&verdict, "no mutation required");
}

#[test]
fn pod_of_a_missing_instance_is_refused_until_it_exists() {
    // kubevirt-ipam#13
    let verdict = decide(
        &request(Operation::Create, &launcher(Some(ELEMENT)), None),
        None,
        &Known::nad(),
    );
    assert_denied(
        &verdict,
        500,
        "failed to access the VMI running in pod \"ns1/pod1\": virtualmachineinstances.kubevirt.io \"vm1\" not found; \
         the pod can be created once it exists: try again",
    );
}

#[test]
fn default_network_annotation_is_not_allowed_on_creation() {
    // kubevirt-ipam#15, kubevirt-ipam#16
    for value in [r#"[{"name":"not-podnet"}]"#, r#"[{"name":"podnet"}]"#, ""] {
        let pod = pod(&[(names::DOMAIN, "vm1"), (DEFAULT, value)]);
        let verdict = create(&pod, &instance(), &Known::primary());
        assert_denied(
            &verdict,
            403,
            "multus default network annotation \"v1.multus-cni.io/default-network\" is not allowed on pod creation",
        );
    }
}

#[test]
fn default_network_annotation_is_allowed_on_update() {
    // kubevirt-ipam#17
    let pod = pod(&[(names::DOMAIN, "vm1"), (DEFAULT, r#"[{"name":"not-podnet"}]"#)]);
    let update = request(Operation::Update, &pod, Some(&pod));
    let verdict = decide(&update, Some(&instance()), &Known::primary());
    assert_eq!(steps(&verdict), [add(LEGACY, "vm1.podnet")]);
}

#[test]
fn default_network_annotation_is_allowed_where_addresses_do_not_persist() {
    // kubevirt-ipam#18
    let known = Known::default().with("udn", r#"{"name":"primarynet","role":"primary"}"#);
    let pod = pod(&[(names::DOMAIN, "vm1"), (DEFAULT, r#"[{"name":"podnet"}]"#)]);
    assert_allowed(&create(&pod, &instance(), &known), "carry on");
}

#[test]
fn instance_without_a_pod_network_or_its_interface_is_left_alone() {
    // kubevirt-ipam#19, kubevirt-ipam#20
    let mut no_network = instance();
    no_network.networks = [].into();
    assert_allowed(
        &create(&launcher(None), &no_network, &Known::primary()),
        "carry on",
    );
    let mut no_interface = instance();
    no_interface.interfaces = [].into();
    assert_allowed(
        &create(&launcher(None), &no_interface, &Known::primary()),
        "carry on",
    );
}

#[test]
fn pod_that_has_it_all_needs_nothing() {
    // kubevirt-ipam#21
    let pod = pod(&[
        (names::DOMAIN, "vm1"),
        (names::SELECTION, REFERRING),
        (LEGACY, "vm1.podnet"),
    ]);
    let update = request(Operation::Update, &pod, Some(&pod));
    assert_allowed(
        &decide(&update, Some(&instance()), &Known::both()),
        "mutation not needed",
    );
}

#[test]
fn json_selection_keeps_its_values() {
    // kubevirt-ipam#22
    let text = r#"[{"interface":"net7","name":"supadupanet","mac":"02:03:04:05:06:07","new":[1.0],"cni-args":{"b":1,"a":2}}]"#;
    let verdict = create(&launcher(Some(text)), &instance(), &Known::nad());
    let expected = r#"[{"name":"supadupanet","namespace":"ns1","mac":"02:03:04:05:06:07","interface":"net7","cni-args":{"b":1,"a":2},"ipam-claim-reference":"vm1.randomnet","new":[1.0]}]"#;
    assert_eq!(steps(&verdict), [replace_networks(expected)]);
}

#[test]
fn comma_selection_becomes_json() {
    // kubevirt-ipam#23
    let known = Known::nad().with("other", "");
    let verdict = create(
        &launcher(Some("ns1/supadupanet@net1, other")),
        &instance(),
        &known,
    );
    let expected = r#"[{"name":"supadupanet","namespace":"ns1","interface":"net1","ipam-claim-reference":"vm1.randomnet"},{"name":"other","namespace":"ns1"}]"#;
    assert_eq!(steps(&verdict), [replace_networks(expected)]);
}

#[test]
fn broken_network_of_the_pod_is_refused() {
    // kubevirt-ipam#26
    let known = Known::default().with("supadupanet", "{broken");
    let verdict = create(&launcher(Some(ELEMENT)), &instance(), &known);
    let denied = verdict.denied.expect("a refusal");
    assert_eq!(denied.code, 500);
    let text = "failed to extract CNI configuration from NAD: ";
    assert!(denied.message.contains(text), "{}", denied.message);
}

#[test]
fn broken_network_of_others_is_left_aside() {
    // kubevirt-ipam#27, kubevirt-ipam#88
    let known = Known::both().with("a-first", "{broken");
    let verdict = create(&launcher(Some(ELEMENT)), &instance(), &known);
    assert_eq!(steps(&verdict).len(), 2);
    // This includes pods that are attached to the network for other reasons than the instance's.
    let two = format!("{ELEMENT},a-first");
    let verdict = create(&launcher(Some(&two)), &instance(), &known);
    assert_eq!(steps(&verdict).len(), 2);
}

#[test]
fn network_of_the_pod_alone_is_skipped() {
    // kubevirt-ipam#29, kubevirt-ipam#30
    let known = Known::nad().with("sidecar", NAD);
    assert_allowed(
        &create(&launcher(Some("sidecar")), &instance(), &known),
        "carry on",
    );
    let mut default = instance();
    Arc::make_mut(&mut default.networks)[1].source = Source::Neither;
    assert_allowed(&create(&launcher(Some(ELEMENT)), &default, &known), "carry on");
}

#[test]
fn malformed_requested_addresses_are_refused() {
    // kubevirt-ipam#31-34
    let refused = |addresses: &str, subnets: &str| {
        let config = json!({ "role": "primary", "allowPersistentIPs": true, "subnets": subnets });
        let known = Known::default().with("udn", &config.to_string());
        let verdict = create(&launcher(None), &asking(addresses), &known);
        let denied = verdict.denied.expect("a refusal");
        assert_eq!((denied.code, verdict.patch), (500, vec![]));
        denied.message
    };
    let both = "192.168.0.0/16,fd12::/64";
    assert!(!refused("invalid json", both).is_empty());
    let one = r#"{"podnet":["192.168.1.1"]}"#;
    assert_eq!(
        refused(one, "fd12::/64"),
        "no IPv4 subnet configured for IPv4 IP request: 192.168.1.1"
    );
    assert_eq!(
        refused(r#"{"podnet":["fd12::1"]}"#, "192.168.0.0/16"),
        "no IPv6 subnet configured for IPv6 IP request: fd12::1"
    );
    assert_eq!(
        refused(r#"{"podnet":["not.an.ip.address"]}"#, both),
        "invalid IP address format: not.an.ip.address"
    );
    assert_eq!(refused(one, "192.168.0.0"), "invalid subnet format: 192.168.0.0");
}

#[test]
fn subnets_without_a_request_are_ignored() {
    // kubevirt-ipam#34
    let config = r#"{"role":"primary","allowPersistentIPs":true,"subnets":"192.168.0.0"}"#;
    let known = Known::default().with("udn", config);
    let verdict = create(&launcher(None), &instance(), &known);
    assert_eq!(steps(&verdict), [add(LEGACY, "vm1.podnet")]);
}

#[test]
fn request_on_another_interface_is_ignored() {
    // kubevirt-ipam#37
    let verdict = create(
        &launcher(None),
        &asking(r#"{"other":["192.168.1.1"]}"#),
        &Known::primary(),
    );
    assert_eq!(steps(&verdict), [add(LEGACY, "vm1.podnet")]);
}

#[test]
fn two_networks_on_one_definition_have_claims_of_their_own() {
    // kubevirt-ipam#83
    let mut two = instance();
    let source = Source::Multus(Name::new("ns1", "supadupanet"));
    two.networks = ["blue", "red"]
        .map(|name| InstanceNetwork {
            name: name.to_owned(),
            source: source.clone(),
        })
        .into();
    let selection =
        r#"[{"name":"supadupanet","interface":"net2"},{"name":"supadupanet","interface":"pod16477688c0e"}]"#;
    let verdict = create(&launcher(Some(selection)), &two, &Known::nad());
    let expected = r#"[{"name":"supadupanet","namespace":"ns1","interface":"net2","ipam-claim-reference":"vm1.red"},{"name":"supadupanet","namespace":"ns1","interface":"pod16477688c0e","ipam-claim-reference":"vm1.blue"}]"#;
    assert_eq!(steps(&verdict), [replace_networks(expected)]);
}

#[test]
fn update_of_a_pod_whose_instance_is_gone_is_allowed() {
    // kubevirt-ipam#90
    let old = launcher(Some(ELEMENT));
    for new in [launcher(Some(ELEMENT)), launcher(Some("other"))] {
        let update = request(Operation::Update, &new, Some(&old));
        assert_allowed(&decide(&update, None, &Known::both()), "carry on");
    }
    let mut ending = launcher(Some("{not json}"));
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let update = request(Operation::Update, &ending, Some(&old));
    assert_allowed(&decide(&update, None, &Known::both()), "carry on");
}

#[test]
fn update_that_leaves_networks_alone_is_never_refused() {
    // kubevirt-ipam#90
    let broken = Known::default().with("supadupanet", "{broken");
    let pod = launcher(Some(ELEMENT));
    let update = request(Operation::Update, &pod, Some(&pod));
    assert_allowed(&decide(&update, Some(&instance()), &broken), "carry on");
    let unreadable = launcher(Some("{not json}"));
    let update = request(Operation::Update, &unreadable, Some(&unreadable));
    assert_allowed(&decide(&update, Some(&instance()), &broken), "carry on");
    let review = Review::read(&request(Operation::Update, &pod, Some(&pod))).unwrap();
    assert_allowed(&review.no_access("no answer"), "carry on");

    // An update that changes the annotations is refused.
    let changing = request(Operation::Update, &pod, Some(&launcher(None)));
    let verdict = decide(&changing, Some(&instance()), &broken);
    assert_eq!(verdict.denied.map(|denial| denial.code), Some(500));
}

#[test]
fn claim_of_another_network_or_machine_is_refused() {
    // kubevirt-ipam#91
    let mut two = instance();
    let mut networks = two.networks.to_vec();
    networks.push(InstanceNetwork {
        name: "random_net".to_owned(),
        source: Source::Multus(Name::new("ns1", "other")),
    });
    networks[1].name = "random.net".to_owned();
    two.networks = networks.into();
    let known = Known::nad().with("other", NAD);
    let selection = format!("{ELEMENT},other");
    assert_denied(
        &create(&launcher(Some(&selection)), &two, &known),
        403,
        "networks \"random.net\" and \"random_net\" of the virtual machine would share the IPAMClaim \"vm1.random.net\": \
         rename one of them",
    );
    let mut known = Known::nad();
    let id = Name::new("ns1", "vm1.randomnet");
    let of = |machine: &str| Claim {
        machine: machine.into(),
        ..Claim::default()
    };
    known.claims.insert(id.clone(), of("vm1"));
    let referring = create(&launcher(Some(ELEMENT)), &instance(), &known);
    assert_eq!(steps(&referring), [replace_networks(REFERRING)]);
    known.claims.insert(id, of("other"));
    assert_denied(
        &create(&launcher(Some(ELEMENT)), &instance(), &known),
        403,
        "IPAMClaim \"ns1/vm1.randomnet\" belongs to the virtual machine \"other\": rename the network or the virtual machine",
    );
}

#[test]
fn review_without_a_pod_is_refused() {
    let mut review = request(Operation::Create, &launcher(None), None);
    review.object = None;
    let refused = |request: &Request| Review::read(request).expect_err("a verdict").denied;
    assert_eq!(refused(&review).map(|denial| denial.code), Some(400));
    let malformed = json!({ "metadata": { "annotations": [] } });
    let review = request(Operation::Create, &malformed, None);
    assert_eq!(refused(&review).map(|denial| denial.code), Some(400));
}

#[test]
fn addresses_of_a_range_are_requested() {
    // kubevirt-ipam#100
    let mut known = Known::default().with("supadupanet", LAN);
    let id = Name::new("ns1", "vm1.randomnet");
    let review = Review::read(&request(Operation::Create, &launcher(Some(ELEMENT)), None)).unwrap();
    assert_eq!(
        claims_needed(&review, &instance(), &known),
        std::slice::from_ref(&id)
    );
    assert_denied(
        &create(&launcher(Some(ELEMENT)), &instance(), &known),
        500,
        "IPAMClaim \"ns1/vm1.randomnet\" has no addresses yet: try again",
    );
    let claim = Claim {
        machine: "vm1".into(),
        ips: ["10.0.0.2/24".to_owned(), "fd00::2/64".to_owned()].into(),
        ..Claim::default()
    };
    known.claims.insert(id, claim);
    let text = r#"[{"name":"supadupanet","interface":"net1","ips":["10.9.9.9"]}]"#;
    let verdict = create(&launcher(Some(text)), &instance(), &known);
    let expected = r#"[{"name":"supadupanet","namespace":"ns1","ips":["10.0.0.2/24","fd00::2/64"],"interface":"net1","ipam-claim-reference":"vm1.randomnet"}]"#;
    assert_eq!(steps(&verdict), [replace_networks(expected)]);
    // If the plugin has a pool, the review needs no addresses.
    assert_eq!(claims_needed(&review, &instance(), &Known::nad()), []);
}

#[test]
fn claim_of_an_earlier_machine_gives_no_addresses() {
    // kubevirt-ipam#113
    let mut known = Known::default().with("supadupanet", LAN);
    let instance = |uid: &str, owner: &str| Instance {
        uid: uid.into(),
        owner: owner.into(),
        ..instance()
    };
    let owned_by = |owner: &str| Claim {
        machine: "vm1".into(),
        owners: [owner.into()].into(),
        ips: ["10.0.0.2/24".to_owned()].into(),
        ..Claim::default()
    };
    let id = Name::new("ns1", "vm1.randomnet");
    let refused = "IPAMClaim \"ns1/vm1.randomnet\" has no addresses yet: try again";
    let pod = launcher(Some(ELEMENT));
    known.claims.insert(id.clone(), owned_by("old"));
    assert_denied(&create(&pod, &instance("vmi", "new"), &known), 500, refused);
    // The cache still has the earlier virtual machine.
    known.machine = Some(Machine {
        uid: "old".into(),
        ..Machine::default()
    });
    assert_denied(&create(&pod, &instance("vmi", "new"), &known), 500, refused);
    // The claim is of the virtual machine whose instance has no controller yet, of the controller, or of the instance.
    for (instance, owner) in [
        (instance("vmi", ""), "old"),
        (instance("vmi", "new"), "new"),
        (instance("vmi", "new"), "vmi"),
    ] {
        known.claims.insert(id.clone(), owned_by(owner));
        assert_eq!(steps(&create(&pod, &instance, &known)).len(), 1, "{owner}");
    }
}

#[test]
fn pod_of_an_earlier_instance_does_not_run_the_present_one() {
    // kubevirt-ipam#114, the decision
    let present = Instance {
        uid: "new".into(),
        ..instance()
    };
    let runs = |owners: Value| {
        let mut pod = launcher(Some(ELEMENT));
        pod["metadata"]["ownerReferences"] = owners;
        Review::read(&request(Operation::Create, &pod, None))
            .unwrap()
            .runs(&present)
    };
    let owner = |kind: &str, uid: &str| json!([{ "kind": kind, "name": "vm1", "uid": uid }]);
    assert!(runs(owner("VirtualMachineInstance", "new")));
    assert!(!runs(owner("VirtualMachineInstance", "old")));
    assert!(runs(owner("Pod", "old")));
    assert!(runs(json!(null)));
}
