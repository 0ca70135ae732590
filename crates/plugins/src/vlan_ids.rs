//! The VLAN IDs of a trunk.

use std::collections::BTreeSet;

/// The union of ranges, each with its first and last ID. A config may repeat the longest range many times: each ID is
/// inserted once.
pub(crate) fn union(mut ranges: Vec<(u16, u16)>) -> BTreeSet<u16> {
    ranges.sort_unstable();
    let mut ids = BTreeSet::new();
    let mut next = 0;
    for (first, last) in ranges {
        ids.extend(first.max(next)..=last);
        next = next.max(last.saturating_add(1));
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_may_overlap_contain_each_other_and_touch() {
        let ids = union(vec![(7, 9), (1, 4), (2, 3), (4, 5), (5, 5), (9, 9), (12, 12)]);
        assert_eq!(Vec::from_iter(ids), [1, 2, 3, 4, 5, 7, 8, 9, 12]);
        assert!(union(Vec::new()).is_empty());
    }
}
