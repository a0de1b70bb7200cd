//! Parses TOML into nodes.

use super::{Bare, Complaint, Key, Lines, MAX_DEPTH, Node, Value, too_deep};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The message of the parser.
const DUPLICATE_KEY: &str = "duplicate key";

pub(super) fn parse(text: &str) -> Result<Node, Complaint> {
    let lines = Lines::new(text);
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or_else(Default::default, |span| lines.position(span.start));
        let key = error.span().and_then(|span| text.get(span)).filter(|_| error.message() == DUPLICATE_KEY);
        let complaint = key.map_or_else(
            || {
                Complaint::new(
                    format!("this is not TOML: {}", error.message().replace('\n', ", ")),
                    "correct the syntax",
                )
            },
            Complaint::duplicate_key,
        );
        complaint.at(at)
    })?;
    let at = lines.position(0);
    Ok(Node { at, value: table(document.get_ref(), &lines, 0)? })
}

fn node(value: &Spanned<DeValue<'_>>, lines: &Lines<'_>, depth: usize) -> Result<Node, Complaint> {
    let at = lines.position(value.span().start);
    if depth > MAX_DEPTH {
        return Err(too_deep(at));
    }
    let written = lines.text.get(value.span()).unwrap_or_default();
    let bare = |value| Value::Bare { value, written: written.to_owned() };
    let value = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            let value = i64::from_str_radix(number.as_str(), number.radix());
            bare(value.map_or(Bare::TooLarge, Bare::Integer))
        }
        DeValue::Float(number) => bare(number.as_str().parse().map_or(Bare::TooLarge, Bare::Float)),
        DeValue::Boolean(value) => bare(Bare::Boolean(*value)),
        DeValue::Datetime(_) => bare(Bare::Date),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| node(item, lines, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(entries) => table(entries, lines, depth)?,
    };
    Ok(Node { at, value })
}

fn table(entries: &DeTable<'_>, lines: &Lines<'_>, depth: usize) -> Result<Value, Complaint> {
    let mut entries: Vec<_> = entries.iter().collect();
    // The parser sorts the keys by name. Restore the order of the file, so that the first error in it is reported.
    entries.sort_by_key(|(key, _)| key.span().start);
    let read = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = key.get_ref();
        Ok((Key { at: lines.position(key.span().start), name: name.to_string() }, node(value, lines, depth + 1)?))
    };
    Ok(Value::Table(entries.into_iter().map(read).collect::<Result<_, Complaint>>()?))
}
