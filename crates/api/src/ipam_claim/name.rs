//! Names of claims (kubevirt-ipam §4.4).

/// Maximum length of an object name, bytes.
const LONGEST: usize = 253;

/// Returns the name of an instance's claim on a network: the valid characters of both names, joined by full stops.
pub fn claim_name(instance: &str, network: &str) -> String {
    let text = format!("{instance}.{network}").to_lowercase();
    let is_foreign = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let parts = text.split(is_foreign).map(|part| part.trim_matches('-'));
    let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    let mut name = parts.join(".");
    // The text is ASCII.
    name.truncate(LONGEST);
    name.truncate(name.trim_end_matches(['.', '-']).len());
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn claim_name_follows_the_table() {
        // kubevirt-ipam#40
        for (instance, network, expected) in [
            ("vm1", "podnet", "vm1.podnet"),
            ("vm1", "random_net", "vm1.random.net"),
            ("my.vm", "Net-A", "my.vm.net-a"),
            ("vm1", "a--b", "vm1.a--b"),
            ("vm1", "-x-", "vm1.x"),
        ] {
            assert_eq!(claim_name(instance, network), expected);
        }
    }

    #[test]
    fn long_name_is_truncated_to_a_valid_one() {
        // kubevirt-ipam#41
        assert_eq!(claim_name("vm1", &"a".repeat(300)).len(), 253);
        for end in ['.', '-', '_'] {
            let network = format!("{}{end}{}", "a".repeat(248), "b".repeat(20));
            let expected = format!("vm1.{}", "a".repeat(248));
            assert_eq!(claim_name("vm1", &network), expected);
        }
    }

    proptest! {
        #[test]
        fn claim_name_is_always_valid_for_the_api_server(instance in "[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", network in ".{0,300}") {
            // kubevirt-ipam#41
            let name = claim_name(&instance, &network);
            prop_assert!(!name.is_empty() && name.len() <= 253);
            for part in name.split('.') {
                prop_assert!(!part.is_empty() && !part.starts_with('-') && !part.ends_with('-'), "{}", name);
                prop_assert!(part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            }
        }
    }
}
