//! Constraints over node attributes, such as `kernel>=5.10`, and taints.
//!
//! A taint is an attribute whose name starts with `taint.`. A node with a taint takes only tasks whose stage names the taint in a
//! constraint, be it [`Constraint::tolerating`] or any other that the node meets.

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

/// How the names of taints start among those of attributes.
pub const TAINT: &str = "taint.";

/// No taint has this value, so that every node meets a constraint that only tolerates.
pub const NO_TAINT: &str = "-";

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

    /// The taints of the node.
    pub fn taints(&self) -> impl Iterator<Item = &Attribute> {
        let first = self.0.partition_point(|attribute| attribute.name.as_str() < TAINT);
        self.0[first..].iter().take_while(|attribute| attribute.is_taint())
    }

    pub fn has_taints(&self) -> bool {
        self.taints().next().is_some()
    }

    /// Whether tasks with these constraints may run on the node: it meets all of them, and they name all of its taints.
    pub fn suit(&self, constraints: &[Constraint]) -> bool {
        constraints.iter().all(|constraint| constraint.is_met_by(self)) && self.are_tolerated_by(constraints)
    }

    /// Whether the constraints name all taints of the node.
    pub fn are_tolerated_by(&self, constraints: &[Constraint]) -> bool {
        self.taints().all(|taint| constraints.iter().any(|constraint| constraint.attribute == taint.name))
    }
}

impl Attribute {
    pub fn is_taint(&self) -> bool {
        self.name.starts_with(TAINT)
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

    /// What a stage says to run on nodes with the taint as well. Every node meets it.
    pub fn tolerating(taint: &str) -> Constraint {
        let (attribute, operator) = (format!("{TAINT}{taint}"), Operator::NotEqual);
        Constraint { attribute, operator, value: NO_TAINT.to_owned() }
    }

    /// The taint that it tolerates, if it says nothing else.
    fn tolerated(&self) -> Option<&str> {
        let only_tolerates = self.operator == Operator::NotEqual && self.value == NO_TAINT;
        self.attribute.strip_prefix(TAINT).filter(|_| only_tolerates)
    }

    /// The taint, and its value, which these nodes have and a stage does not tolerate ([`unmet`]).
    pub fn taint(&self) -> Option<(&str, &str)> {
        let is_unmet = self.operator == Operator::NotEqual && self.value != NO_TAINT;
        self.attribute.strip_prefix(TAINT).filter(|_| is_unmet).map(|taint| (taint, self.value.as_str()))
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

/// What keeps tasks with these constraints from all `nodes`: constraints that no node meets; or else taints of nodes that meet them
/// all, as constraints that exclude them; or else all constraints, of which each node lacks another one.
pub fn unmet<'a, N: Iterator<Item = &'a Attributes>>(
    constraints: &[Constraint],
    nodes: impl Fn() -> N,
) -> Vec<Constraint> {
    /// Maximum number of taints that are named.
    const MOST: usize = 3;
    let met_by_none = constraints.iter().filter(|constraint| !nodes().any(|node| constraint.is_met_by(node)));
    let unmet: Vec<Constraint> = met_by_none.cloned().collect();
    if !unmet.is_empty() {
        return unmet;
    }
    let mut taints = Vec::new();
    for node in nodes().filter(|node| constraints.iter().all(|constraint| constraint.is_met_by(node))) {
        for Attribute { name, value } in node.taints() {
            let excluding = Constraint { attribute: name.clone(), operator: Operator::NotEqual, value: value.clone() };
            let is_tolerated = constraints.iter().any(|constraint| constraint.attribute == *name);
            if !is_tolerated && !taints.contains(&excluding) {
                taints.push(excluding);
            }
        }
        if taints.len() >= MOST {
            break;
        }
    }
    if !taints.is_empty() {
        return taints;
    }
    constraints.iter().filter(|constraint| constraint.tolerated().is_none()).cloned().collect()
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
        if let Some(taint) = self.tolerated() {
            return write!(f, "tolerates {taint}");
        }
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
    fn a_node_with_taints_suits_only_constraints_that_name_all_of_them() {
        let named = |pairs: &[(&str, &str)]| {
            Attributes::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        let plain = named(&[("arch", "x86_64"), ("taint", "no taint"), ("zone", "a")]);
        let one = named(&[("arch", "x86_64"), ("taint.gpu", "for training"), ("zone", "a")]);
        let two = named(&[("taint.gpu", "yes"), ("taint.new", "yes")]);
        let gpu = Constraint::tolerating("gpu");
        let wanted = Constraint::parse("taint.gpu=yes").unwrap();
        for (constraints, suited) in [
            (vec![], [true, false, false]),
            (vec![gpu.clone()], [true, true, false]),
            (vec![gpu.clone(), Constraint::tolerating("new")], [true, true, true]),
            (vec![Constraint::tolerating("new"), wanted.clone()], [false, false, true]),
            (vec![Constraint::parse("arch=arm64").unwrap(), gpu.clone()], [false; 3]),
        ] {
            assert_eq!([&plain, &one, &two].map(|node| node.suit(&constraints)), suited, "{constraints:?}");
        }
        assert_eq!([plain.has_taints(), one.has_taints()], [false, true]);
        assert_eq!((gpu.to_string(), wanted.to_string()), ("tolerates gpu".to_owned(), "taint.gpu=yes".to_owned()));

        let arch = |value| Constraint::parse(&format!("arch={value}")).unwrap();
        let why = |constraints: &[Constraint], nodes: &[&Attributes]| {
            unmet(constraints, || nodes.iter().copied()).iter().map(Constraint::to_string).collect::<Vec<_>>()
        };
        assert_eq!(why(&[arch("arm64"), gpu.clone()], &[&plain, &one]), ["arch=arm64"]);
        assert_eq!(why(&[arch("x86_64")], &[&one, &two]), ["taint.gpu!=for training"]);
        assert_eq!(why(std::slice::from_ref(&gpu), &[&two]), ["taint.new!=yes"]);
        let zone = Constraint::parse("zone=b").unwrap();
        let other = named(&[("arch", "arm64"), ("zone", "b")]);
        assert_eq!(why(&[arch("x86_64"), zone, gpu], &[&plain, &other]), ["arch=x86_64", "zone=b"]);
    }

    #[test]
    fn malformed_constraints_are_refused() {
        for text in ["", "kernel", ">=5", "kernel>=", "a b=c", "kernel=>5", "kernel!5"] {
            assert!(Constraint::parse(text).is_err(), "{text}");
        }
    }
}
