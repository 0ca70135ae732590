//! The operator's validation as a `ValidatingAdmissionPolicy`: the API server reports the errors of a configuration when
//! it is written, with the texts that the status would have later (operator §5.6).
//!
//! ```text
//! texts, sockets, units, names of fields ──┬──> validation (configuration, general, mac, …)
//!                                          └──> CEL: a variable per rule, its error or '' ──> policy + binding
//! ```
//!
//! The policy is optional, because the operator validates too. Rules that depend on the cluster (OpenShift's network
//! configuration) or on the previously applied configuration are missing here. Of a list, the policy reports the first
//! invalid item.

mod cel;

use kube_kit::duration::{self, UNITS};
use serde_json::{Value, json};

use crate::{
    cni_directories::PLACES,
    components::{CRI_SOCKETS, LONGEST_TTL},
    general::{INTERVAL_BOUNDS, INTERVALS},
    mac,
    manifest::Manifest,
    messages::specification,
    names,
};
use cel::{concat, hole, list, literal};

/// Effect of the policy on an invalid configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// The configuration is stored, and the client gets a warning.
    Warn,
    /// The configuration is refused.
    Deny,
}

/// The policy and its binding. The binding has the same name for both actions: one replaces the other.
pub fn objects(action: Action) -> [Manifest; 2] {
    [policy(), binding(action)]
}

fn binding(action: Action) -> Manifest {
    let action = match action {
        Action::Warn => "Warn",
        Action::Deny => "Deny",
    };
    Manifest::from_value(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(),
        "spec": { "policyName": names::ADMISSION_POLICY, "validationActions": [action, "Audit"] },
    }))
}

fn metadata() -> Value {
    json!({ "name": names::ADMISSION_POLICY, "labels": { "name": names::OPERATOR } })
}

fn policy() -> Manifest {
    let rules = rules();
    let variables: Vec<_> = variables()
        .iter()
        .chain(&rules)
        .map(|variable| json!({ "name": variable.name, "expression": variable.expression }))
        .collect();
    let validations: Vec<_> = rules
        .iter()
        .map(|rule| {
            let name = &rule.name;
            json!({
                "expression": format!("variables.{name} == ''"),
                "messageExpression": format!("variables.{name}"),
                // The API server uses this message if the expression's text is too long or has line breaks.
                "message": FALLBACK,
            })
        })
        .collect();
    Manifest::from_value(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(),
        "spec": {
            // A configuration whose evaluation fails is accepted: the operator validates it again.
            "failurePolicy": "Ignore",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [api::names::NETWORK_ADDONS_GROUP],
                "apiVersions": [
                    api::names::NETWORK_ADDONS_STORED_VERSION,
                    api::names::NETWORK_ADDONS_OLD_VERSION,
                ],
                "operations": ["CREATE", "UPDATE"],
                "resources": [names::CONFIGURATIONS],
            }] },
            "matchConditions": [
                {
                    "name": "the-one-that-counts",
                    "expression": format!(
                        "object.metadata.name == {}",
                        literal(api::names::NETWORK_ADDONS_SINGLETON)
                    ),
                },
                {
                    // Labels and finalizers of an invalid configuration can be changed.
                    "name": "another-specification",
                    "expression": "request.operation == 'CREATE' || \
                                   object.?spec.orValue({}) != oldObject.?spec.orValue({})",
                },
            ],
            "variables": variables,
            "validations": validations,
        },
    }))
}

/// Maximum number of characters of an interval that is evaluated. Real ones are far shorter, and the cost grows with
/// the square of the length.
const LONGEST: usize = 256;

/// Message of a rule whose own message cannot be computed.
const FALLBACK: &str = "the configuration is not valid, as its status will say";

struct Variable {
    name: String,
    expression: String,
}

fn variable(name: impl Into<String>, expression: impl Into<String>) -> Variable {
    Variable {
        name: name.into(),
        expression: expression.into(),
    }
}

/// The text of a field of the object in a variable; empty if it is absent.
fn text_field(object: &str, field: &str) -> String {
    format!("variables.{object}.?{field}.orValue('')")
}

