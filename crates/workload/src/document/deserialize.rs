//! Deserializes types from nodes with serde. Every error gets the position of the innermost value that it is about.

use super::{Bare, Complaint, Key, Node, Position, Value, number_out_of_range};
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A value with its position in the file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct At<T> {
    pub at: Position,
    pub value: T,
}

/// The name of the struct that [`At`] requests from a node to get the node's position.
const AT: &str = "amalgam::At";

impl Node {
    /// Deserializes a type, such as one of a job file, from the tree.
    pub fn read<T: de::DeserializeOwned>(&self) -> Result<T, Complaint> {
        T::deserialize(self)
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Complaint;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Complaint> {
        let read = match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bare { value, written } => match value {
                Bare::Boolean(value) => visitor.visit_bool(*value),
                Bare::Integer(value) => match u64::try_from(*value) {
                    Ok(value) => visitor.visit_u64(value),
                    Err(_) => visitor.visit_i64(*value),
                },
                Bare::Float(value) => visitor.visit_f64(*value),
                Bare::TooLarge => Err(number_out_of_range(written)),
                Bare::Date => visitor.visit_borrowed_str(written),
            },
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter() }),
            Value::Table(entries) => visitor.visit_map(Entries { entries: entries.iter(), value: None }),
        };
        read.map_err(|complaint| complaint.at(self.at))
    }

    /// If a text is required, a value without quotes is read as one, exactly as written: `1.10` stays `1.10`.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Complaint> {
        match &self.value {
            Value::Bare { written, .. } => {
                visitor.visit_borrowed_str(written).map_err(|complaint: Complaint| complaint.at(self.at))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Complaint> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Complaint> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Complaint> {
        if name == AT { visitor.visit_seq(Positioned { node: self, step: 0 }) } else { self.deserialize_any(visitor) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Complaint> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Complaint> {
        visitor.visit_enum(self).map_err(|complaint| complaint.at(self.at))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple tuple_struct
        map identifier ignored_any
    }
}

struct Items<'de> {
    items: std::slice::Iter<'de, Node>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Complaint;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Complaint> {
        let Some(node) = self.items.next() else { return Ok(None) };
        seed.deserialize(node).map(Some).map_err(|complaint| complaint.at(node.at))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'de> {
    entries: std::slice::Iter<'de, (Key, Node)>,
    value: Option<&'de Node>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Complaint;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Complaint> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(key).map(Some).map_err(|complaint| complaint.at(key.at))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Complaint> {
        let value =
            self.value.take().ok_or_else(|| <Complaint as de::Error>::custom("a value was read before its key"))?;
        seed.deserialize(value).map_err(|complaint| complaint.at(value.at))
    }
}

impl<'de> Deserializer<'de> for &'de Key {
    type Error = Complaint;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Complaint> {
        visitor.visit_borrowed_str(&self.name)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Reads an enum from a text, which is the name of one of its variants.
impl<'de> EnumAccess<'de> for &'de Node {
    type Error = Complaint;
    type Variant = UnitOnly;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, UnitOnly), Complaint> {
        Ok((seed.deserialize(self)?, UnitOnly))
    }
}

pub(crate) struct UnitOnly;

impl<'de> de::VariantAccess<'de> for UnitOnly {
    type Error = Complaint;

    fn unit_variant(self) -> Result<(), Complaint> {
        Ok(())
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, Complaint> {
        Err(de::Error::custom("expected a text"))
    }
    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, _visitor: V) -> Result<V::Value, Complaint> {
        Err(de::Error::custom("expected a text"))
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Complaint> {
        Err(de::Error::custom("expected a text"))
    }
}

/// A sequence of the line, the column and the node itself.
struct Positioned<'de> {
    node: &'de Node,
    step: u8,
}

impl<'de> SeqAccess<'de> for Positioned<'de> {
    type Error = Complaint;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Complaint> {
        self.step += 1;
        match self.step {
            1 => seed.deserialize(self.node.at.line.into_deserializer()).map(Some),
            2 => seed.deserialize(self.node.at.column.into_deserializer()).map(Some),
            3 => seed.deserialize(self.node).map(Some),
            _ => Ok(None),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<At<T>, D::Error> {
        struct AtVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for AtVisitor<T> {
            type Value = At<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its position")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<At<T>, A::Error> {
                let missing = || de::Error::custom("a position is missing");
                let line = parts.next_element()?.ok_or_else(missing)?;
                let column = parts.next_element()?.ok_or_else(missing)?;
                let value = parts.next_element()?.ok_or_else(missing)?;
                Ok(At { at: Position { line, column }, value })
            }
        }
        deserializer.deserialize_struct(AT, &[], AtVisitor(PhantomData))
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }
    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

/// The names of the fields of a struct.
pub fn keys_of<T: de::DeserializeOwned>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = Complaint;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Complaint> {
            Err(de::Error::custom("only the names of the fields are read"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Complaint> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut names: &'static [&'static str] = &[];
    // The deserializer always returns an error, after it has stored the names of the fields.
    drop(T::deserialize(Names(&mut names)));
    names
}
