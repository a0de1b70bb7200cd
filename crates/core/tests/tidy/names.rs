//! Pages that describe the code name only what exists: every path, every `Type` and every `Type::name` in backticks.

use super::{code_of, defines, is_word_end, read, root, sources};
use std::collections::BTreeMap;
use std::fs;

/// The pages that are checked. Tutorials are not: they name what they are about to add.
const PAGES: [&str; 4] =
    ["ARCHITECTURE.md", "docs/developers/README.md", "docs/developers/protocol.md", "docs/developers/testing.md"];

#[test]
fn pages_about_the_code_name_only_existing_code() {
    let code = all_code();
    let types = Types::of(&code);
    let exists = |path: &str| root().join(path).exists();
    let mut wrong = Vec::new();
    for path in PAGES {
        wrong.extend(wrong_names(path, &read(&root().join(path)), &types, &exists));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The sources of all crates, without comments and strings.
fn all_code() -> Vec<String> {
    let crates = fs::read_dir(root().join("crates")).expect("the crates");
    let dirs = crates.map(|entry| entry.expect("a crate").path().join("src")).filter(|dir| dir.exists());
    dirs.flat_map(|dir| sources(&dir)).map(|(_, text)| code_of(&text)).collect()
}

fn wrong_names(page: &str, text: &str, types: &Types<'_>, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut is_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        }
        for name in line.split('`').skip(1).step_by(2).filter(|_| !is_block) {
            let problem = match kind(name) {
                Kind::Path => (!exists(name)).then_some("does not exist"),
                Kind::Type => (!types.has(name)).then_some("is no type of any crate"),
                Kind::Part(of, part) => (!types.has_part(of, part)).then_some("is in no crate"),
                Kind::Other => None,
            };
            wrong.extend(problem.map(|problem| format!("{page}:{number}: `{name}` {problem}")));
        }
    }
    wrong
}

enum Kind<'a> {
    Path,
    Type,
    Part(&'a str, &'a str),
    Other,
}

fn kind(name: &str) -> Kind<'_> {
    const ENDINGS: [&str; 5] = [".rs", ".md", ".toml", ".json", ".txt"];
    let is_word = |text: &str| !text.is_empty() && text.chars().all(is_part);
    let is_type =
        |text: &str| is_word(text) && text.starts_with(char::is_uppercase) && text.contains(char::is_lowercase);
    let is_path =
        name.starts_with("crates/") || name.starts_with("docs/") || ENDINGS.iter().any(|end| name.ends_with(end));
    if is_path && name.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c)) {
        return Kind::Path;
    }
    match name.trim_end_matches("()").split_once("::") {
        Some((of, part)) if is_type(of) && is_word(part) => Kind::Part(of, part),
        None if is_type(name) => Kind::Type,
        _ => Kind::Other,
    }
}

/// The types of all crates, and the bodies of their definitions and implementations.
struct Types<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Types<'a> {
    fn of(code: &'a [String]) -> Types<'a> {
        let mut types = Types(BTreeMap::new());
        let mut implementations = Vec::new();
        for code in code {
            for keyword in ["struct ", "enum ", "trait ", "type "] {
                for rest in after(code, keyword) {
                    types.0.entry(first_word(rest)).or_default().extend(body(rest));
                }
            }
            implementations.extend(after(code, "impl"));
        }
        for rest in implementations {
            let head = &rest[..rest.find(['{', ';']).unwrap_or(rest.len())];
            for word in head.split(|c: char| !is_part(c)) {
                types.0.entry(word).and_modify(|bodies| bodies.extend(body(rest)));
            }
        }
        types
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether a type has a variant, field, function or constant of this name.
    fn has_part(&self, of: &str, part: &str) -> bool {
        let bodies = self.0.get(of).into_iter().flatten();
        bodies.into_iter().any(|body| defines(body, part) || has_at_the_top(body, part))
    }
}

/// The text after each occurrence of this word in the code.
fn after<'a>(code: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    let found = code.match_indices(keyword).filter(|(at, _)| !is_word_end(&code[..*at]));
    found.map(move |(at, _)| &code[at + keyword.len()..])
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !is_part(c)).next().unwrap_or_default()
}

/// The contents of the first pair of braces, if there is one.
fn body(rest: &str) -> Option<&str> {
    let open = rest.find(['{', ';'])?;
    rest[open..].starts_with('{').then(|| balanced(&rest[open + 1..]))
}

/// The text up to the brace that closes the open one.
fn balanced(text: &str) -> &str {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// Variants and fields are outside of all inner braces and parentheses of a body.
fn has_at_the_top(body: &str, part: &str) -> bool {
    let (mut depth, mut top) = (0, String::new());
    for c in body.chars() {
        depth -= i32::from(matches!(c, '}' | ')'));
        top.push(if depth == 0 && !matches!(c, '}' | ')') { c } else { ' ' });
        depth += i32::from(matches!(c, '{' | '('));
    }
    let is_named = |line: &str| first_word(line.trim_start().trim_start_matches("pub ").trim_start()) == part;
    top.split([',', '\n']).any(is_named)
}

#[test]
fn a_name_that_does_not_exist_is_detected() {
    let code = [
        "pub struct Real { pub field: u8 }\nimpl<T> Real { pub fn done(&self) { match x { Odd => 1 } } }".to_owned(),
        "pub enum Choice {\n    One,\n    Two { inner: u8 },\n}\ntrait Rule { fn next(&self); }\ntype Short = u8;"
            .to_owned(),
    ];
    let types = Types::of(&code);
    let wrong = |name: &str| wrong_names("p", &format!("text `{name}` text"), &types, &|path| path == "crates/a.rs");
    for right in
        ["Real", "Real::field", "Real::done", "Choice::Two", "Rule::next", "Short", "crates/a.rs", "drf", "TERM"]
    {
        assert!(wrong(right).is_empty(), "{right}: {:?}", wrong(right));
    }
    for gone in
        ["Gone", "Real::gone", "Real::Odd", "Choice::Three", "Choice::inner", "Rule::last", "crates/b.rs", "b.md"]
    {
        assert_eq!(wrong(gone).len(), 1, "{gone}");
    }
    assert_eq!(wrong("Gone"), ["p:1: `Gone` is no type of any crate"]);
    assert!(wrong_names("p", "```\n`Gone`\n```\n", &types, &|_| false).is_empty(), "blocks are pictures and code");
}
