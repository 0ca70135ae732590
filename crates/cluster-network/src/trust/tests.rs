use super::*;

fn certificate() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a".to_owned()]).expect("names");
    params.self_signed(&key).expect("a certificate").pem()
}

#[test]
fn bundle_holds_certificates_and_nothing_else() {
    let one = certificate();
    assert_eq!(check(&one), Ok(()));
    assert_eq!(check(&format!("# a comment\n{one}\n\n{}", certificate())), Ok(()));
    assert_eq!(check(""), Err(Invalid::Empty));
    assert_eq!(check("no PEM"), Err(Invalid::Empty));
    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    assert_eq!(check(&format!("{one}{key}")), Err(Invalid::NoCertificate(2)));
    let strange = one.replace("CERTIFICATE", "SOMETHING");
    assert_eq!(check(&format!("{one}{strange}")), Err(Invalid::NoCertificate(2)));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(check(broken), Err(Invalid::Certificate(1)));
    let cut = &one[..one.len() / 2];
    assert!(check(cut).is_err());
}

#[test]
fn bundle_of_the_user_comes_first() {
    let (user, system) = (certificate(), certificate());
    assert_eq!(merge(None, &system), Ok(system.clone()));
    assert_eq!(merge(Some(&user), &system), Ok(format!("{user}\n{system}")));
    assert_eq!(merge(Some(&user), ""), Ok(user));
    assert_eq!(merge(Some("x"), &system), Err(Invalid::Empty));
}

// cluster-network#183
#[test]
fn bundle_is_emptied_only_if_it_was_the_users() {
    let of = |bundle: &str, user: Option<&str>| Merged {
        bundle: Some(digest(bundle)),
        user: user.map(str::to_owned),
    };
    let (absent, foreign, users) = (Merged::default(), of("x", None), of("x", Some("ours")));
    for (before, user, bundle, expected) in [
        (&absent, "", "", None),
        (&foreign, "", "", None),
        (&users, "", "", Some(of("", Some("")))),
        (&of("", Some("")), "", "", Some(of("", Some("")))),
        (&users, "", "system", Some(of("system", None))),
        (&absent, "", "system", Some(of("system", None))),
        (&foreign, "ours", "x", Some(users.clone())),
        (&of("", Some("")), "ours", "x", Some(users.clone())),
    ] {
        assert_eq!(
            before.wanted(user, bundle),
            expected,
            "{before:?} {user} {bundle}"
        );
    }
}

#[test]
fn nothing_is_injected_where_nothing_differs() {
    let wanting = |bundle: Option<&str>, component: &str| Wanting {
        uid: "1".to_owned(),
        bundle: bundle.map(digest),
        component: component.to_owned(),
    };
    let injected = |bundle, component| {
        injection(&wanting(bundle, component), &digest("new")).map(|it| it.sets_component)
    };
    assert_eq!(injected(Some("new"), COMPONENT), None);
    assert_eq!(injected(Some("new"), "theirs"), None);
    assert_eq!(injected(Some("new"), ""), Some(true));
    assert_eq!(injected(Some("old"), COMPONENT), Some(true));
    assert_eq!(injected(Some("old"), "theirs"), Some(false));
    assert_eq!(injected(None, ""), Some(true));
}
