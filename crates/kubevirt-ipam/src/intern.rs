//! Stores equal values of cached objects once: virtual machines of one template have the same networks.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Unused values are dropped only above this number of values.
const FEW: usize = 64;

/// The stored values. Unused values are dropped when the number of values has doubled.
#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized> {
    values: HashSet<Arc<T>>,
    full: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: HashSet::new(),
            full: FEW,
        }
    }
}

impl<T: Eq + Hash + ?Sized> Interner<T> {
    /// Replaces the value with the stored equal one.
    pub(crate) fn intern(&mut self, value: &mut Arc<T>) {
        if let Some(kept) = self.values.get(value) {
            *value = Arc::clone(kept);
            return;
        }
        if self.values.len() >= self.full {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.full = FEW.max(2 * self.values.len());
        }
        self.values.insert(Arc::clone(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once() {
        let mut interner = Interner::default();
        let (mut one, mut two): (Arc<str>, Arc<str>) = ("net".into(), "net".into());
        interner.intern(&mut one);
        interner.intern(&mut two);
        assert!(Arc::ptr_eq(&one, &two));
        let mut other: Arc<str> = "other".into();
        interner.intern(&mut other);
        assert_eq!(&*other, "other");
    }

    #[test]
    fn unused_values_are_dropped() {
        let mut interner = Interner::default();
        let mut used: Arc<str> = "used".into();
        interner.intern(&mut used);
        for number in 0..10 * FEW {
            interner.intern(&mut number.to_string().into());
        }
        assert!(interner.values.len() <= FEW, "{}", interner.values.len());
        let mut again: Arc<str> = "used".into();
        interner.intern(&mut again);
        assert!(Arc::ptr_eq(&used, &again));
    }
}
