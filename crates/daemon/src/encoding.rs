//! The encoding of messages and records: MessagePack in which fields and variants are numbers.
//!
//! A struct is a map from the number of each field, in the order of its declaration, to its value. An enum is the number of
//! its variant, or a map from this number to its content. Readers skip fields that they do not know, and take the default of
//! fields that are missing, so that a type may grow at its end (ADR 63). `rmp-serde` reads what this module writes.
//!
//! 128-bit integers are 16 bytes, most significant first, as `rmp-serde` reads them. `std::time::Duration` cannot be
//! read, because the standard library knows its fields by name only; messages use core's type.

use rmp::encode as mp;
use serde::de::DeserializeOwned;
use serde::ser::{self, Serialize, SerializeMap};
use std::fmt::{self, Display};

/// A value that cannot be encoded, or bytes that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EncodingError(String);

impl ser::Error for EncodingError {
    fn custom<T: Display>(message: T) -> EncodingError {
        EncodingError(message.to_string())
    }
}

/// Appends the encoding of a value to `out`.
///
/// # Errors
/// If the value has a map, a sequence or a text of more than 2^32 - 1 elements, or its own serialization fails. Then `out`
/// ends with a part of the value.
pub fn append<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), EncodingError> {
    value.serialize(Encoder { out })
}

/// The encoding of a value.
///
/// # Errors
/// As for [`append`].
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodingError> {
    let mut bytes = Vec::new();
    append(value, &mut bytes)?;
    Ok(bytes)
}

/// Decodes one value from all of `bytes`.
///
/// # Errors
/// If the bytes are not such a value, or more bytes follow it.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, EncodingError> {
    match take_from_slice(bytes)? {
        (value, 0) => Ok(value),
        (_, rest) => Err(EncodingError(format!("{rest} bytes follow the value"))),
    }
}

/// Decodes one value, and returns it with the number of bytes after it.
///
/// # Errors
/// If the bytes do not start with such a value.
pub fn take_from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), EncodingError> {
    let mut rest = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut rest);
    let value = T::deserialize(&mut decoder).map_err(|error| EncodingError(error.to_string()))?;
    Ok((value, rest.len()))
}

struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

/// Writing to a vector cannot fail, so only lengths can be invalid.
fn length(length: usize) -> Result<u32, EncodingError> {
    u32::try_from(length).map_err(|_| EncodingError(format!("{length} elements are too many for one value")))
}

fn written<T, E: fmt::Debug>(result: Result<T, E>) {
    result.expect("writing to a vector cannot fail");
}

impl<'a> Encoder<'a> {
    fn number(self, number: u32) {
        written(mp::write_uint(self.out, number.into()));
    }

    /// Writes the start of a variant with content.
    fn variant(&mut self, index: u32) {
        written(mp::write_map_len(self.out, 1));
        written(mp::write_uint(self.out, index.into()));
    }

    fn array(self, elements: usize) -> Result<Elements<'a>, EncodingError> {
        written(mp::write_array_len(self.out, length(elements)?));
        Ok(Elements { out: self.out, unknown: None })
    }

    fn fields(self, fields: usize) -> Result<Fields<'a>, EncodingError> {
        written(mp::write_map_len(self.out, length(fields)?));
        Ok(Fields { out: self.out, next: 0 })
    }
}

macro_rules! integers {
    ($($method:ident($integer:ty) => $write:ident as $wide:ty;)*) => {$(
        fn $method(self, value: $integer) -> Result<(), EncodingError> {
            written(mp::$write(self.out, <$wide>::from(value)));
            Ok(())
        }
    )*};
}

impl<'a> ser::Serializer for Encoder<'a> {
    type Ok = ();
    type Error = EncodingError;
    type SerializeSeq = Elements<'a>;
    type SerializeTuple = Elements<'a>;
    type SerializeTupleStruct = Elements<'a>;
    type SerializeTupleVariant = Elements<'a>;
    type SerializeMap = Elements<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    integers! {
        serialize_i8(i8) => write_sint as i64;
        serialize_i16(i16) => write_sint as i64;
        serialize_i32(i32) => write_sint as i64;
        serialize_i64(i64) => write_sint as i64;
        serialize_u8(u8) => write_uint as u64;
        serialize_u16(u16) => write_uint as u64;
        serialize_u32(u32) => write_uint as u64;
        serialize_u64(u64) => write_uint as u64;
    }

