//! Generates encoded values that fit a schema.

use super::shape::{Content, Schema, Shape, Type};
use rmp::encode as mp;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum depth. Deeper lists, maps and options are empty.
const DEEPEST: usize = 12;

/// Generates values that differ from each other: enums cycle through their variants, and options are sometimes empty.
pub struct Sampler<'a> {
    schema: &'a Schema,
    next: BTreeMap<&'a str, usize>,
    turn: usize,
    seen: BTreeSet<(&'a str, usize)>,
}

impl<'a> Sampler<'a> {
    pub fn new(schema: &'a Schema) -> Sampler<'a> {
        Sampler { schema, next: BTreeMap::new(), turn: 0, seen: BTreeSet::new() }
    }

    pub fn sample(&mut self, root: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.shape(&self.schema.roots[root], 0, &mut bytes);
        self.turn += 1;
        bytes
    }

    /// A variant of an enum in the samples so far that none of them contains.
    pub fn missing(&self) -> Option<String> {
        self.next.keys().find_map(|name| {
            let Type::Enum(variants) = &self.schema.types[*name] else { return None };
            let missing = (0..variants.len()).find(|index| !self.seen.contains(&(*name, *index)))?;
            Some(format!("{name}::{}", variants[missing].0))
        })
    }

    fn shape(&mut self, shape: &'a Shape, depth: usize, out: &mut Vec<u8>) {
        match shape {
            Shape::Unknown => panic!("the schema contains an unknown shape"),
            Shape::Plain(name) => plain(name, out),
            Shape::Option(inner) => {
                self.turn += 1;
                match self.turn.is_multiple_of(4) || depth > DEEPEST {
                    true => mp::write_nil(out).unwrap(),
                    false => self.shape(inner, depth, out),
                }
            }
            Shape::List(inner) => {
                let elements = if depth > DEEPEST { 0 } else { 2 };
                mp::write_array_len(out, elements).unwrap();
                (0..elements).for_each(|_| self.shape(inner, depth + 1, out));
            }
            Shape::Map(inner) => {
                let entries = u32::from(depth <= DEEPEST);
                mp::write_map_len(out, entries).unwrap();
                for _ in 0..entries {
                    self.shape(&inner.0, depth + 1, out);
                    self.shape(&inner.1, depth + 1, out);
                }
            }
            Shape::Tuple(shapes) => {
                mp::write_array_len(out, shapes.len() as u32).unwrap();
                shapes.iter().for_each(|shape| self.shape(shape, depth + 1, out));
            }
            Shape::Array(elements, shape) => {
                mp::write_array_len(out, *elements as u32).unwrap();
                (0..*elements).for_each(|_| self.shape(shape, depth + 1, out));
            }
            Shape::Named(name) => self.named(name, depth + 1, out),
        }
    }

    fn named(&mut self, name: &'a str, depth: usize, out: &mut Vec<u8>) {
        let variants = match &self.schema.types[name] {
            Type::Struct(fields) => return self.fields(fields, depth, out),
            Type::Enum(variants) => variants,
        };
        let next = self.next.entry(name).or_default();
        let index = *next % variants.len();
        *next += 1;
        self.seen.insert((name, index));
        let content = &variants[index].1;
        if *content != Content::Unit {
            mp::write_map_len(out, 1).unwrap();
        }
        mp::write_uint(out, index as u64).unwrap();
        match content {
            Content::Unit => {}
            Content::Value(shape) => self.shape(shape, depth, out),
            Content::Tuple(shapes) => {
                mp::write_array_len(out, shapes.len() as u32).unwrap();
                shapes.iter().for_each(|shape| self.shape(shape, depth, out));
            }
            Content::Fields(fields) => self.fields(fields, depth, out),
        }
    }

    fn fields(&mut self, fields: &'a [(String, Shape)], depth: usize, out: &mut Vec<u8>) {
        mp::write_map_len(out, fields.len() as u32).unwrap();
        for (number, (_, shape)) in fields.iter().enumerate() {
            mp::write_uint(out, number as u64).unwrap();
            self.shape(shape, depth, out);
        }
    }
}

fn plain(name: &str, out: &mut Vec<u8>) {
    match name {
        "bool" => mp::write_bool(out, true).unwrap(),
        "i128" | "u128" => mp::write_bin(out, &1_u128.to_be_bytes()).unwrap(),
        "f32" => mp::write_f32(out, 1.0).unwrap(),
        "f64" => mp::write_f64(out, 1.0).unwrap(),
        "str" => mp::write_str(out, "drf").unwrap(),
        "char" => mp::write_str(out, "x").unwrap(),
        "bytes" => mp::write_bin(out, b"drf").unwrap(),
        "unit" => mp::write_nil(out).unwrap(),
        integer if integer.starts_with(['i', 'u']) => drop(mp::write_uint(out, 1).unwrap()),
        other => panic!("unknown plain type {other}"),
    }
}
