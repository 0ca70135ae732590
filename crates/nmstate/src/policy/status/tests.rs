use rstest::rstest;

use super::*;

/// The state of an enactment, by a letter: `s`uccess, `p`rogressing, `f`ailed, `r`etrying, `w`aiting, `a`borted,
/// `n`othing observed, `-` none. A capital stands for an older generation.
fn enactments(states: &str) -> Vec<Enactment> {
    use Status::{False, True, Unknown};
    let states = states.chars().enumerate();
    let states = states.filter(|(_, state)| *state != '-');
    states
        .map(|(index, state)| {
            let [available, failing, progressing, pending, aborted] = match state.to_ascii_lowercase() {
                's' => [True, False, False, False, False],
                'p' => [Unknown, Unknown, True, False, False],
                'f' => [False, True, False, False, False],
                'r' => [False, True, True, False, False],
                'w' => [False, False, False, True, False],
                'a' => [False, False, False, False, True],
                _ => [Unknown; 5],
            };
            Enactment {
                name: format!("node{index}.p"),
                node: format!("node{index}"),
                generation: if state.is_ascii_uppercase() { 1 } else { 2 },
                available: Some(available),
                failing: Some(failing),
                progressing: Some(progressing),
                pending: Some(pending),
                aborted: Some(aborted),
                ..Enactment::default()
            }
        })
        .collect()
}

/// Nodes with a handler, by a letter: `r`eady, `n`ot ready, `-` without a handler.
fn nodes(states: &str) -> Nodes {
    let mut nodes = Nodes::default();
    for (index, state) in states.chars().enumerate() {
        if state == '-' {
            continue;
        }
        nodes.all.insert(format!("node{index}"));
        if state == 'r' {
            nodes.ready.insert(format!("node{index}"));
        }
    }
    nodes
}

/// The only true condition: type, reason and message.
fn said(states: &str, of_nodes: &str) -> (String, String, String) {
    let outcome = outcome(2, &enactments(states), &nodes(of_nodes), false);
    let mut conditions = Vec::new();
    outcome.set(&mut conditions, Timestamp::UNIX_EPOCH);
    let mut are_true = conditions
        .into_iter()
        .filter(|condition| condition.status == Status::True);
    let one = are_true.next().expect("one that is true");
    assert_eq!(are_true.next(), None, "exactly one is true");
    (one.kind, one.reason, one.message)
}

const PROGRESSING: (&str, &str) = ("Progressing", "ConfigurationProgressing");
const AVAILABLE: (&str, &str) = ("Available", "SuccessfullyConfigured");
const DEGRADED: (&str, &str) = ("Degraded", "FailedToConfigure");
const IGNORED: (&str, &str) = ("Ignored", "NoMatchingNode");

#[rstest]
// nmstate#33
#[case::all_at_it("ppp", "rrr", PROGRESSING, "Policy is progressing 0/3 nodes finished")]
// nmstate#34
#[case::all_done("sss", "rrr", AVAILABLE, "3/3 nodes successfully configured")]
// nmstate#35
#[case::one_has_not_begun("ss-", "rrr", PROGRESSING, "Policy is progressing 2/3 nodes finished")]
// nmstate#36
#[case::some_done("sps", "rrr", PROGRESSING, "Policy is progressing 2/3 nodes finished")]
#[case::one_tries_again("srs", "rrr", PROGRESSING, "Policy is progressing 2/3 nodes finished")]
// nmstate#37
#[case::one_failed("fpp", "rrr", DEGRADED, "1/3 nodes failed to configure")]
// nmstate#38
#[case::aborted(
    "faa",
    "rrr",
    DEGRADED,
    "1/3 nodes failed to configure, 2 nodes aborted configuration"
)]
#[case::only_aborted(
    "ssa",
    "rrr",
    DEGRADED,
    "0/3 nodes failed to configure, 1 nodes aborted configuration"
)]
// nmstate#39
#[case::older_ones_tell_nothing("SSS", "rrr", PROGRESSING, "Policy is progressing 0/3 nodes finished")]
#[case::an_older_failure_too("Fss", "rrr", PROGRESSING, "Policy is progressing 2/3 nodes finished")]
// nmstate#40
#[case::without_a_handler("ss-", "rr-", AVAILABLE, "2/2 nodes successfully configured")]
#[case::done_before_the_handler_left("sss", "rr-", AVAILABLE, "2/2 nodes successfully configured")]
// nmstate#41
#[case::not_ready(
    "ss-",
    "rrn",
    AVAILABLE,
    "2/3 nodes successfully configured, 1 nodes ignored due to NotReady state"
)]
#[case::not_ready_and_at_it(
    "sp-",
    "rrn",
    PROGRESSING,
    "Policy is progressing 1/2 nodes finished, 1 nodes ignored due to NotReady state"
)]
#[case::one_that_is_not_ready_does_not_stand_in_for_one_that_is(
    "sps",
    "rrn",
    PROGRESSING,
    "Policy is progressing 1/2 nodes finished, 1 nodes ignored due to NotReady state"
)]
// nmstate#42
#[case::one_waits(
    "ssw",
    "rrn",
    PROGRESSING,
    "Policy is progressing 2/2 nodes finished, 1 pending, 1 nodes ignored due to NotReady state"
)]
#[case::some_wait(
    "spw",
    "rrr",
    PROGRESSING,
    "Policy is progressing 1/3 nodes finished, 1 pending"
)]
// nmstate#99
#[case::became_not_ready_while_applying("sp", "rn", PROGRESSING, "Policy is progressing 1/2 nodes finished")]
#[case::became_not_ready_between_two_attempts(
    "sr",
    "rn",
    PROGRESSING,
    "Policy is progressing 1/2 nodes finished"
)]
#[case::the_only_node_became_not_ready("p", "n", PROGRESSING, "Policy is progressing 0/1 nodes finished")]
#[case::not_ready_and_applying_an_older_generation(
    "sP",
    "rn",
    AVAILABLE,
    "1/2 nodes successfully configured, 1 nodes ignored due to NotReady state"
)]
#[case::configured_on_no_node(
    "-",
    "n",
    PROGRESSING,
    "Policy is progressing 0/0 nodes finished, 1 nodes ignored due to NotReady state"
)]
#[case::not_ready_after_it_was_configured(
    "s",
    "n",
    AVAILABLE,
    "1/1 nodes successfully configured, 1 nodes ignored due to NotReady state"
)]
#[case::no_node("", "", IGNORED, "Policy does not match any node")]
#[case::no_node_with_a_handler("sss", "---", IGNORED, "Policy does not match any node")]
fn outcome_follows_the_enactments(
    #[case] states: &str,
    #[case] of_nodes: &str,
    #[case] (kind, reason): (&str, &str),
    #[case] message: &str,
) {
    let expected = (kind.to_owned(), reason.to_owned(), message.to_owned());
    assert_eq!(said(states, of_nodes), expected);
}