    fn serialize_bool(self, value: bool) -> Result<(), EncodingError> {
        written(mp::write_bool(self.out, value));
        Ok(())
    }

    fn serialize_i128(self, value: i128) -> Result<(), EncodingError> {
        self.serialize_bytes(&value.to_be_bytes())
    }

    fn serialize_u128(self, value: u128) -> Result<(), EncodingError> {
        self.serialize_bytes(&value.to_be_bytes())
    }

    fn serialize_f32(self, value: f32) -> Result<(), EncodingError> {
        written(mp::write_f32(self.out, value));
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), EncodingError> {
        written(mp::write_f64(self.out, value));
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), EncodingError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), EncodingError> {
        length(value.len())?;
        written(mp::write_str(self.out, value));
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), EncodingError> {
        length(value.len())?;
        written(mp::write_bin(self.out, value));
        Ok(())
    }

    fn serialize_none(self) -> Result<(), EncodingError> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodingError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), EncodingError> {
        written(mp::write_nil(self.out));
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), EncodingError> {
        self.array(0).map(drop)
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), EncodingError> {
        self.number(index);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), EncodingError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), EncodingError> {
        self.variant(index);
        value.serialize(self)
    }

    fn serialize_seq(self, elements: Option<usize>) -> Result<Elements<'a>, EncodingError> {
        match elements {
            Some(elements) => self.array(elements),
            None => Ok(Elements::counted(self.out, 0xdd)),
        }
    }

    fn serialize_tuple(self, elements: usize) -> Result<Elements<'a>, EncodingError> {
        self.array(elements)
    }

    fn serialize_tuple_struct(self, _: &'static str, elements: usize) -> Result<Elements<'a>, EncodingError> {
        self.array(elements)
    }

    fn serialize_tuple_variant(
        mut self,
        _: &'static str,
        index: u32,
        _: &'static str,
        elements: usize,
    ) -> Result<Elements<'a>, EncodingError> {
        self.variant(index);
        self.array(elements)
    }

    fn serialize_map(self, entries: Option<usize>) -> Result<Elements<'a>, EncodingError> {
        let Some(entries) = entries else { return Ok(Elements::counted(self.out, 0xdf)) };
        written(mp::write_map_len(self.out, length(entries)?));
        Ok(Elements { out: self.out, unknown: None })
    }

    fn serialize_struct(self, _: &'static str, fields: usize) -> Result<Fields<'a>, EncodingError> {
        self.fields(fields)
    }

    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        index: u32,
        _: &'static str,
        fields: usize,
    ) -> Result<Fields<'a>, EncodingError> {
        self.variant(index);
        self.fields(fields)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements of an array, or keys and values of a map.
struct Elements<'a> {
    out: &'a mut Vec<u8>,
    /// The position of the length, which is not known yet, and the number of elements so far.
    unknown: Option<(usize, u32)>,
}

impl<'a> Elements<'a> {
    /// Starts elements with a 32-bit length that is written at the end.
    fn counted(out: &'a mut Vec<u8>, marker: u8) -> Elements<'a> {
        out.push(marker);
        let at = out.len();
        out.extend([0; 4]);
        Elements { out, unknown: Some((at, 0)) }
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodingError> {
        if let Some((_, count)) = &mut self.unknown {
            *count = count.checked_add(1).ok_or_else(|| EncodingError("too many elements".to_owned()))?;
        }
        self.value(value)
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodingError> {
        value.serialize(Encoder { out: self.out })
    }

    fn finish(self) {
        if let Some((at, count)) = self.unknown {
            self.out[at..at + 4].copy_from_slice(&count.to_be_bytes());
        }
    }
}

macro_rules! sequences {
    ($($trait:ident::$method:ident),*) => {$(
        impl ser::$trait for Elements<'_> {
            type Ok = ();
            type Error = EncodingError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodingError> {
                self.element(value)
            }

            fn end(self) -> Result<(), EncodingError> {
                self.finish();
                Ok(())
            }
        }
    )*};
}

sequences!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

impl SerializeMap for Elements<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodingError> {
        self.element(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodingError> {
        self.value(value)
    }

    fn end(self) -> Result<(), EncodingError> {
        self.finish();
        Ok(())
    }
}

/// The fields of a struct or of a variant.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    next: u32,
}

macro_rules! structs {
    ($($trait:ident),*) => {$(
        impl ser::$trait for Fields<'_> {
            type Ok = ();
            type Error = EncodingError;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), EncodingError> {
                written(mp::write_uint(self.out, self.next.into()));
                self.next += 1;
                value.serialize(Encoder { out: self.out })
            }

            fn skip_field(&mut self, _: &'static str) -> Result<(), EncodingError> {
                self.next += 1;
                Ok(())
            }

            fn end(self) -> Result<(), EncodingError> {
                Ok(())
            }
        }
    )*};
}

