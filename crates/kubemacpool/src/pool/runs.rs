//! A set of numbers that finds the next missing one in logarithmic time.

use std::collections::BTreeMap;

/// Numbers as runs: the first of each, and its last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(BTreeMap<u64, u64>);

impl Runs {
    /// The last number of the run that contains a number.
    pub(crate) fn until(&self, number: u64) -> Option<u64> {
        let (_, last) = self.0.range(..=number).next_back()?;
        (*last >= number).then_some(*last)
    }

    /// Adds a number below `u64::MAX`.
    pub(crate) fn insert(&mut self, number: u64) {
        if self.until(number).is_some() {
            return;
        }
        let last = self.0.remove(&(number + 1)).unwrap_or(number);
        match self.0.range_mut(..number).next_back() {
            Some((_, before)) if *before + 1 == number => *before = last,
            _ => {
                self.0.insert(number, last);
            }
        }
    }

    /// Removes a number.
    pub(crate) fn remove(&mut self, number: u64) {
        let Some((&first, &last)) = self.0.range(..=number).next_back() else {
            return;
        };
        if last < number {
            return;
        }
        if first < number {
            self.0.insert(first, number - 1);
        } else {
            self.0.remove(&first);
        }
        if last > number {
            self.0.insert(number + 1, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    use super::*;

    proptest! {
        #[test]
        fn runs_agree_with_a_plain_set(changes in prop::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let (mut runs, mut plain) = (Runs::default(), BTreeSet::new());
            for (add, number) in changes {
                if add {
                    runs.insert(number);
                    plain.insert(number);
                } else {
                    runs.remove(number);
                    plain.remove(&number);
                }
                for number in 0..=40 {
                    let last = (number..=40).take_while(|number| plain.contains(number)).last();
                    prop_assert_eq!(runs.until(number), last, "{} in {:?}", number, runs);
                }
            }
            // As few runs as there can be: none touches the next.
            let ends: Vec<(u64, u64)> = runs.0.into_iter().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{ends:?}");
        }
    }
}
