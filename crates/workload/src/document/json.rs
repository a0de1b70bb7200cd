//! Parses JSON into nodes.

use super::{Bare, Complaint, Key, Lines, MAX_DEPTH, Node, Value, too_deep};
use jiter::{Jiter, JiterError, JiterErrorType, Peek};

pub(super) fn parse(text: &str) -> Result<Node, Complaint> {
    let mut reader = Reader { lines: Lines::new(text), json: Jiter::new(text.as_bytes()) };
    let first = reader.json.peek().map_err(|error| reader.syntax(&error))?;
    let document = reader.node(first, 0)?;
    reader.json.finish().map_err(|error| reader.syntax(&error))?;
    Ok(document)
}

/// Converts a number whose syntax the parser has checked.
fn number(written: &str) -> Value {
    let value = if written.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) {
        written.parse().map_or(Bare::TooLarge, Bare::Integer)
    } else {
        written.parse().map_or(Bare::TooLarge, Bare::Float)
    };
    Value::Bare { value, written: written.to_owned() }
}

struct Reader<'a> {
    lines: Lines<'a>,
    json: Jiter<'a>,
}

impl Reader<'_> {
    fn node(&mut self, first: Peek, depth: usize) -> Result<Node, Complaint> {
        let at = self.lines.position(self.json.current_index());
        if depth > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let value = match first {
            Peek::Null => self.json.known_null().map(|()| Value::Null),
            Peek::True | Peek::False => self
                .json
                .known_bool(first)
                .map(|value| Value::Bare { value: Bare::Boolean(value), written: value.to_string() }),
            Peek::String => self.json.known_str().map(|text| Value::Text(text.to_owned())),
            Peek::Array => return Ok(Node { at, value: self.list(depth)? }),
            Peek::Object => return Ok(Node { at, value: self.table(depth)? }),
            _ => self.json.known_number_bytes(first).map(|written| number(&String::from_utf8_lossy(written))),
        };
        Ok(Node { at, value: value.map_err(|error| self.syntax(&error))? })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Complaint> {
        let mut items = Vec::new();
        let mut next = self.json.known_array().map_err(|error| self.syntax(&error))?;
        while let Some(first) = next {
            items.push(self.node(first, depth + 1)?);
            next = self.json.array_step().map_err(|error| self.syntax(&error))?;
        }
        Ok(Value::List(items))
    }

    fn table(&mut self, depth: usize) -> Result<Value, Complaint> {
        let mut entries = Vec::new();
        let mut next = self.json.known_object().map(|key| key.map(str::to_owned));
        while let Some(name) = next.map_err(|error| self.syntax(&error))? {
            // The reader is behind the colon. The key is before it.
            let at = self.lines.position(self.key_start());
            let first = self.json.peek().map_err(|error| self.syntax(&error))?;
            entries.push((Key { at, name }, self.node(first, depth + 1)?));
            next = self.json.next_key().map(|key| key.map(str::to_owned));
        }
        Ok(Value::Table(entries))
    }

    /// The offset of the key that was just read: its opening quote.
    fn key_start(&self) -> usize {
        let bytes = self.lines.text.as_bytes();
        let colon = self.json.current_index().min(bytes.len());
        let closing = bytes[..colon].iter().rposition(|byte| *byte == b'"').unwrap_or(0);
        let mut opening = closing;
        while opening > 0 {
            opening -= 1;
            let escapes = bytes[..opening].iter().rev().take_while(|byte| **byte == b'\\').count();
            if bytes[opening] == b'"' && escapes % 2 == 0 {
                break;
            }
        }
        opening
    }

    fn syntax(&self, error: &JiterError) -> Complaint {
        let what = match &error.error_type {
            JiterErrorType::JsonError(error) => error.to_string(),
            JiterErrorType::WrongType { expected, actual } => format!("expected {expected}, found {actual}"),
        };
        let at = self.lines.position(error.index);
        Complaint::new(format!("this is not JSON: {what}"), "correct the syntax").at(at)
    }
}
