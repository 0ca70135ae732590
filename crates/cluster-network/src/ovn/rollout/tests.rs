use super::*;
use rstest::rstest;

const OLD: &str = "4.19.3";
const SAME: &str = "4.20.0";
const NEW: &str = "4.21.0";

fn workload(version: &str, is_progressing: bool) -> Workload {
    Workload {
        version: version.to_owned(),
        ip_family: "single-stack".to_owned(),
        is_progressing,
    }
}

fn existing(node: (&str, bool), control_plane: (&str, bool)) -> Existing {
    Existing {
        node: Some(workload(node.0, node.1)),
        control_plane: Some(workload(control_plane.0, control_plane.1)),
        // The nodes have pulled the image of the next version.
        prepuller: Some(workload(SAME, false)),
    }
}

#[rstest]
#[case((OLD, false), (OLD, false), Order::NODE)]
#[case((OLD, true), (OLD, true), Order::NODE)]
#[case((SAME, true), (OLD, false), Order::NODE)]
#[case((SAME, false), (OLD, false), Order::BOTH)]
#[case((SAME, false), (SAME, false), Order::BOTH)]
#[case((SAME, true), (SAME, true), Order::BOTH)]
#[case((NEW, false), (NEW, false), Order::CONTROL_PLANE)]
#[case((NEW, false), (SAME, true), Order::CONTROL_PLANE)]
#[case((NEW, false), (SAME, false), Order::BOTH)]
// Versions that no upgrade leads to.
#[case((OLD, false), (SAME, false), Order::BOTH)]
#[case((OLD, false), (NEW, false), Order::BOTH)]
#[case((SAME, false), (NEW, false), Order::BOTH)]
#[case((NEW, false), (OLD, false), Order::BOTH)]
#[case(("", false), (OLD, false), Order::BOTH)]
#[case((OLD, false), ("none", false), Order::BOTH)]
fn nodes_are_updated_first_and_set_back_last(
    #[case] node: (&str, bool),
    #[case] control_plane: (&str, bool),
    #[case] expected: Order,
) {
    // cluster-network#44
    assert_eq!(
        order(&existing(node, control_plane), SAME, "single-stack"),
        expected
    );
}

#[test]
fn images_are_pulled_before_nodes_are_updated() {
    // cluster-network#44
    let old = existing((OLD, false), (OLD, false));
    for (prepuller, expected) in [
        (None, Order::PREPULL),
        (Some(workload(OLD, false)), Order::PREPULL),
        (Some(workload(SAME, true)), Order::PREPULL),
        (Some(workload(SAME, false)), Order::NODE),
    ] {
        let existing = Existing {
            prepuller,
            ..old.clone()
        };
        assert_eq!(order(&existing, SAME, "single-stack"), expected, "{existing:?}");
    }
    let none = Existing {
        prepuller: None,
        ..existing((SAME, false), (OLD, false))
    };
    assert_eq!(order(&none, SAME, "single-stack"), Order::BOTH);
    let first = Existing { node: None, ..old };
    assert_eq!(order(&first, SAME, "single-stack"), Order::BOTH);
}

fn daemon_set(desired: i32, updated: i32, available: i32) -> DaemonSetProgress {
    DaemonSetProgress {
        generation: 2,
        observed: 2,
        desired,
        updated,
        available,
        unavailable: desired - available,
        is_hung: false,
    }
}

#[test]
fn node_that_hangs_does_not_hold_up_the_rest() {
    // cluster-network#44
    let hung = |desired, updated| DaemonSetProgress {
        is_hung: true,
        ..daemon_set(desired, updated, updated)
    };
    for (desired, updated, is_progressing) in [
        (3, 2, false),
        (3, 1, true),
        (19, 18, false),
        (19, 17, true),
        (20, 18, false),
        (20, 17, true),
    ] {
        let progress = hung(desired, updated);
        assert_eq!(progress.is_progressing(), is_progressing, "{progress:?}");
        let control_plane = order(
            &existing((SAME, progress.is_progressing()), (OLD, false)),
            SAME,
            "single-stack",
        );
        assert_eq!(control_plane.control_plane, !is_progressing);
    }
    assert!(daemon_set(20, 19, 19).is_progressing(), "it does not hang");
}

#[test]
fn progress_of_workloads() {
    // cluster-network#47
    assert!(!daemon_set(0, 0, 0).is_progressing());
    assert!(daemon_set(3, 3, 0).is_progressing());
    assert!(!daemon_set(3, 3, 3).is_progressing());
    let unseen = DaemonSetProgress {
        generation: 3,
        ..daemon_set(3, 3, 3)
    };
    assert!(unseen.is_progressing());
    assert!(daemon_set(3, 2, 3).is_progressing());
    // The status reports no unavailable pod, and no available pod.
    let silent = DaemonSetProgress {
        unavailable: 0,
        ..daemon_set(3, 3, 0)
    };
    assert!(silent.is_progressing());

    let deployment = |updated, available, generation| DeploymentProgress {
        generation,
        observed: 2,
        replicas: 2,
        updated,
        available,
    };
    for (progress, expected) in [
        (deployment(2, 2, 2), false),
        (deployment(1, 2, 2), true),
        (deployment(2, 1, 2), true),
        (deployment(2, 2, 3), true),
    ] {
        assert_eq!(progress.is_progressing(), expected, "{progress:?}");
    }
}

#[test]
fn control_plane_changes_families_first_and_before_any_version() {
    // cluster-network#45
    let with = |node: &str, control_plane: &str, is_progressing: bool| {
        let mut existing = existing((OLD, false), (OLD, is_progressing));
        existing.node.as_mut().expect("one").ip_family = node.to_owned();
        existing.control_plane.as_mut().expect("one").ip_family = control_plane.to_owned();
        order(&existing, SAME, "dual-stack")
    };
    let (single, dual) = ("single-stack", "dual-stack");
    assert_eq!(with(single, single, false), Order::CONTROL_PLANE);
    assert_eq!(with(single, dual, true), Order::CONTROL_PLANE);
    assert_eq!(with(single, dual, false), Order::BOTH);
    // All address families equal the desired ones: the versions decide.
    assert_eq!(with(dual, dual, false), Order::NODE);
    // Workloads of an old version lack the annotation.
    assert_eq!(with("", single, false), Order::NODE);
    assert_eq!(with(single, "", false), Order::NODE);
}

#[test]
fn versions_are_compared_by_their_meaning() {
    for (one, two, expected) in [
        ("4.9.0", "4.10.0", Some(Ordering::Less)),
        ("4.10.0", "4.10.0-rc.1", Some(Ordering::Greater)),
        ("4.10.0-rc.2", "4.10.0-rc.10", Some(Ordering::Less)),
        ("4.10.0-rc", "4.10.0-rc.1", Some(Ordering::Less)),
        ("4.10.0+a", "4.10.0+b", Some(Ordering::Equal)),
        ("4.10", "4.10.0", None),
        ("", "", None),
        ("ci-1", "ci-1", Some(Ordering::Equal)),
        ("ci-1", "4.10.0", None),
    ] {
        assert_eq!(compare(one, two), expected, "{one} {two}");
    }
}