#[test]
fn outcome_sets_all_conditions_in_order() {
    let mut conditions = Vec::new();
    Outcome::Unknown.set(&mut conditions, Timestamp::UNIX_EPOCH);
    let rows = |conditions: &[Condition]| -> Vec<String> {
        let rows = conditions.iter();
        rows.map(|one| format!("{} {:?} {:?} {:?}", one.kind, one.status, one.reason, one.message))
            .collect()
    };
    assert_eq!(
        rows(&conditions),
        [
            r#"Available Unknown "" """#,
            r#"Degraded Unknown "" """#,
            r#"Progressing Unknown "" """#,
            r#"Ignored Unknown "" """#,
        ]
    );
    let failed = Outcome::Failed {
        failed: 1,
        aborted: 0,
        nodes: 2,
    };
    failed.set(&mut conditions, Timestamp::UNIX_EPOCH);
    assert_eq!(
        rows(&conditions),
        [
            r#"Available False "FailedToConfigure" """#,
            r#"Degraded True "FailedToConfigure" "1/2 nodes failed to configure""#,
            r#"Progressing False "ConfigurationProgressing" """#,
            r#"Ignored False "FailedToConfigure" """#,
        ]
    );
    let progressing = outcome(2, &[], &nodes("r"), false);
    progressing.set(&mut conditions, Timestamp::UNIX_EPOCH);
    assert_eq!(
        rows(&conditions),
        [
            r#"Available Unknown "ConfigurationProgressing" """#,
            r#"Degraded Unknown "ConfigurationProgressing" """#,
            r#"Progressing True "ConfigurationProgressing" "Policy is progressing 0/1 nodes finished""#,
            r#"Ignored False "ConfigurationProgressing" """#,
        ]
    );
}

// nmstate#102
#[rstest]
#[case::nothing_known("nnn", "rrr", "ConfigurationProgressing")]
#[case::healthy("spw", "rrr", "ConfigurationProgressing")]
#[case::an_attempt_failed("spr", "rrr", "ConfigurationStalled")]
#[case::an_attempt_at_an_older_generation_failed("spR", "rrr", "ConfigurationProgressing")]
#[case::a_node_was_cut_off("sp", "rn", "ConfigurationStalled")]
#[case::no_node_is_awaited("-", "n", "ConfigurationStalled")]
fn available_reason_shows_whether_a_policy_stalls(
    #[case] states: &str,
    #[case] of_nodes: &str,
    #[case] expected: &str,
) {
    let mut conditions = Vec::new();
    let outcome = outcome(2, &enactments(states), &nodes(of_nodes), false);
    outcome.set(&mut conditions, Timestamp::UNIX_EPOCH);
    let reasons: Vec<(&str, &str)> = conditions
        .iter()
        .map(|one| (one.kind.as_str(), one.reason.as_str()))
        .collect();
    let progressing = "ConfigurationProgressing";
    assert_eq!(
        reasons,
        [
            ("Available", expected),
            ("Degraded", progressing),
            ("Progressing", progressing),
            ("Ignored", progressing),
        ]
    );
}

#[test]
fn dry_run_does_not_claim_to_be_configured() {
    let outcome = outcome(2, &enactments("ss"), &nodes("rr"), true);
    let mut conditions = Vec::new();
    outcome.set(&mut conditions, Timestamp::UNIX_EPOCH);
    assert_eq!(conditions[0].message, "2/2 nodes tried, nothing was applied");
}

#[test]
fn conditions_are_compared_without_times() {
    let at = |second| {
        let mut conditions = Vec::new();
        let at = Timestamp::from_second(second).expect("a time");
        outcome(2, &enactments("s"), &nodes("r"), false).set(&mut conditions, at);
        conditions
    };
    assert!(same(&at(1), &at(2)));
    let mut other = at(1);
    other[0].message.clear();
    assert!(!same(&at(1), &other));
    assert!(!same(&at(1), &at(1)[..3]));
}
