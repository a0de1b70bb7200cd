//! Reference pages: help texts, keys of the configuration and of job files, compared with the program.

use crate::markdown::Page;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

// ---- the configuration ---------------------------------------------------------------------------------------------

/// The keys of a configuration, by full dotted names.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Keys {
    pub values: BTreeSet<String>,
    pub sections: BTreeSet<String>,
}

/// A key that no configuration has.
const UNKNOWN: &str = "xyzzy_plugh";

/// The keys that the program knows. It lists the keys of a section when it refuses an unknown one.
pub fn configuration() -> Keys {
    let (mut keys, mut open) = (Keys::default(), vec![String::new()]);
    while let Some(section) = open.pop() {
        match known_in(&section) {
            Some(known) => {
                let full = |key: &str| if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
                open.extend(known.iter().map(|key| full(key)));
                keys.sections.extend((!section.is_empty()).then_some(section));
            }
            None => drop(keys.values.insert(section)),
        }
    }
    keys
}

/// The keys of a section, or of each entry of a list of sections; `None` for a value.
fn known_in(section: &str) -> Option<Vec<String>> {
    let headers = if section.is_empty() {
        vec![String::new()]
    } else {
        vec![format!("[{section}]\n"), format!("[[{section}]]\n")]
    };
    headers.iter().find_map(|header| known_keys(&refusal(&format!("{header}{UNKNOWN} = 1\n"))))
}

fn refusal(configuration: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), configuration).expect("it can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_amalgam"));
    command.args(["config", "check", "--server-config"]).arg(file.path()).env_clear().stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    assert!(!output.status.success(), "an unknown key is taken: {configuration}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The keys listed in the refusal of an unknown key.
fn known_keys(refusal: &str) -> Option<Vec<String>> {
    let (_, known) = refusal.split_once(&format!("unknown key `{UNKNOWN}`"))?.1.split_once("known: ")?;
    Some(known.lines().next()?.split(", ").map(|key| key.trim().to_owned()).collect())
}

/// The keys in the first column of the page's tables; entries of a list may be written with `[]`.
pub fn first_column(page: &Page) -> Vec<String> {
    page.first_cells().into_iter().map(|cell| cell.replace("[]", "")).collect()
}

pub fn wrong_keys(path: &str, named: &[String], keys: &Keys) -> Vec<String> {
    let mut wrong = Vec::new();
    for key in &keys.values {
        match named.iter().filter(|name| *name == key).count() {
            0 => wrong.push(format!("{path}: lacks `{key}`")),
            1 => {}
            times => wrong.push(format!("{path}: has `{key}` {times} times")),
        }
    }
    let unknown = named.iter().filter(|name| !keys.values.contains(*name) && !keys.sections.contains(*name));
    wrong.extend(unknown.map(|name| format!("{path}: the program does not know `{name}`")));
    wrong
}

// ---- job files -----------------------------------------------------------------------------------------------------

/// Every property of a JSON Schema, at any depth.
pub fn keys_of_schema(schema: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut open = vec![serde_json::from_str::<Value>(schema).expect("the schema is JSON")];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(Value::Object(properties)) = fields.get("properties") {
                    keys.extend(properties.keys().cloned());
                }
                open.extend(fields.into_iter().map(|(_, value)| value));
            }
            Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
    keys
}

/// The keys that do not occur in the page's code.
pub fn unnamed(page: &Page, keys: &BTreeSet<String>) -> Vec<String> {
    let code = page.code();
    let split = |is_part: fn(char) -> bool| code.iter().flat_map(move |code| code.split(move |c| !is_part(c)));
    let mut words: BTreeSet<&str> = split(|c| c.is_alphanumeric() || c == '_').collect();
    words.extend(split(|c| c.is_alphanumeric() || matches!(c, '_' | '-')));
    keys.iter().filter(|key| !words.contains(key.as_str())).map(|key| format!("{}: lacks `{key}`", page.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::new("page.md".to_owned(), text.to_owned())
    }

    #[test]
    fn the_program_lists_its_known_keys() {
        let keys = configuration();
        for value in ["preset", "federation.masters", "policies.queueing.light", "queue.weight"] {
            assert!(keys.values.contains(value), "{value}: {keys:?}");
        }
        for section in ["federation", "policies", "policies.queueing", "queue"] {
            assert!(keys.sections.contains(section) && !keys.values.contains(section), "{section}: {keys:?}");
        }
    }

    #[test]
    fn keys_that_are_missing_unknown_or_twice_are_noticed() {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let keys = Keys { values: set(&["a", "b.c"]), sections: set(&["b"]) };
        let wrong = |text: &str| wrong_keys("p", &first_column(&page(text)), &keys);
        let table = |rows: &str| format!("| key | type |\n|---|---|\n{rows}");
        assert!(wrong(&table("| `a` | x |\n| `b[].c` | `d` |\n")).is_empty());
        assert!(wrong(&table("| `a` | x |\n| `b` | x |\n| `b.c` | x |\n")).is_empty(), "a section may have a row");
        assert_eq!(wrong(&table("| `a` | x |\n")), ["p: lacks `b.c`"]);
        assert_eq!(wrong(&table("| `a` | x |\n| `a` | x |\n| `b.c` | x |\n")), ["p: has `a` 2 times"]);
        assert_eq!(wrong(&table("| `a` | x |\n| `b.c` | x |\n| `d` | x |\n")), ["p: the program does not know `d`"]);
    }

    #[test]
    fn keys_of_job_files_that_a_page_does_not_name_are_noticed() {
        let schema = r##"{"properties": {"name": {"properties": {"inner": {}}}}, "$defs": {"stage": {"properties": {"tasks": {}, "disk-read": {}}}}}"##;
        let keys = keys_of_schema(schema);
        assert_eq!(keys.iter().collect::<Vec<_>>(), ["disk-read", "inner", "name", "tasks"]);
        assert_eq!(
            unnamed(&page("`name`, tasks\n```toml\ninner = 1\nx = { disk-read = 1 }\n```\n"), &keys),
            ["page.md: lacks `tasks`"]
        );
    }
}
