use super::*;
use crate::zone::Found;
use hickory_proto::rr::RecordType;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn zone(text: &str) -> Zone {
    read(text, &name("vm.")).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn assert_refused(text: &str, expected: &str) {
    let error = read(text, &name("vm.")).expect_err(text);
    assert_eq!(error.to_string(), expected);
}

#[track_caller]
fn records(zone: &Zone, at: &str) -> Vec<String> {
    match zone.find(&name(at)) {
        Some(Found::Records(entries)) => entries
            .iter()
            .map(|entry| {
                format!(
                    "{} {} {}",
                    entry.ttl,
                    entry.data.record_type(),
                    entry.data.to_rdata()
                )
            })
            .collect(),
        other => panic!("{at}: {other:?}"),
    }
}

const HEAD: &str = "$ORIGIN vm. \n$TTL 3600 \n@ IN SOA ns.vm. email.vm. (7 3600 3600 1209600 3600)\n";

#[test]
fn files_of_the_monitor_are_read() {
    let text = format!(
        "{HEAD}@ IN NS ns.vm.\nns IN A 185.251.75.10\nnic1.vmi1.ns1 IN A 1.2.3.4\nvmi1.ns1 IN A 1.2.3.4\n\
         nic1.vmi1.ns1 IN AAAA fd00::1\n"
    );
    let zone = zone(&text);
    assert_eq!(zone.soa().serial, 7);
    assert_eq!(zone.records(), 5);
    assert_eq!(records(&zone, "vm."), ["3600 NS ns.vm."]);
    assert_eq!(
        records(&zone, "nic1.vmi1.ns1.vm."),
        ["3600 A 1.2.3.4", "3600 AAAA fd00::1"]
    );
}

#[test]
fn master_files_of_all_forms_are_read() {
    let text = "\
; a comment
$TTL 1h
@   IN SOA ns admin.example.org. ( 2024010101 ; serial
            1h 15m  ; refresh, retry
            2w 1h30m )
    IN NS ns
ns  A 10.0.0.1
    300 IN AAAA fd00::1
    IN 200 TXT \"a b\" c\\\"d \\065
www 60 CNAME ns
$ORIGIN sub.vm.
@   MX 10 mail.example.org.
x   SRV 1 2 443 @
1   PTR x
y.vm. A 10.0.0.2
";
    let zone = zone(text);
    assert_eq!(zone.soa().serial, 2_024_010_101);
    assert_eq!((zone.soa().refresh, zone.soa().minimum), (3600, 5400));
    assert_eq!(zone.soa().mname, name("ns.vm."));
    assert_eq!(zone.negative_ttl(), 3600);
    assert_eq!(
        records(&zone, "ns.vm."),
        ["3600 A 10.0.0.1", "300 AAAA fd00::1", "200 TXT a bc\"dA"]
    );
    assert_eq!(records(&zone, "www.vm."), ["60 CNAME ns.vm."]);
    assert_eq!(records(&zone, "sub.vm."), ["3600 MX 10 mail.example.org."]);
    assert_eq!(records(&zone, "x.sub.vm."), ["3600 SRV 1 2 443 sub.vm."]);
    assert_eq!(records(&zone, "1.sub.vm."), ["3600 PTR x.sub.vm."]);
    assert_eq!(records(&zone, "y.vm."), ["3600 A 10.0.0.2"]);
}

#[test]
fn last_line_may_lack_its_end_and_lines_may_have_dos_ends() {
    let zone = zone(&format!("{HEAD}a IN A 10.0.0.1").replace('\n', "\r\n"));
    assert_eq!(records(&zone, "a.vm."), ["3600 A 10.0.0.1"]);
}

#[test]
fn records_before_the_soa_are_kept() {
    let text = "$TTL 5\na A 10.0.0.1\n@ SOA ns.vm. email.vm. 1 2 3 4 5\n";
    assert_eq!(records(&zone(text), "a.vm."), ["5 A 10.0.0.1"]);
}

#[test]
fn missing_ttl_is_that_of_the_record_before() {
    let text = "@ 9 SOA ns.vm. email.vm. 1 2 3 4 5\na A 10.0.0.1\n";
    assert_eq!(records(&zone(text), "a.vm."), ["9 A 10.0.0.1"]);
    let text = "@ SOA ns.vm. email.vm. 1 2 3 4 5\na A 10.0.0.1\n";
    assert_eq!(records(&zone(text), "a.vm."), ["5 A 10.0.0.1"]);
}

#[test]
fn unknown_content_is_refused_with_its_line() {
    let soa = "@ IN SOA ns.vm. email.vm. (1 2 3 4 5)\n";
    for (text, expected) in [
        ("", "line 0: there is no SOA record"),
        ("a 5 A 10.0.0.1\n", "line 1: there is no SOA record"),
        (
            "@ IN SOA ns.vm. email.vm. (1 2 3\n",
            "line 1: it ends within parentheses",
        ),
        (&format!("{soa}a TXT \"x\n"), "line 2: it ends within quotes"),
        (&format!("{soa}a A ) 10.0.0.1\n"), "line 2: `)` without `(`"),
        (
            &format!("{soa}$INCLUDE /etc/passwd\n"),
            "line 2: unsupported directive \"$INCLUDE\"",
        ),
        (" A 10.0.0.1\n", "line 1: the first record has no name"),
        (&format!("{soa}\n\na 5 IN\n"), "line 4: the record has no type"),
        (
            &format!("{soa}a CAA 0 issue x\n"),
            "line 2: unsupported type or class \"CAA\"",
        ),
        (
            &format!("{soa}a CH A 10.0.0.1\n"),
            "line 2: unsupported type or class \"CH\"",
        ),
        (
            &format!("{soa}a..b A 10.0.0.1\n"),
            "line 2: \"a..b\" is not a name",
        ),
        (
            &format!("{soa}a A 10.0.0\n"),
            "line 2: expected IPv4 address, not \"10.0.0\"",
        ),
        (
            &format!("{soa}a A 010.0.0.1\n"),
            "line 2: expected IPv4 address, not \"010.0.0.1\"",
        ),
        (&format!("{soa}a MX 10\n"), "line 2: the mail server is missing"),
        (
            &format!("{soa}a A 10.0.0.1 10.0.0.2\n"),
            "line 2: unexpected field \"10.0.0.2\"",
        ),
        (
            "a A 10.0.0.1\n",
            "line 1: there is neither $TTL nor a TTL of the record",
        ),
        (
            &format!("{soa}a.example. A 10.0.0.1\n"),
            "line 2: a.example. is not in the zone",
        ),
        (&format!("{soa}{soa}"), "line 2: there is a second SOA record"),
        (
            "a IN SOA ns.vm. email.vm. (1 2 3 4 5)\n",
            "line 1: the SOA record is not that of the zone",
        ),
        (
            &format!("{soa}a NS b\n"),
            "line 2: a.vm. is delegated, which is not supported",
        ),
        (
            &format!("{soa}a A 10.0.0.1\na CNAME b\n"),
            "line 3: a.vm. has a CNAME record and others",
        ),
        (
            &format!("{soa}a CNAME b\na A 10.0.0.1\n"),
            "line 3: a.vm. has a CNAME record and others",
        ),
        (
            "@ IN SOA ns.vm. email.vm. (4294967296 2 3 4 5)\n",
            "line 1: expected serial, not \"4294967296\"",
        ),
        ("$TTL 1x\n", "line 1: expected time, not \"1x\""),
        ("$TTL h\n", "line 1: expected time, not \"h\""),
    ] {
        assert_refused(text, expected);
    }
}

#[test]
fn half_a_file_is_refused() {
    // A prefix of a file is valid if it ends at the end of a line; no other valid prefix differs in content from the
    // whole.
    let text = format!("{HEAD}nic1.vmi1.ns1 IN A 1.2.3.4\n");
    for end in 0..text.len() {
        if let Ok(zone) = read(&text[..end], &name("vm.")) {
            let found = zone.find(&name("nic1.vmi1.ns1.vm."));
            let partly = end + 1 < text.len() && matches!(found, Some(Found::Records(_)));
            assert!(!partly, "{}", &text[..end]);
        }
    }
}

#[test]
fn strings_have_a_limit() {
    let text = |length: usize| format!("{HEAD}a TXT \"{}\"\n", "x".repeat(length));
    assert!(read(&text(255), &name("vm.")).is_ok());
    assert!(read(&text(256), &name("vm.")).is_err());
}

#[test]
fn form_feed_is_a_blank() {
    let zone = zone(&format!("{HEAD}a\x0cIN A\x0c10.0.0.1\n\x0c\n"));
    assert_eq!(records(&zone, "a.vm."), ["3600 A 10.0.0.1"]);
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n\t]{0,200}") {
        let _ = read(&text, &name("vm."));
    }

    #[test]
    fn any_words_are_read_or_refused(words in proptest::collection::vec(
        proptest::sample::select(vec!["@", "IN", "A", "SOA", "(", ")", "\"", "\\", "\n", " ", "1", "vm.", "$TTL", "$ORIGIN",
            ";", "TXT", "a", "10.0.0.1", "é"]), 0..40)
    ) {
        let _ = read(&words.join(" "), &name("vm."));
        let _ = read(&words.concat(), &name("vm."));
    }

    #[test]
    fn addresses_come_back(address: [u8; 4]) {
        let address = Ipv4Addr::from(address);
        let zone = zone(&format!("{HEAD}a IN A {address}\n"));
        let expected = Data::V4(address);
        let found = matches!(zone.find(&name("A.VM.")), Some(Found::Records([entry]))
            if entry.data == expected && entry.data.record_type() == RecordType::A);
        proptest::prop_assert!(found);
    }
}
