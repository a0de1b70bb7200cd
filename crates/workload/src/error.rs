//! Errors in files that users write: the problem, its position and the remedy.

use std::fmt;
use std::path::{Path, PathBuf};

/// A position in a file. Lines and columns count from 1; columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// An error in a job file or a configuration: `job.toml:3:7: ...`, with the remedy on a line of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    pub file: PathBuf,
    pub at: Position,
    pub problem: String,
    pub remedy: String,
}

/// An error before its file is known. Its position may not be known either.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Complaint {
    pub at: Option<Position>,
    pub problem: String,
    pub remedy: String,
}

impl Complaint {
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Complaint {
        Complaint { at: None, problem: problem.into(), remedy: remedy.into() }
    }

    pub fn duplicate_key(key: &str) -> Complaint {
        Complaint::new(format!("duplicate key `{key}`"), "keep one of them")
    }

    pub fn unknown_key(&self) -> Option<&str> {
        unknown_key(&self.problem)
    }

    /// Sets the position, unless the error already has one, which is more precise.
    pub fn at(mut self, at: Position) -> Complaint {
        self.at.get_or_insert(at);
        self
    }

    pub fn in_file(self, file: &Path) -> FileError {
        let at = self.at.unwrap_or(Position { line: 1, column: 1 });
        FileError { file: file.to_owned(), at, problem: self.problem, remedy: self.remedy }
    }
}

impl FileError {
    /// The name of the unknown key, if that is the problem.
    pub fn unknown_key(&self) -> Option<&str> {
        unknown_key(&self.problem)
    }
}

fn unknown_key(problem: &str) -> Option<&str> {
    problem.strip_prefix(UNKNOWN_KEY)?.strip_suffix('`')
}

const UNKNOWN_KEY: &str = "unknown key `";

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.at;
        write!(f, "{}:{line}:{column}: {}", self.file.display(), self.problem)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.remedy) }
    }
}

impl std::error::Error for FileError {}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Complaint {}

/// serde passes the error of a value's own deserializer on as one text. This character separates the problem from the
/// remedy. Neither contains it: both are single lines.
const REMEDY: char = '\n';

impl From<crate::quantities::Malformed> for Complaint {
    fn from(malformed: crate::quantities::Malformed) -> Complaint {
        Complaint::new(malformed.problem, malformed.remedy)
    }
}

/// Packs a problem and its remedy for `serde::de::Error::custom`.
pub fn packed(malformed: &crate::quantities::Malformed) -> String {
    format!("{}{REMEDY}{}", malformed.problem.replace(REMEDY, " "), malformed.remedy)
}

impl serde::de::Error for Complaint {
    fn custom<T: fmt::Display>(message: T) -> Complaint {
        let text = message.to_string();
        let (problem, remedy) = text.split_once(REMEDY).unwrap_or((&text, ""));
        Complaint::new(problem, remedy)
    }

    fn invalid_type(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Complaint {
        Complaint::new(format!("found {}", describe(found)), format!("write {}", plainly(expected)))
    }

    fn invalid_value(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Complaint {
        let problem = match found {
            serde::de::Unexpected::Str(_) => format!("found {}", describe(found)),
            _ => format!("{} is out of range", describe(found)),
        };
        Complaint::new(problem, format!("write {}", plainly(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Complaint {
        unknown("key", field, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Complaint {
        unknown("value", variant, expected)
    }

    fn missing_field(field: &'static str) -> Complaint {
        Complaint::new(format!("the key `{field}` is missing"), format!("add `{field} = ...`"))
    }

    fn duplicate_field(field: &'static str) -> Complaint {
        Complaint::duplicate_key(field)
    }
}

fn unknown(what: &str, found: &str, expected: &'static [&'static str]) -> Complaint {
    // Aliases in kebab case are accepted but not suggested, except for names that have no other spelling.
    let is_alias = |name: &str| name == "stages" || name.contains('-') && expected.contains(&&*name.replace('-', "_"));
    let advertised = || expected.iter().copied().filter(|name| !is_alias(name));
    let remedy = match crate::suggest::closest(found, advertised()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known: {}", advertised().collect::<Vec<_>>().join(", ")),
    };
    Complaint::new(format!("unknown {what} `{found}`"), remedy)
}

/// Describes an expected Rust type in the terms of a job file.
fn plainly(expected: &dyn serde::de::Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "u32" | "u64" | "usize" => "a whole number, at least 0".to_owned(),
        "u8" => "a whole number from 0 to 255".to_owned(),
        "a nonzero u32" => "a whole number, at least 1".to_owned(),
        "f32" | "f64" => "a number, such as 0.5".to_owned(),
        "i32" => "a whole number from -2147483648 to 2147483647".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        _ if expected.starts_with("struct ") => "a table of keys and values".to_owned(),
        _ => expected,
    }
}

fn describe(found: serde::de::Unexpected<'_>) -> String {
    use serde::de::Unexpected;
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("the number `{value}`"),
        Unexpected::Signed(value) => format!("the number `{value}`"),
        Unexpected::Float(value) => format!("the number `{value}`"),
        Unexpected::Str(text) => format!("the text `{text}`"),
        Unexpected::Unit => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}
