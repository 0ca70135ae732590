//! Tests of the objects. The api tier proves on an API server that the policy has the same rules as the validation.

use super::*;

#[test]
fn files_of_warn_and_deny_differ_in_action_alone() {
    let [policy, warn] = objects(Action::Warn).map(Manifest::into_value);
    let [same, deny] = objects(Action::Deny).map(Manifest::into_value);
    assert_eq!(policy, same);
    assert_eq!(warn["spec"]["validationActions"], json!(["Warn", "Audit"]));
    assert_eq!(deny["spec"]["validationActions"], json!(["Deny", "Audit"]));
    for binding in [&warn, &deny] {
        assert_eq!(binding["metadata"]["name"], "network-addons-config");
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    }
}

#[test]
fn concat_makes_expression_of_message() {
    assert_eq!(concat("it's"), r"'it\'s'");
    assert_eq!(
        concat(&format!("a {} b{}", hole("x + 'y'"), hole("z"))),
        "'a ' + x + 'y' + ' b' + z"
    );
}
