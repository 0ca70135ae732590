//! Compact storage of repeated texts.

use std::collections::HashSet;
use std::sync::Arc;

/// Repeated names (namespaces, interfaces, networks), each stored once.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    names: HashSet<Arc<str>>,
    /// Number of names at which unused ones are removed.
    many: usize,
}

impl Names {
    const FEW: usize = 64;

    /// The shared copy of a name.
    pub(super) fn one(&mut self, name: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() >= self.many {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.many = Self::FEW.max(self.names.len() * 2);
        }
        self.names.insert(Arc::clone(name));
        Arc::clone(name)
    }
}

/// UID of an object: usually a UUID, stored as 16 octets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Uid {
    Uuid([u8; 16]),
    Other(Box<str>),
}

impl Uid {
    pub(super) fn new(text: &str) -> Self {
        Self::uuid(text.as_bytes()).map_or_else(|| Self::Other(text.into()), Self::Uuid)
    }

    /// Parses lower case only, so that different texts stay different.
    fn uuid(text: &[u8]) -> Option<[u8; 16]> {
        const DASHES: [usize; 4] = [8, 13, 18, 23];
        if text.len() != 36 || DASHES.iter().any(|dash| text[*dash] != b'-') {
            return None;
        }
        let mut digits = text
            .iter()
            .enumerate()
            .filter(|(index, _)| !DASHES.contains(index));
        let mut digit = || match digits.next()?.1 {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut octets = [0; 16];
        for octet in &mut octets {
            *octet = digit()? << 4 | digit()?;
        }
        Some(octets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_share_memory() {
        let mut names = Names::default();
        let first = names.one(&Arc::from("default"));
        let second = names.one(&Arc::from("default"));
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn unused_names_are_dropped() {
        let mut names = Names::default();
        let kept = names.one(&Arc::from("kept"));
        for number in 0..10_000 {
            names.one(&Arc::from(format!("passing-{number}")));
        }
        assert!(names.names.len() <= Names::FEW, "{}", names.names.len());
        assert!(Arc::ptr_eq(&kept, &names.one(&Arc::from("kept"))));
    }

    #[test]
    fn distinct_uids_are_distinct_in_any_form() {
        let uuid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        let texts = [
            uuid,
            "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f1",
            "0F1E2D3C-4B5A-6978-8796-A5B4C3D2E1F0",
            "0f1e2d3c4b5a69788796a5b4c3d2e1f0----",
            "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f",
            "uid",
            "",
        ];
        assert!(matches!(Uid::new(uuid), Uid::Uuid([0x0f, 0x1e, 0x2d, ..])));
        for (index, one) in texts.iter().enumerate() {
            for (other_index, other) in texts.iter().enumerate() {
                assert_eq!(
                    Uid::new(one) == Uid::new(other),
                    index == other_index,
                    "{one} {other}"
                );
            }
        }
    }
}