structs!(SerializeStruct, SerializeStructVariant);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum Shape {
        Point,
        Circle(u64),
        Pair(i64, String),
        Named { width: Option<u32>, deep: Box<Everything> },
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Everything {
        flag: bool,
        small: i8,
        number: u64,
        negative: i64,
        huge: u128,
        real: f64,
        envelope: char,
        text: String,
        nothing: (),
        unit: Unit,
        pair: (u8, Option<i32>),
        shapes: Vec<Shape>,
        map: BTreeMap<u16, Option<String>>,
        fixed: [u8; 32],
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Unit;

    fn everything(numbers: (i8, u64, i64, u128), text: String, shapes: Vec<Shape>) -> Everything {
        let (small, number, negative, huge) = numbers;
        Everything {
            flag: small > 0,
            small,
            number,
            negative,
            huge,
            real: number as f64 / 3.0,
            envelope: text.chars().next().unwrap_or('x'),
            text: text.clone(),
            nothing: (),
            unit: Unit,
            pair: (number as u8, Some(-1).filter(|_| small > 3)),
            shapes,
            map: BTreeMap::from([(number as u16, Some(text)), (7, None)]),
            fixed: [number as u8; 32],
        }
    }

    proptest! {
        #[test]
        fn every_value_is_decoded_as_it_was_encoded(numbers: (i8, u64, i64, u128), text: String, circle: u64, width: Option<u32>) {
            let deep = Box::new(everything(numbers, text.clone(), Vec::new()));
            let shapes = vec![Shape::Point, Shape::Circle(circle), Shape::Pair(-1, text.clone()), Shape::Named { width, deep }];
            let value = everything(numbers, text, shapes);
            let bytes = to_vec(&value).unwrap();
            prop_assert_eq!(&from_slice::<Everything>(&bytes).unwrap(), &value);
            for cut in 0..bytes.len().min(64) {
                prop_assert!(from_slice::<Everything>(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn random_bytes_cause_errors_but_no_panics(bytes: Vec<u8>) {
            let _ = from_slice::<Everything>(&bytes);
            let _ = from_slice::<Vec<Shape>>(&bytes);
        }
    }

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Old {
        first: u32,
        second: String,
    }

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct New {
        first: u32,
        second: String,
        #[serde(default)]
        third: Vec<u64>,
        fourth: Option<String>,
    }

    #[test]
    fn older_readers_skip_new_fields_and_newer_readers_use_defaults() {
        let old = Old { first: 5, second: "x".to_owned() };
        let read: New = from_slice(&to_vec(&old).unwrap()).unwrap();
        assert_eq!(read, New { first: 5, second: "x".to_owned(), third: Vec::new(), fourth: None });
        let new = New { third: vec![1, 2], fourth: Some("y".to_owned()), ..read };
        assert_eq!(from_slice::<Old>(&to_vec(&new).unwrap()).unwrap(), old);
    }

    #[test]
    fn fields_and_variants_are_numbers() {
        let bytes = to_vec(&Old { first: 5, second: "x".to_owned() }).unwrap();
        assert_eq!(bytes, [0x82, 0, 5, 1, 0xa1, b'x']);
        assert_eq!(to_vec(&Shape::Point).unwrap(), [0]);
        assert_eq!(to_vec(&Shape::Circle(3)).unwrap(), [0x81, 1, 3]);
        assert_eq!(to_vec(&Shape::Pair(-1, String::new())).unwrap(), [0x81, 2, 0x92, 0xff, 0xa0]);
        assert!(from_slice::<Shape>(&[9]).unwrap_err().to_string().contains("variant index"));
    }

    #[test]
    fn sequences_of_unknown_length_are_counted() {
        struct Odd;
        impl Serialize for Odd {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq((0_u8..5).filter(|number| number % 2 == 1))
            }
        }
        assert_eq!(from_slice::<Vec<u8>>(&to_vec(&Odd).unwrap()).unwrap(), [1, 3]);
    }
}