/// Variables that several rules use.
fn variables() -> Vec<Variable> {
    let mut all = vec![
        variable("spec", "object.?spec.orValue({})"),
        variable(
            "wrongNamespaces",
            format!(
                "variables.spec.?multus.?globalNamespaces.orValue([]).filter(name, !name.matches({}))",
                cel::pattern("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
            ),
        ),
        variable("pool", "variables.spec.?kubeMacPool.orValue({})"),
        variable("rangeStart", text_field("pool", "rangeStart")),
        variable("rangeEnd", text_field("pool", "rangeEnd")),
        variable("startDigits", digits("variables.rangeStart")),
        variable("endDigits", digits("variables.rangeEnd")),
        variable("pullPolicy", text_field("spec", "imagePullPolicy")),
        variable("selfSign", "variables.spec.?selfSignConfiguration.orValue({})"),
    ];
    for name in INTERVALS {
        all.push(variable(name, text_field("selfSign", name)));
    }
    all.push(variable(
        "anyMissing",
        format!(
            "{}.exists(text, text == '')",
            list(INTERVALS.map(|name| format!("variables.{name}")))
        ),
    ));
    for name in INTERVALS {
        all.extend(interval_parts(name));
    }
    all.push(variable(
        "profile",
        "variables.spec.?tlsSecurityProfile.orValue(null)",
    ));
    all.push(variable(
        "profileType",
        "variables.spec.?tlsSecurityProfile.?type.orValue('')",
    ));
    all.push(variable(
        "ttl",
        "variables.spec.?kubeSecondaryDNS.?ttl.orValue(0)",
    ));
    // By the form alone: API servers before Kubernetes 1.31 cannot parse a prefix.
    all.push(variable(
        "wrongPrefixes",
        format!(
            "variables.spec.?kubeSecondaryDNS.?allowedPrefixes.orValue([]).filter(prefix, !prefix.matches({}))",
            cel::pattern(r"^[\s\pZ]*[0-9a-fA-F:.]+/[0-9]+[\s\pZ]*$")
        ),
    ));
    all
}

/// One variable per rule, in the order of the table: the error, or an empty text.
fn rules() -> Vec<Variable> {
    let mut rules = vec![
        variable(
            "globalNamespacesError",
            first_error("wrongNamespaces", specification::global_namespace),
        ),
        variable("rangeError", range_error()),
        variable("pullPolicyError", pull_policy_error()),
    ];
    rules.extend(INTERVALS.map(|name| variable(format!("{name}Error"), interval_error(name))));
    rules.extend(
        INTERVAL_BOUNDS.map(|(small, big)| variable(format!("{small}BoundError"), bound_error(small, big))),
    );
    rules.push(variable("dynamicNetworksError", dynamic_networks_error()));
    rules.push(variable("ttlError", ttl_error()));
    rules.push(variable(
        "prefixesError",
        first_error("wrongPrefixes", specification::dns_prefix),
    ));
    rules.push(variable("profileError", profile_error()));
    rules.extend(
        ["bin", "conf"].map(|field| variable(format!("{field}DirectoryError"), directory_error(field))),
    );
    rules
}

/// The error about the first item of a list of invalid items.
fn first_error(items: &str, text: impl Fn(String) -> String) -> String {
    cel::first_of(&[(
        &format!("size(variables.{items}) > 0"),
        concat(&text(hole(&format!("variables.{items}[0]")))),
    )])
}

fn ttl_error() -> String {
    cel::first_of(&[(
        &format!("variables.ttl < 0 || variables.ttl > {LONGEST_TTL}"),
        concat(&specification::dns_ttl(hole("string(variables.ttl)"))),
    )])
}

/// The twelve digits of a MAC address in lower case; empty for an invalid one.
fn digits(address: &str) -> String {
    let notations = r"^(([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4})$";
    format!(
        "{address}.matches({}) ? {address}.replace(':', '').replace('-', '').replace('.', '').lowerAscii() : ''",
        cel::pattern(notations)
    )
}

fn range_error() -> String {
    let colons = |digits: &str| hole(&format!("variables.{digits}.findAll('..').join(':')"));
    let octet = |digits: &str| {
        let digits = format!("variables.{digits}");
        hole(&format!(
            "{digits}.substring({digits}.startsWith('0') ? 1 : 0, 2).upperAscii()"
        ))
    };
    let multicast = |digits: &str| format!("variables.{digits}.matches('^.[13579bdf]')");
    cel::first_of(&[
        (
            "variables.rangeStart == '' && variables.rangeEnd == ''",
            "''".into(),
        ),
        (
            "variables.rangeStart == '' || variables.rangeEnd == ''",
            literal(specification::HALF_A_RANGE),
        ),
        (
            "variables.startDigits == ''",
            literal(specification::INVALID_START),
        ),
        ("variables.endDigits == ''", literal(specification::INVALID_END)),
        (
            "variables.endDigits <= variables.startDigits",
            concat(&specification::range_order(
                colons("startDigits"),
                colons("endDigits"),
            )),
        ),
        (
            &multicast("startDigits"),
            concat(&specification::multicast(mac::RANGE_START, octet("startDigits"))),
        ),
        (
            &multicast("endDigits"),
            concat(&specification::multicast(mac::RANGE_END, octet("endDigits"))),
        ),
    ])
}

fn pull_policy_error() -> String {
    cel::first_of(&[(
        "!(variables.pullPolicy in ['', 'Always', 'Never', 'IfNotPresent'])",
        concat(&specification::pull_policy(hole("variables.pullPolicy"))),
    )])
}

/// The parts of an interval: the text without its sign, its numbers with their units, the invalid ones among them, and
/// the form in which Go prints the whole.
fn interval_parts(name: &str) -> [Variable; 4] {
    let text = format!("variables.{name}");
    let units: Vec<_> = UNITS.iter().map(|(unit, _)| *unit).collect();
    let right = format!(r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)({})$", units.join("|"));
    [
        variable(
            format!("{name}Unsigned"),
            format!("{text}.matches('^[-+]') ? {text}.substring(1) : {text}"),
        ),
        variable(
            format!("{name}Tokens"),
            format!(
                "{text}Unsigned.findAll({})",
                cel::pattern(r"[0-9]*(\.[0-9]*)?[^0-9.]*")
            ),
        ),
        variable(
            format!("{name}Wrong"),
            format!(
                "{text}Tokens.filter(token, !token.matches({}))",
                cel::pattern(&right)
            ),
        ),
        variable(format!("{name}Printed"), printed(&text)),
    ]
}

/// A duration in the form in which Go prints it.
fn printed(text: &str) -> String {
    let duration = format!("duration({text})");
    let seconds = format!("{duration}.getSeconds()");
    let fraction = format!("({duration} - duration(string({seconds}) + 's'))");
    // CEL prints a duration as a number of seconds, which is exact to the nanosecond below one second.
    let nanos = format!("int(double(string({duration}).replace('s', '')) * 1000000000.0 + 0.5)");
    cel::first_of_or(
        &[
            (
                &format!("{duration} < duration('1us')"),
                format!("string({nanos}) + 'ns'"),
            ),
            (
                &format!("{duration} < duration('1ms')"),
                format!("string(double({nanos}) / 1000.0) + 'µs'"),
            ),
            (
                &format!("{duration} < duration('1s')"),
                format!("string(double({nanos}) / 1000000.0) + 'ms'"),
            ),
        ],
        &format!(
            "({seconds} >= 3600 ? string({seconds} / 3600) + 'h' : '') + \
             ({seconds} >= 60 ? string({seconds} / 60 % 60) + 'm' : '') + string({seconds} % 60) + \
             ({fraction} == duration('0s') ? 's' : string({fraction}).substring(1))"
        ),
    )
}

fn interval_error(name: &str) -> String {
    let text = format!("variables.{name}");
    let (unsigned, wrong) = (format!("{text}Unsigned"), format!("{text}Wrong"));
    let unreadable = |cause: String| concat(&specification::interval_unreadable(name, cause));
    let whole = hole(&quoted(&text));
    let scales: Vec<_> = UNITS
        .iter()
        .map(|(unit, nanos)| format!("{}: {nanos}.0", literal(unit)))
        .collect();
    // Nanoseconds must fit into 64 bits, as in Go. The sum is a double, which is exact up to that bound.
    let too_long = format!(
        "{text}Tokens.map(token, double(token.find('^[0-9.]+')) * {{{}}}[token.find('[^0-9.]+$')]).sum() >= \
         9223372036854775808.0",
        scales.join(", ")
    );
    cel::first_of(&[
        ("!has(variables.spec.selfSignConfiguration)", "''".into()),
        (
            &format!("{text} == ''"),
            literal(&specification::interval_missing(name)),
        ),
        (
            &format!("variables.anyMissing || size({text}) > {LONGEST}"),
            "''".into(),
        ),
        (
            &format!("{unsigned} == '0'"),
            literal(&specification::interval_not_positive(name)),
        ),
        (
            &format!(
                "size({wrong}) > 0 && !{wrong}[0].matches({})",
                cel::pattern(r"^\.?[0-9]")
            ),
            unreadable(duration::no_duration(&whole)),
        ),
        (
            &format!("size({wrong}) > 0 && {wrong}[0].matches('^[0-9.]+$')"),
            unreadable(duration::no_unit(&whole)),
        ),
        (
            &format!("size({wrong}) > 0"),
            unreadable(duration::unknown_unit(
                hole(&quoted(&format!("{wrong}[0].find('[^0-9.]+$')"))),
                &whole,
            )),
        ),
        (&too_long, unreadable(duration::no_duration(&whole))),
        (
            &format!("duration({text}) <= duration('0s')"),
            literal(&specification::interval_not_positive(name)),
        ),
    ])
}

/// A text in quotes, in the form of Go's `time` package.
fn quoted(text: &str) -> String {
    let bytes = r"'%x'.format([c]).findAll('..').map(b, '\\x' + b).join('')";
    let printable = cel::pattern(r"^[ -\x7f]$");
    format!(
        r#"'"' + {text}.split('').map(c, c in ['"', '\\'] ? '\\' + c : (c.matches({printable}) ? c : {bytes})).join('') + '"'"#
    )
}

fn bound_error(small: &str, big: &str) -> String {
    let fine = list(INTERVALS.map(|name| format!("variables.{name}Error")));
    let text = specification::interval_too_long(
        small,
        hole(&format!("variables.{small}Printed")),
        big,
        hole(&format!("variables.{big}Printed")),
    );
    cel::first_of(&[
        (
            "!has(variables.spec.selfSignConfiguration) || variables.anyMissing",
            "''".into(),
        ),
        (
            &format!(
                "{}.exists(text, size(text) > {LONGEST})",
                list(INTERVALS.map(|name| format!("variables.{name}")))
            ),
            "''".into(),
        ),
        (&format!("{fine}.exists(error, error != '')"), "''".into()),
        (
            &format!("duration(variables.{small}) > duration(variables.{big})"),
            concat(&text),
        ),
    ])
}

fn dynamic_networks_error() -> String {
    let path = "variables.spec.?multusDynamicNetworks.?hostCRISocketPath.orValue('')";
    let sockets = list(CRI_SOCKETS.map(literal));
    cel::first_of(&[
        ("!has(variables.spec.multusDynamicNetworks)", "''".into()),
        (
            "!has(variables.spec.multus)",
            literal(specification::DYNAMIC_WITHOUT_MULTUS),
        ),
        (
            &format!("{path} != '' && !({path} in {sockets})"),
            literal(&specification::cri_socket(&CRI_SOCKETS)),
        ),
    ])
}

fn profile_error() -> String {
    cel::first_of(&[
        ("variables.profile == null", "''".into()),
        (
            "has(variables.profile.custom) && variables.profile.custom != null",
            "''".into(),
        ),
        (
            "variables.profileType == ''",
            literal(specification::TLS_TYPE_MISSING),
        ),
        (
            "variables.profileType == 'Custom'",
            literal(specification::TLS_CUSTOM_MISSING),
        ),
        (
            "!(variables.profileType in ['Old', 'Intermediate', 'Modern'])",
            concat(&specification::tls_type(hole("variables.profileType"))),
        ),
    ])
}

fn directory_error(field: &str) -> String {
    let path = format!("variables.spec.?cniDirectories.?{field}");
    let (names, upwards) = (
        cel::pattern("^(/[A-Za-z0-9._+-]+)+/?$"),
        cel::pattern("(^|/)[.]{1,2}(/|$)"),
    );
    let path_text = format!("{path}.orValue('')");
    cel::first_of(&[
        (&format!("!{path}.hasValue()"), "''".into()),
        (
            &format!("!{path_text}.matches({names}) || {path_text}.matches({upwards})"),
            concat(&specification::cni_directory(field, hole(&path_text))),
        ),
        (
            &format!(
                "!{}.exists(place, {path_text} == place || {path_text}.startsWith(place + '/'))",
                list(PLACES.map(literal))
            ),
            concat(&specification::cni_place(field, hole(&path_text), &PLACES)),
        ),
    ])
}

#[cfg(test)]
mod tests;
