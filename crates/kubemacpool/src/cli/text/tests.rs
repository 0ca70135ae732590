use super::*;
use crate::pool::Usage;
use crate::range::Range;

fn mac(text: &str) -> Mac {
    Mac::parse(text).expect("an address")
}

fn installed() -> Installed {
    let range = Range::new(mac("02:00:00:00:10:00"), mac("02:00:00:00:13:ff"));
    Installed {
        namespace: "cluster-network-addons".to_owned(),
        range: range.expect("a range"),
    }
}

fn found(object: &str, interface: &str, standing: Standing) -> Found {
    Found {
        object: object.to_owned(),
        interface: interface.to_owned(),
        standing,
    }
}

#[test]
fn who_text_names_owners_and_their_standing() {
    let owners = [
        found("vm/shop/database", "default", Standing::Managed),
        found("pod/lab/p", "blue", Standing::Reserved),
        found("vmi/shop/database", "default", Standing::Runs),
    ];
    let text = who(mac("02-00-00-00-10-05"), &owners, Some(&installed()));
    let expected = "\
02:00:00:00:10:05 is held by 2 objects; it is in the pool's range 02:00:00:00:10:00 - 02:00:00:00:13:ff

OBJECT             INTERFACE  STANDING
vm/shop/database   default    managed by the pool
pod/lab/p          blue       not managed; never handed out
vmi/shop/database  default    running instance
";
    assert_eq!(text, expected);
}

#[test]
fn who_text_of_unused_address_is_one_line() {
    assert_eq!(
        who(mac("02:00:00:00:20:00"), &[], Some(&installed())),
        "no object has 02:00:00:00:20:00; it is not in the pool's range 02:00:00:00:10:00 - 02:00:00:00:13:ff\n"
    );
    assert_eq!(
        who(mac("02:00:00:00:20:00"), &[], None),
        "no object has 02:00:00:00:20:00\n"
    );
}

fn report(used: u64, reserved: u64) -> Report {
    Report {
        installed: installed(),
        usage: Usage {
            size: 1024,
            used,
            pending: 0,
            reserved,
        },
        outside: 0,
        shared: Vec::new(),
        namespaces: Vec::new(),
    }
}

#[test]
fn usage_text_counts_the_range() {
    let report = Report {
        outside: 2,
        shared: vec![(mac("02:00:00:00:10:05"), 2)],
        namespaces: vec![("shop".to_owned(), 11, 0), ("lab".to_owned(), 0, 3)],
        ..report(11, 1)
    };
    let expected = "\
range     02:00:00:00:10:00 - 02:00:00:00:13:ff, of the pool in cluster-network-addons
size      1,024  100.0 %
used         11    1.0 %  by objects of managed namespaces
reserved      1  < 0.1 %  by objects of other namespaces
free      1,012   98.8 %

2 more addresses are held by objects outside the range

NAMESPACE  OF MACHINES  OF PODS
shop       11           0
lab        0            3

HELD TWICE         OBJECTS
02:00:00:00:10:05  2
`weft macpool who MAC` names them.
";
    assert_eq!(usage(&report), expected);
}

#[test]
fn usage_text_of_nearly_full_range_gives_advice() {
    let roomy = report(900, 21);
    assert!(!roomy.is_nearly_full() && !usage(&roomy).contains("nearly full"));
    let full = report(900, 22);
    assert!(full.is_nearly_full());
    let text = usage(&full);
    assert!(
        text.contains("enlarge it in the NetworkAddonsConfig (spec.kubeMacPool.rangeStart"),
        "{text}"
    );
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn long_lists_are_cut() {
    let namespaces = (0..12).map(|number| (format!("n{number}"), 1, 0)).collect();
    let text = usage(&Report {
        namespaces,
        ..report(12, 0)
    });
    assert!(text.contains("\nn9 ") && !text.contains("\nn10 "), "{text}");
    assert!(text.ends_with("and 2 more\n"), "{text}");
}
