//! Reviews that differ in the name of their object.

use std::sync::atomic::{AtomicU32, Ordering};

/// A review without the name of its object. The insertion of a name must cost little, because the server has the same
/// processors.
#[derive(Clone, Debug)]
pub struct Template {
    text: Vec<u8>,
    /// Position of the number.
    places: Vec<usize>,
    digits: usize,
    among: u32,
}

impl Template {
    /// Returns a template for a review that contains `name` several times. The zeros at the end of the name are
    /// replaced by a number below `among`.
    pub fn new(text: Vec<u8>, name: &str, among: u32) -> Self {
        let digits = name.len() - name.trim_end_matches('0').len();
        let number = name.len() - digits;
        let places = (0..text.len())
            .filter(|at| text[*at..].starts_with(name.as_bytes()))
            .map(|at| at + number)
            .collect();
        Self {
            text,
            places,
            digits,
            among: among.clamp(
                1,
                10_u32.saturating_pow(u32::try_from(digits).unwrap_or(u32::MAX)),
            ),
        }
    }

    /// Returns the review of the object with the next number of this run.
    pub fn fill(&mut self) -> &[u8] {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed) % self.among;
        let number = format!("{number:0digits$}", digits = self.digits);
        for place in &self.places {
            self.text[*place..*place + self.digits].copy_from_slice(number.as_bytes());
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_replaces_all_zeros() {
        let mut template = Template::new(b"vm-000 of vm-000, vm-00".to_vec(), "vm-000", 1000);
        let first = String::from_utf8_lossy(template.fill()).into_owned();
        let second = String::from_utf8_lossy(template.fill()).into_owned();
        assert_ne!(first, second);
        let number = &first[3..6];
        assert_eq!(first, format!("vm-{number} of vm-{number}, vm-00"));
        let mut one = Template::new(b"vm-000".to_vec(), "vm-000", 1);
        one.fill();
        assert_eq!(one.fill(), b"vm-000");
    }
}
