//! Packet rules.

use linux::{
    Errno,
    nft::{
        Element, Expression, Family, Hook, HookPoint, Key, KeyPart, Meta, Register, SetSpec, Socket, Table,
        Transaction, Value, Verdict,
    },
};

use crate::support::alone;

const TABLE: Table = Table {
    family: Family::Inet,
    name: "test",
};
const SET: SetSpec<'_> = SetSpec {
    name: "ports",
    key: &[KeyPart::InterfaceName],
    data: &[],
    comment: "for tests",
};

fn key(name: &str) -> Key {
    Key::of(&[Value::InterfaceName(name)])
}

/// A table with a chain on a hook, another chain, and a set.
fn base() -> Transaction {
    let mut base = Transaction::new();
    base.add_table(TABLE, "for tests");
    let hook = Hook {
        kind: "filter",
        point: HookPoint::Prerouting,
        priority: 5,
    };
    base.add_chain(TABLE, "entry", Some(hook), "");
    base.add_chain(TABLE, "side", None, "the other");
    base.add_set(TABLE, &SET);
    base
}

fn jump() -> Vec<Expression> {
    vec![
        Expression::Meta {
            meta: Meta::InputInterfaceName,
            to: Register::FIRST,
        },
        Expression::Lookup {
            set: SET.name.into(),
            register: Register::FIRST,
            contained: true,
        },
        Expression::Verdict(Verdict::Jump("side".into())),
    ]
}

#[test]
fn queries_of_missing_objects_are_empty() {
    alone("absent rules", || {
        let mut socket = Socket::open().unwrap();
        for _ in 0..2 {
            assert!(!socket.has_chain(TABLE, "none").unwrap());
            assert!(!socket.has_chain(TABLE, &"x".repeat(300)).unwrap());
            assert!(socket.rules(TABLE, "none").unwrap().is_empty());
            assert!(socket.elements(TABLE, "none").unwrap().is_empty());
            assert_eq!(socket.element(TABLE, "none", &key("a")).unwrap(), None);
            socket.commit(&base()).unwrap();
            assert_eq!(socket.element(TABLE, SET.name, &key("a")).unwrap(), None);
        }
        assert_eq!(socket.sets(TABLE).unwrap(), [SET.name]);
        let mut chains = socket.chains(TABLE).unwrap();
        chains.sort();
        assert_eq!(chains, ["entry", "side"]);
        let elsewhere = Table {
            name: "none",
            ..TABLE
        };
        assert!(socket.sets(elsewhere).unwrap().is_empty());
        assert!(socket.chains(elsewhere).unwrap().is_empty());
    });
}

#[test]
fn created_objects_are_listed_and_removed() {
    alone("rules made and removed", || {
        let mut socket = Socket::open().unwrap();
        let mut make = base();
        make.add_element(TABLE, SET.name, &key("a"), "of a");
        make.add_element(TABLE, SET.name, &key("b"), "");
        make.add_rule(TABLE, "entry", &jump(), "to the side");
        make.add_rule(TABLE, "side", &[Expression::Verdict(Verdict::Return)], "");
        socket.commit(&make).unwrap();

        let rules = socket.rules(TABLE, "entry").unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].expressions, jump());
        assert_eq!(rules[0].comment, "to the side");
        let element = |name, comment: &str| Element {
            key: key(name),
            data: None,
            comment: comment.into(),
        };
        assert_eq!(
            socket.element(TABLE, SET.name, &key("a")).unwrap(),
            Some(element("a", "of a"))
        );
        let mut elements = socket.elements(TABLE, SET.name).unwrap();
        elements.sort_by(|a, b| a.comment.cmp(&b.comment));
        assert_eq!(elements, [element("b", ""), element("a", "of a")]);

        let mut unmake = Transaction::new();
        unmake.delete_rule(TABLE, "entry", rules[0].handle);
        unmake.flush_chain(TABLE, "side");
        unmake.delete_chain(TABLE, "side");
        unmake.delete_element(TABLE, SET.name, &key("a"));
        unmake.delete_set(TABLE, SET.name);
        socket.commit(&unmake).unwrap();
        assert!(socket.has_chain(TABLE, "entry").unwrap());
        assert!(!socket.has_chain(TABLE, "side").unwrap());
        assert!(socket.sets(TABLE).unwrap().is_empty());
    });
}

#[test]
fn failed_transaction_names_the_first_failure_and_changes_nothing() {
    alone("rules that fail", || {
        let mut socket = Socket::open().unwrap();
        socket.commit(&base()).unwrap();
        let mut changes = Transaction::new();
        changes.add_element(TABLE, SET.name, &key("a"), "");
        changes.delete_element(TABLE, SET.name, &key("b"));
        changes.delete_chain(TABLE, "none");
        changes.add_element(TABLE, SET.name, &key("c"), "");
        let error = socket.commit(&changes).unwrap_err();
        assert!(error.is_not_found());
        assert!(
            error
                .to_string()
                .starts_with("delete element of set \"inet test ports\": no such file or directory"),
            "{error}"
        );
        assert!(socket.elements(TABLE, SET.name).unwrap().is_empty());
        // The socket can be used after the failure.
        assert!(socket.has_chain(TABLE, "side").unwrap());
    });
}

#[test]
fn set_that_a_rule_uses_is_not_deleted() {
    alone("a set in use", || {
        let mut socket = Socket::open().unwrap();
        let mut make = base();
        make.add_rule(TABLE, "entry", &jump(), "");
        socket.commit(&make).unwrap();
        let mut unmake = Transaction::new();
        unmake.delete_set(TABLE, SET.name);
        let error = socket.commit(&unmake).unwrap_err();
        assert!(error.is_in_use() && !error.is_not_found(), "{error}");
        assert_eq!(socket.sets(TABLE).unwrap(), [SET.name]);
    });
}

#[test]
fn update_decides_again_after_a_concurrent_change() {
    alone("stale decisions", || {
        let mut socket = Socket::open().unwrap();
        socket.commit(&base()).unwrap();
        let mut rival = Socket::open().unwrap();
        let mut seen = Vec::new();
        socket
            .update(|socket| {
                let there = socket.elements(TABLE, SET.name)?.len();
                seen.push(there);
                if there < 2 {
                    let mut change = Transaction::new();
                    change.add_element(TABLE, SET.name, &key(&format!("rival{there}")), "");
                    rival.commit(&change)?;
                }
                let mut change = Transaction::new();
                if there > 0 {
                    change.add_element(TABLE, SET.name, &key("own"), "");
                }
                Ok(change)
            })
            .unwrap();
        // The same holds for an empty transaction, and for a first change that fails because it is late.
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!(socket.elements(TABLE, SET.name).unwrap().len(), 3);

        let error = socket.update(|_| {
            Err(rival
                .commit(&{
                    let mut change = Transaction::new();
                    change.delete_chain(TABLE, "none");
                    change
                })
                .unwrap_err())
        });
        assert_eq!(error.unwrap_err().errno(), Some(Errno::NOENT));
    });
}
