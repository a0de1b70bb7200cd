//! Parses YAML 1.2 (core schema) into nodes.

use super::{Bare, Complaint, Key, MAX_DEPTH, Node, Position, Value, too_deep};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::BTreeMap;

/// The maximum number of nodes that aliases repeat. A file with more is an attack ("billion laughs").
const MAX_ALIASED_NODES: usize = 100_000;

pub(super) fn parse(text: &str) -> Result<Node, Complaint> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), aliased: 0 };
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(_) => {}
            Event::StreamEnd => return Ok(Node { at: position(span), value: Value::Null }),
            event => {
                let document = reader.node(event, span, 0)?;
                reader.expect_end()?;
                return Ok(document);
            }
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    aliased: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Complaint> {
        match self.parser.next_event() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => Err(syntax(&error)),
            None => Err(Complaint::new("the file ends too early", "correct the syntax")),
        }
    }

    fn expect_end(&mut self) -> Result<(), Complaint> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd, _) => {}
                (_, span) => {
                    let remedy = "move it into another file: one file describes one job";
                    return Err(Complaint::new("a second YAML document starts here", remedy).at(position(span)));
                }
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Complaint> {
        let at = position(span);
        if depth > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (anchor, if plain { resolve(&text) } else { Value::Text(text.into()) })
            }
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.table(depth)?),
            Event::Alias(anchor) => return self.alias(anchor, at),
            _ => return Err(Complaint::new("expected a value", "correct the syntax").at(at)),
        };
        let node = Node { at, value };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Value, Complaint> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Value, Complaint> {
        let mut entries = Vec::new();
        loop {
            let name = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Table(entries)),
                (Event::Scalar(name, ..), span) => Key { at: position(span), name: name.into() },
                (_, span) => {
                    return Err(Complaint::new("a key must be a text", "correct the syntax").at(position(span)));
                }
            };
            let (event, span) = self.next()?;
            entries.push((name, self.node(event, span, depth + 1)?));
        }
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<Node, Complaint> {
        let unknown = || Complaint::new("unknown anchor of an alias", "define the anchor with `&` before it").at(at);
        let node = self.anchors.get(&anchor).ok_or_else(unknown)?;
        self.aliased += count(node);
        if self.aliased > MAX_ALIASED_NODES {
            let problem = format!("the aliases in this file repeat more than {MAX_ALIASED_NODES} values");
            return Err(Complaint::new(problem, "write the values without aliases").at(at));
        }
        Ok(Node { at, value: node.value.clone() })
    }
}

fn count(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Table(entries) => 1 + entries.iter().map(|(_, value)| count(value)).sum::<usize>(),
        _ => 1,
    }
}

fn position(span: Span) -> Position {
    Position { line: span.start.line() as u32, column: span.start.col() as u32 + 1 }
}

fn syntax(error: &ScanError) -> Complaint {
    let at = Position { line: error.marker().line() as u32, column: error.marker().col() as u32 + 1 };
    Complaint::new(format!("this is not YAML: {}", error.info()), "correct the syntax").at(at)
}

/// Converts a plain scalar as the core schema defines.
fn resolve(text: &str) -> Value {
    let value = match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => Some(Bare::Boolean(true)),
        "false" | "False" | "FALSE" => Some(Bare::Boolean(false)),
        _ if text.starts_with("0x") || text.starts_with("0o") => {
            let radix = if text.starts_with("0x") { 16 } else { 8 };
            i64::from_str_radix(&text[2..], radix).ok().map(Bare::Integer)
        }
        _ if is_integer(text) => Some(text.parse().map_or(Bare::TooLarge, Bare::Integer)),
        _ if is_float(text) => text.parse().ok().map(Bare::Float),
        _ => None,
    };
    let written = text.to_owned();
    value.map_or(Value::Text(text.to_owned()), |value| Value::Bare { value, written })
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_float(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E'))
}
