//! A tree of nodes with positions, the same for every format of job files.

mod deserialize;
mod json;
mod toml;
mod yaml;

pub use deserialize::{At, keys_of};

use crate::error::{Complaint, Position};
use crate::text::BYTE_ORDER_MARK;
use std::borrow::Cow;
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Toml,
    Yaml,
    Json,
}

impl Format {
    /// Detects the format by the extension of the file's name.
    ///
    /// # Errors
    /// The message lists the known extensions.
    pub fn of(path: &Path) -> Result<Format, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Ok(Format::Toml),
            Some("yaml" | "yml") => Ok(Format::Yaml),
            Some("json") => Ok(Format::Json),
            _ => Err(format!("`{}` is not a job file: its name does not end in .toml, .yaml or .json", path.display())),
        }
    }
}

/// A value and the position of its start.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    pub at: Position,
    pub value: Value,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Null,
    /// A value without quotes. It is read as a text, exactly as written, if a text is required.
    Bare {
        value: Bare,
        written: String,
    },
    Text(String),
    List(Vec<Node>),
    Table(Vec<(Key, Node)>),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Bare {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    /// A number that does not fit in 64 bits.
    TooLarge,
    Date,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Key {
    pub at: Position,
    pub name: String,
}

/// Deeper nesting than this is an attack or a mistake: a job file needs five levels.
const MAX_DEPTH: usize = 32;

pub(crate) fn parse(text: &str, format: Format) -> Result<Node, Complaint> {
    // Byte order marks and CR LF line ends are added by editors and are not part of the content.
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let unix: Cow<'_, str> = if text.contains("\r\n") { text.replace("\r\n", "\n").into() } else { text.into() };
    match format {
        Format::Toml => toml::parse(&unix),
        Format::Yaml => yaml::parse(&unix),
        Format::Json => json::parse(&unix),
    }
}

fn too_deep(at: Position) -> Complaint {
    Complaint::new(format!("values are nested more than {MAX_DEPTH} deep"), "a job file needs five levels").at(at)
}

fn number_out_of_range(text: &str) -> Complaint {
    Complaint::new(format!("`{text}` is too large a number"), "write a number that fits in 64 bits")
}

/// Converts byte offsets to positions.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Lines<'a> {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Lines { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts[line - 1];
        let column = self.text.get(start..offset).map_or(offset.saturating_sub(start), |before| before.chars().count());
        Position { line: line as u32, column: column as u32 + 1 }
    }
}
