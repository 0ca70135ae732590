//! Addresses that an object or admission holds.

use super::Holding;

/// Addresses of one object or admission.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// Sorted and unique.
    pub(super) holdings: Box<[Holding]>,
    /// Position of each in the order of the address's holders.
    pub(super) places: Box<[u64]>,
}

impl Held {
    pub(super) fn new(mut holdings: Vec<Holding>, mut place: impl FnMut(&mut Holding) -> u64) -> Self {
        holdings.sort_unstable();
        holdings.dedup();
        let places = holdings.iter_mut().map(&mut place).collect();
        Self {
            holdings: holdings.into(),
            places,
        }
    }

    pub(super) fn place(&self, holding: &Holding) -> Option<u64> {
        let index = self.holdings.binary_search(holding).ok()?;
        self.places.get(index).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Holding, u64)> {
        self.holdings.iter().zip(self.places.iter().copied())
    }
}

/// From sorted holdings.
impl FromIterator<(Holding, u64)> for Held {
    fn from_iter<I: IntoIterator<Item = (Holding, u64)>>(held: I) -> Self {
        let (holdings, places): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        Self {
            holdings: holdings.into(),
            places: places.into(),
        }
    }
}
