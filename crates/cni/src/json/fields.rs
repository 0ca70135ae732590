//! Lists the keys of a type.

use super::Error;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// The JSON keys of a struct; empty for other types.
pub fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // Always an error: the type has passed its fields by then.
    let _ = T::deserialize(Listener(&mut fields));
    fields
}

/// Records the fields that a type requests, and returns an error.
struct Listener<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Listener<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error(String::new()))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error(String::new()))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(serde::Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    #[derive(Default)]
    #[allow(dead_code, reason = "the names alone count")]
    struct Wire {
        is_gateway: bool,
        #[serde(rename = "txQLen")]
        queue: u32,
    }

    #[test]
    fn a_struct_has_the_fields_that_users_write() {
        assert_eq!(fields_of::<Wire>(), ["isGateway", "txQLen"]);
        assert!(fields_of::<BTreeMap<String, String>>().is_empty());
    }
}
