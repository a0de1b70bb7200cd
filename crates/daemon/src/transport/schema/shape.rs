//! The shapes of types. They are found by deserializing each type from generated values.

use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Shape {
    /// Not found yet.
    #[default]
    Unknown,
    Plain(String),
    Option(Box<Shape>),
    List(Box<Shape>),
    Map(Box<(Shape, Shape)>),
    Tuple(Vec<Shape>),
    /// A tuple of N elements with the same shape.
    Array(usize, Box<Shape>),
    /// A type in `Schema::types`.
    Named(String),
}

pub type Fields = Vec<(String, Shape)>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Content {
    Unit,
    Value(Shape),
    Tuple(Vec<Shape>),
    Fields(Fields),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Type {
    Struct(Fields),
    Enum(Vec<(String, Content)>),
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Schema {
    pub roots: BTreeMap<String, Shape>,
    /// Structs and enums by their paths. Only shapes are compared, so a type may be renamed or moved.
    pub types: BTreeMap<String, Type>,
}

impl Schema {
    pub fn trace<T: DeserializeOwned>(&mut self, root: &str) {
        let mut tracer =
            Tracer { types: &mut self.types, next: BTreeMap::new(), within: Vec::new(), is_repeated: false };
        let mut shape = Shape::Unknown;
        loop {
            T::deserialize(Slot { tracer: &mut tracer, shape: &mut shape })
                .unwrap_or_else(|error| panic!("{root}: {error}"));
            // Each pass reads the next variant of each enum.
            let is_finished = |(name, next): (&String, &usize)| match &tracer.types[name] {
                Type::Enum(variants) => *next >= variants.len(),
                Type::Struct(_) => true,
            };
            if tracer.next.iter().all(is_finished) {
                break;
            }
        }
        self.roots.insert(root.to_owned(), shape);
    }

    /// Checks that `newer` contains all fields and variants of this schema, at the same positions.
    ///
    /// # Errors
    /// The first difference and its place.
    pub fn grows_into(&self, newer: &Schema) -> Result<(), String> {
        let mut comparison = Comparison { older: self, newer, compared: BTreeSet::new() };
        for (root, shape) in &self.roots {
            let new = newer.roots.get(root).ok_or_else(|| format!("{root} was removed"))?;
            comparison.shapes(shape, new, root)?;
        }
        Ok(())
    }
}

struct Comparison<'a> {
    older: &'a Schema,
    newer: &'a Schema,
    compared: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Comparison<'a> {
    fn shapes(&mut self, older: &'a Shape, newer: &'a Shape, at: &str) -> Result<(), String> {
        match (older, newer) {
            (Shape::Option(older), Shape::Option(newer)) | (Shape::List(older), Shape::List(newer)) => {
                self.shapes(older, newer, at)
            }
            (Shape::Map(older), Shape::Map(newer)) => {
                self.shapes(&older.0, &newer.0, at)?;
                self.shapes(&older.1, &newer.1, at)
            }
            (Shape::Array(old, older), Shape::Array(new, newer)) if old == new => self.shapes(older, newer, at),
            (Shape::Tuple(older), Shape::Tuple(newer)) => self.tuples(older, newer, at),
            (Shape::Named(older), Shape::Named(newer)) => match self.compared.insert((older, newer)) {
                true => self.types(older, newer, at),
                false => Ok(()),
            },
            (older, newer) if older == newer => Ok(()),
            (older, newer) => Err(format!("{at} was {older:?} and is {newer:?}")),
        }
    }

    fn tuples(&mut self, older: &'a [Shape], newer: &'a [Shape], at: &str) -> Result<(), String> {
        if older.len() != newer.len() {
            return Err(format!("{at} had {} elements and has {}", older.len(), newer.len()));
        }
        older
            .iter()
            .zip(newer)
            .enumerate()
            .try_for_each(|(place, (older, newer))| self.shapes(older, newer, &format!("{at}.{place}")))
    }

    fn fields(&mut self, older: &'a Fields, newer: &'a Fields, at: &str) -> Result<(), String> {
        for (place, (name, shape)) in older.iter().enumerate() {
            let (_, new) = newer.get(place).ok_or_else(|| format!("{at}.{name} was removed"))?;
            self.shapes(shape, new, &format!("{at}.{name}"))?;
        }
        Ok(())
    }

    fn types(&mut self, old: &'a str, new: &'a str, at: &str) -> Result<(), String> {
        let at = format!("{at} ({})", old.rsplit("::").next().unwrap_or(old));
        match (&self.older.types[old], &self.newer.types[new]) {
            (Type::Struct(older), Type::Struct(newer)) => self.fields(older, newer, &at),
            (Type::Enum(older), Type::Enum(newer)) => {
                for (place, (name, content)) in older.iter().enumerate() {
                    let at = format!("{at}::{name}");
                    let (_, new) = newer.get(place).ok_or_else(|| format!("{at} was removed"))?;
                    match (content, new) {
                        (Content::Unit, Content::Unit) => Ok(()),
                        (Content::Value(older), Content::Value(newer)) => self.shapes(older, newer, &at),
                        (Content::Tuple(older), Content::Tuple(newer)) => self.tuples(older, newer, &at),
                        (Content::Fields(older), Content::Fields(newer)) => self.fields(older, newer, &at),
                        (older, newer) => Err(format!("{at} was {older:?} and is {newer:?}")),
                    }?;
                }
                Ok(())
            }
            _ => Err(format!("{at} was a struct or an enum, and is the other")),
        }
    }
}

// ---- tracing ---------------------------------------------------------------------------------------------------------

#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Wrong {
        Wrong(message.to_string())
    }
}

