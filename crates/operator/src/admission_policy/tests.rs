//! The objects; that the rules are those of the validation is proven on an API server, in the api tier.

use super::*;

#[test]
fn the_two_files_differ_in_the_action_alone() {
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
fn a_message_becomes_an_expression() {
    assert_eq!(concat("it's"), r"'it\'s'");
    assert_eq!(
        concat(&format!("a {} b{}", hole("x + 'y'"), hole("z"))),
        "'a ' + x + 'y' + ' b' + z"
    );
}
