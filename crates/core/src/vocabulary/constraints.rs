//! Constraints over node attributes, such as `kernel>=5.10`.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// A node's attributes, sorted by name: `arch=x86_64`, `kernel=6.1.0`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Attributes(Vec<Attribute>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Attribute {
    pub name: String,
    pub value: String,
}

/// A condition on one attribute. A node without that attribute meets only `!=`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Constraint {
    pub attribute: String,
    pub operator: Operator,
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Operator {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    Above,
    Below,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConstraintError(pub String);

impl Attributes {
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Attributes {
        let mut attributes: Vec<Attribute> = pairs.into_iter().map(|(name, value)| Attribute { name, value }).collect();
        attributes.sort();
        attributes.dedup_by(|later, kept| later.name == kept.name);
        Attributes(attributes)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|attribute| attribute.name.as_str().cmp(name)).ok()?;
        Some(&self.0[at].value)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Attribute> {
        self.0.iter()
    }
}

impl From<BTreeMap<String, String>> for Attributes {
    fn from(by_name: BTreeMap<String, String>) -> Attributes {
        Attributes(by_name.into_iter().map(|(name, value)| Attribute { name, value }).collect())
    }
}

impl Constraint {
    /// Reads `name OP value` with one of `= == != >= <= > <`.
    ///
    /// # Errors
    /// The expected form.
    pub fn parse(text: &str) -> Result<Constraint, ConstraintError> {
        const OPERATORS: [(&str, Operator); 7] = [
            ("!=", Operator::NotEqual),
            (">=", Operator::AtLeast),
            ("<=", Operator::AtMost),
            ("==", Operator::Equal),
            ("=", Operator::Equal),
            (">", Operator::Above),
            ("<", Operator::Below),
        ];
        let wrong = || {
            ConstraintError(format!("`{text}` is not a constraint; write for instance `arch=x86_64` or `kernel>=5.10`"))
        };
        let at = text.find(['=', '!', '<', '>']).ok_or_else(wrong)?;
        let (name, rest) = text.split_at(at);
        let (sign, operator) = OPERATORS.into_iter().find(|(sign, _)| rest.starts_with(sign)).ok_or_else(wrong)?;
        let (name, value) = (name.trim(), rest[sign.len()..].trim());
        if name.is_empty()
            || value.is_empty()
            || name.contains(char::is_whitespace)
            || value.starts_with(['=', '<', '>'])
        {
            return Err(wrong());
        }
        Ok(Constraint { attribute: name.to_owned(), operator, value: value.to_owned() })
    }

    pub fn is_met_by(&self, attributes: &Attributes) -> bool {
        let Some(value) = attributes.get(&self.attribute) else {
            return self.operator == Operator::NotEqual;
        };
        let order = compare_versions(value, &self.value);
        match self.operator {
            Operator::Equal => order == Ordering::Equal,
            Operator::NotEqual => order != Ordering::Equal,
            Operator::AtLeast => order != Ordering::Less,
            Operator::AtMost => order != Ordering::Greater,
            Operator::Above => order == Ordering::Greater,
            Operator::Below => order == Ordering::Less,
        }
    }
}

/// Compares as versions: runs of digits as numbers, everything else as text, `5.9` below `5.10`; missing trailing
/// parts count as zero, so `5.10` equals `5.10.0`.
fn compare_versions(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (VersionParts(left), VersionParts(right));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (Some(part), None) => part.cmp_to_nothing(),
            (None, Some(part)) => part.cmp_to_nothing().reverse(),
            (Some(a), Some(b)) => a.cmp(&b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum VersionPart<'a> {
    Text(&'a str),
    /// Digits without leading zeros: the longer number is the larger.
    Number(usize, &'a str),
}

impl VersionPart<'_> {
    fn cmp_to_nothing(&self) -> Ordering {
        match self {
            VersionPart::Number(0, _) => Ordering::Equal,
            _ => Ordering::Greater,
        }
    }
}

struct VersionParts<'a>(&'a str);

impl<'a> Iterator for VersionParts<'a> {
    type Item = VersionPart<'a>;
    fn next(&mut self) -> Option<VersionPart<'a>> {
        self.0 = self.0.trim_start_matches(['.', '-', '_', '+']);
        let first = self.0.chars().next()?;
        let numeric = first.is_ascii_digit();
        let ends = |c: char| c.is_ascii_digit() != numeric || matches!(c, '.' | '-' | '_' | '+');
        let end = self.0.find(ends).unwrap_or(self.0.len());
        let (part, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(if numeric {
            let digits = part.trim_start_matches('0');
            VersionPart::Number(digits.len(), digits)
        } else {
            VersionPart::Text(part)
        })
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.operator {
            Operator::Equal => "=",
            Operator::NotEqual => "!=",
            Operator::AtLeast => ">=",
            Operator::AtMost => "<=",
            Operator::Above => ">",
            Operator::Below => "<",
        };
        write!(f, "{}{sign}{}", self.attribute, self.value)
    }
}

impl fmt::Display for ConstraintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConstraintError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        let node =
            Attributes::new([("kernel".to_owned(), "5.10.0-23".to_owned()), ("arch".to_owned(), "x86_64".to_owned())]);
        for (text, met) in [
            ("kernel>=5.9", true),
            ("kernel>=5.10", true),
            ("kernel<5.10.1", true),
            ("kernel>6", false),
            ("arch=x86_64", true),
            ("arch!=arm64", true),
            ("gpu-model=h100", false),
            ("gpu-model!=h100", true),
        ] {
            assert_eq!(Constraint::parse(text).unwrap().is_met_by(&node), met, "{text}");
        }
    }

    #[test]
    fn malformed_constraints_are_refused() {
        for text in ["", "kernel", ">=5", "kernel>=", "a b=c", "kernel=>5", "kernel!5"] {
            assert!(Constraint::parse(text).is_err(), "{text}");
        }
    }
}
