//! UIDs in few bytes: caches hold several for each virtual machine.

use std::fmt;

use uuid::Uuid;

/// The UID of an object; empty by default.
#[derive(Clone, Eq, PartialEq)]
pub struct Uid(Form);

/// Each text has exactly one form, so that equal UIDs have equal forms.
#[derive(Clone, Eq, PartialEq)]
enum Form {
    /// A UUID in lower case, the form that the API server generates.
    Uuid(Uuid),
    /// Any other text.
    Text(Box<str>),
}

impl Uid {
    /// Whether the UID is empty.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Form::Text(text) if text.is_empty())
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self(Form::Text(Box::default()))
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        let uuid = Uuid::try_parse(text).ok();
        // The parser accepts other spellings of a UUID, too. They keep their text.
        let uuid = uuid.filter(|uuid| uuid.to_string() == text);
        Self(uuid.map_or_else(|| Form::Text(text.into()), Form::Uuid))
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Uuid(uuid) => fmt::Display::fmt(uuid, f),
            Form::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_keeps_its_text() {
        for text in [
            "0df28fbd-5f5f-11e8-bc74-000000000001",
            "0DF28FBD-5f5f-11e8-bc74-000000000001",
            "0df28fbd-5f5f-11e8-bc74-00000000000g",
            "{0df28fbd-5f5f-11e8-bc74-000000000001}",
            "0df28fbd5f5f11e8bc74000000000001",
            "uid-of-vm",
            "",
        ] {
            let uid = Uid::from(text);
            assert_eq!(uid.to_string(), text);
            assert_eq!(format!("{uid:?}"), format!("{text:?}"));
            assert_eq!(uid.is_empty(), text.is_empty());
        }
        assert_eq!(Uid::default(), Uid::from(""));
    }

    #[test]
    fn uuid_takes_no_heap() {
        let uid = Uid::from("0df28fbd-5f5f-11e8-bc74-000000000001");
        assert!(matches!(uid.0, Form::Uuid(_)));
        assert_ne!(uid, Uid::from("0df28fbd-5f5f-11e8-bc74-000000000002"));
        assert!(size_of::<Uid>() <= 24);
    }
}