struct Tracer<'t> {
    types: &'t mut BTreeMap<String, Type>,
    /// For each enum, the variant that is read next.
    next: BTreeMap<String, usize>,
    /// The types whose values are being read.
    within: Vec<&'static str>,
    /// Whether one of them contains itself. Its inner lists, maps and options are left empty, so that the recursion
    /// ends.
    is_repeated: bool,
}

impl Tracer<'_> {
    fn within<T>(&mut self, name: &'static str, read: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.is_repeated;
        self.is_repeated |= self.within.contains(&name);
        self.within.push(name);
        let value = read(self);
        self.within.pop();
        self.is_repeated = before;
        value
    }
}

/// Deserializes one value and notes its shape.
struct Slot<'a, 't> {
    tracer: &'a mut Tracer<'t>,
    shape: &'a mut Shape,
}

impl Slot<'_, '_> {
    fn note(&mut self, shape: Shape) {
        if *self.shape == Shape::Unknown {
            *self.shape = shape;
        }
    }
}

macro_rules! plain {
    ($($method:ident => $visit:ident($value:expr), $name:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Wrong> {
            self.note(Shape::Plain($name.to_owned()));
            visitor.$visit($value)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Slot<'_, '_> {
    type Error = Wrong;

    // Numbers are not zero and strings name a preset, because some types check this when they are read.
    plain! {
        deserialize_bool => visit_bool(true), "bool";
        deserialize_i8 => visit_i8(1), "i8";
        deserialize_i16 => visit_i16(1), "i16";
        deserialize_i32 => visit_i32(1), "i32";
        deserialize_i64 => visit_i64(1), "i64";
        deserialize_i128 => visit_i128(1), "i128";
        deserialize_u8 => visit_u8(1), "u8";
        deserialize_u16 => visit_u16(1), "u16";
        deserialize_u32 => visit_u32(1), "u32";
        deserialize_u64 => visit_u64(1), "u64";
        deserialize_u128 => visit_u128(1), "u128";
        deserialize_f32 => visit_f32(1.0), "f32";
        deserialize_f64 => visit_f64(1.0), "f64";
        deserialize_char => visit_char('x'), "char";
        deserialize_str => visit_str("drf"), "str";
        deserialize_string => visit_str("drf"), "str";
        deserialize_bytes => visit_bytes(b"drf"), "bytes";
        deserialize_byte_buf => visit_bytes(b"drf"), "bytes";
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Wrong> {
        Err(de::Error::custom(format!("{} has no fixed shape", std::any::type_name::<V::Value>())))
    }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Wrong> {
        self.note(Shape::Option(Box::default()));
        let Shape::Option(inner) = self.shape else { unreachable!("its shape was noted") };
        if self.tracer.is_repeated {
            return visitor.visit_none();
        }
        visitor.visit_some(Slot { tracer: self.tracer, shape: inner })
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Wrong> {
        self.note(Shape::Plain("unit".to_owned()));
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_tuple(0, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Wrong> {
        self.note(Shape::List(Box::default()));
        let Shape::List(inner) = self.shape else { unreachable!("its shape was noted") };
        let shapes = if self.tracer.is_repeated { Vec::new() } else { vec![&mut **inner] };
        visitor.visit_seq(Values { tracer: self.tracer, shapes: shapes.into_iter() })
    }

    fn deserialize_tuple<V: Visitor<'de>>(mut self, elements: usize, visitor: V) -> Result<V::Value, Wrong> {
        let mut shapes = match &*self.shape {
            Shape::Tuple(shapes) => shapes.clone(),
            Shape::Array(elements, shape) => vec![(**shape).clone(); *elements],
            _ => vec![Shape::Unknown; elements],
        };
        let value = visitor
            .visit_seq(Values { tracer: self.tracer, shapes: shapes.iter_mut().collect::<Vec<_>>().into_iter() })?;
        *self.shape = match shapes.first() {
            Some(first) if elements > 2 && shapes.iter().all(|shape| shape == first) => {
                Shape::Array(elements, Box::new(first.clone()))
            }
            _ => Shape::Tuple(shapes),
        };
        self.note(Shape::Unknown);
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        elements: usize,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.deserialize_tuple(elements, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Wrong> {
        self.note(Shape::Map(Box::default()));
        let Shape::Map(inner) = self.shape else { unreachable!("its shape was noted") };
        let (key, value) = &mut **inner;
        let shapes = if self.tracer.is_repeated { Vec::new() } else { vec![key, value] };
        visitor.visit_map(Values { tracer: self.tracer, shapes: shapes.into_iter() })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let name = std::any::type_name::<V::Value>();
        self.note(Shape::Named(name.to_owned()));
        let tracer = self.tracer;
        let mut known = match tracer.types.get(name) {
            Some(Type::Struct(known)) => known.clone(),
            _ => unknown(fields),
        };
        let value = tracer.within(name, |tracer| visitor.visit_seq(Values { tracer, shapes: shapes(&mut known) }));
        merge_struct(tracer.types, name, known);
        value
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let name = std::any::type_name::<V::Value>();
        self.note(Shape::Named(name.to_owned()));
        let tracer = self.tracer;
        let unit = |variant: &&str| ((*variant).to_owned(), Content::Unit);
        tracer.types.entry(name.to_owned()).or_insert_with(|| Type::Enum(variants.iter().map(unit).collect()));
        let is_repeated = tracer.is_repeated;
        let next = tracer.next.entry(name.to_owned()).or_insert(0);
        let index = if is_repeated { 0 } else { *next % variants.len() };
        *next += usize::from(!is_repeated);
        tracer.within(name, |tracer| visitor.visit_enum(Variant { tracer, name, index }))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

fn unknown(fields: &[&str]) -> Fields {
    fields.iter().map(|field| ((*field).to_owned(), Shape::Unknown)).collect()
}

fn shapes(fields: &mut Fields) -> std::vec::IntoIter<&mut Shape> {
    fields.iter_mut().map(|(_, shape)| shape).collect::<Vec<_>>().into_iter()
}

/// Adds the shapes of a struct's fields. A type that contains itself is read again during its own pass; the shapes that
/// either pass found are kept.
fn merge_struct(types: &mut BTreeMap<String, Type>, name: &str, found: Fields) {
    match types.get_mut(name) {
        Some(Type::Struct(known)) => {
            for ((_, known), (_, found)) in known.iter_mut().zip(found) {
                if has_unknown(known) {
                    *known = found;
                }
            }
        }
        _ => drop(types.insert(name.to_owned(), Type::Struct(found))),
    }
}

fn has_unknown(shape: &Shape) -> bool {
    match shape {
        Shape::Unknown => true,
        Shape::Plain(_) | Shape::Named(_) => false,
        Shape::Option(inner) | Shape::List(inner) | Shape::Array(_, inner) => has_unknown(inner),
        Shape::Map(inner) => has_unknown(&inner.0) || has_unknown(&inner.1),
        Shape::Tuple(shapes) => shapes.iter().any(has_unknown),
    }
}

/// One value for each shape.
struct Values<'a, 't> {
    tracer: &'a mut Tracer<'t>,
    shapes: std::vec::IntoIter<&'a mut Shape>,
}

impl<'de> de::SeqAccess<'de> for Values<'_, '_> {
    type Error = Wrong;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Wrong> {
        let Some(shape) = self.shapes.next() else { return Ok(None) };
        seed.deserialize(Slot { tracer: self.tracer, shape }).map(Some)
    }
}

impl<'de> de::MapAccess<'de> for Values<'_, '_> {
    type Error = Wrong;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Wrong> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Wrong> {
        let shape = self.shapes.next().expect("a key has a value");
        seed.deserialize(Slot { tracer: self.tracer, shape })
    }
}

struct Variant<'a, 't> {
    tracer: &'a mut Tracer<'t>,
    name: &'static str,
    index: usize,
}

impl Variant<'_, '_> {
    fn known(&self) -> Content {
        match &self.tracer.types[self.name] {
            Type::Enum(variants) => variants[self.index].1.clone(),
            Type::Struct(_) => unreachable!("`deserialize_enum` inserts an enum"),
        }
    }

    fn note(self, content: Content) {
        if let Some(Type::Enum(variants)) = self.tracer.types.get_mut(self.name) {
            variants[self.index].1 = content;
        }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, '_> {
    type Error = Wrong;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Wrong> {
        let index = IntoDeserializer::<Wrong>::into_deserializer(self.index as u32);
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, '_> {
    type Error = Wrong;

    fn unit_variant(self) -> Result<(), Wrong> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Wrong> {
        let mut shape = match self.known() {
            Content::Value(shape) => shape,
            _ => Shape::Unknown,
        };
        let value = seed.deserialize(Slot { tracer: self.tracer, shape: &mut shape })?;
        self.note(Content::Value(shape));
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, elements: usize, visitor: V) -> Result<V::Value, Wrong> {
        let mut shapes = match self.known() {
            Content::Tuple(shapes) => shapes,
            _ => vec![Shape::Unknown; elements],
        };
        let value = visitor
            .visit_seq(Values { tracer: self.tracer, shapes: shapes.iter_mut().collect::<Vec<_>>().into_iter() })?;
        self.note(Content::Tuple(shapes));
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Wrong> {
        let mut known = match self.known() {
            Content::Fields(known) => known,
            _ => unknown(fields),
        };
        let value = visitor.visit_seq(Values { tracer: self.tracer, shapes: shapes(&mut known) })?;
        self.note(Content::Fields(known));
        Ok(value)
    }
}
