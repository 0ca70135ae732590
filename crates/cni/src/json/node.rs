//! A parsed document that folds keys when a struct is deserialized from it.

use std::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use super::{Error, folds_to};

/// A JSON value with its object entries in document order, duplicates included.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as exact as `serde_json` reads it.
    Number(serde_json::Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// An object's entries.
    Map(Vec<(String, Node)>),
}

impl Node {
    fn unexpected(&self) -> de::Unexpected<'_> {
        match self {
            Self::Null => de::Unexpected::Unit,
            Self::Bool(value) => de::Unexpected::Bool(*value),
            Self::Number(number) => number.as_i64().map_or_else(
                || de::Unexpected::Float(number.as_f64().unwrap_or(f64::NAN)),
                de::Unexpected::Signed,
            ),
            Self::Text(text) => de::Unexpected::Str(text),
            Self::List(_) => de::Unexpected::Seq,
            Self::Map(_) => de::Unexpected::Map,
        }
    }
}

impl<'de> de::Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(serde_json::Number::from_f64(value).map_or(Node::Null, Node::Number))
            }
            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }
            fn visit_string<E>(self, value: String) -> Result<Node, E> {
                Ok(Node::Text(value))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Map(entries))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// One value for each field in the document: the last of its spellings. A key matches the field that it equals, else
/// the first that it folds to. `null` entries are dropped, so the default applies.
fn fold(entries: Vec<(String, Node)>, fields: &'static [&'static str]) -> Vec<(&'static str, Node)> {
    let mut chosen: Vec<(&'static str, Node)> = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        if value == Node::Null {
            continue;
        }
        let Some(field) = fields
            .iter()
            .find(|field| **field == key)
            .or_else(|| fields.iter().find(|field| folds_to(&key, field)))
        else {
            continue;
        };
        match chosen.iter_mut().find(|(known, _)| known == field) {
            Some(known) => known.1 = value,
            None => chosen.push((field, value)),
        }
    }
    chosen
}

/// Deserializes the entries of a map or struct. Errors name the key.
struct Entries<K> {
    entries: std::vec::IntoIter<(K, Node)>,
    value: Option<(String, Node)>,
}

impl<'de, K: AsRef<str>> MapAccess<'de> for Entries<K> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((key, value)) = self.entries.next() else {
            return Ok(None);
        };
        let key = key.as_ref().to_owned();
        self.value = Some((key.clone(), value));
        let key: StringDeserializer<Error> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (key, value) = self.value.take().unwrap_or_else(|| (String::new(), Node::Null));
        seed.deserialize(value).map_err(|error| {
            let separator = if error.0.starts_with(['.', '[']) { "" } else { ": " };
            Error(format!("{key}{separator}{error}"))
        })
    }
}

struct Items(std::iter::Enumerate<std::vec::IntoIter<Node>>);

impl<'de> SeqAccess<'de> for Items {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((index, item)) = self.0.next() else {
            return Ok(None);
        };
        seed.deserialize(item)
            .map(Some)
            .map_err(|error| Error(format!("[{index}]: {error}")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

impl<'de> Deserializer<'de> for Node {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Number(number) => Deserializer::deserialize_any(number, visitor).map_err(Error::from),
            Self::Text(text) => visitor.visit_string(text),
            Self::List(items) => visitor.visit_seq(Items(items.into_iter().enumerate())),
            Self::Map(entries) => visitor.visit_map(Entries {
                entries: entries.into_iter(),
                value: None,
            }),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Map(entries) => {
                let entries = fold(entries, fields);
                visitor.visit_map(Entries {
                    entries: entries.into_iter(),
                    value: None,
                })
            }
            // `RawValue` requests a struct with a private name.
            other if name.starts_with('$') => other.deserialize_any(visitor),
            other => Err(de::Error::invalid_type(other.unexpected(), &"an object")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_none(),
            other => visitor.visit_some(other),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Text(text) => visitor.visit_enum(Variant(text)),
            other => Err(de::Error::invalid_type(other.unexpected(), &"a text")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// An enum without data, written as a text.
struct Variant(String);

impl<'de> EnumAccess<'de> for Variant {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let name: StringDeserializer<Error> = self.0.clone().into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, Error> {
        Err(de::Error::custom("expected a plain text"))
    }
    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("expected a plain text"))
    }
    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("expected a plain text"))
    }
}
