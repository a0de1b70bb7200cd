//! Names in the code contain no words that `docs/style.md` avoids and that a reader would have to guess the meaning of.

use super::{code_of, root, sources};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The words to avoid, each with what to write instead. Words of the page that other meanings need, such as `due`, are
/// not in this list.
const AVOIDED: [(&str, &str); 19] = [
    ("altogether", "in_total"),
    ("began", "started"),
    ("begin", "start"),
    ("begins", "starts"),
    ("begun", "started"),
    ("foretell", "predict"),
    ("foretelling", "prediction"),
    ("foretold", "predicted"),
    ("heeded", "respected"),
    ("letter", "message"),
    ("lies", "distance, or is_stored"),
    ("nobody", "the noun: no_task, no_node"),
    ("peace", "leave it out"),
    ("somebody", "the noun"),
    ("tells", "reports"),
    ("wants", "requests"),
    ("whoever", "the noun"),
    ("wish", "request"),
    ("wished", "requested"),
];

/// Names that keep such a word because they are serialized, each with the reason.
const SERIALIZED: [(&str, &str); 2] = [
    ("begins_s", "a key of `sim run --json`, and the fields and parameters that carry its value"),
    ("begun_s", "a key of the jobs in `sim run --json`"),
];

#[test]
fn names_contain_no_word_to_avoid() {
    let mut found = BTreeMap::new();
    let crates = fs::read_dir(root().join("crates")).expect("the crates");
    for krate in crates.map(|entry| entry.expect("a crate").path()).filter(|krate| krate.join("src").exists()) {
        for (path, text) in sources(&krate.join("src")) {
            let place = krate.join("src").join(path).display().to_string();
            found.extend(names_to_change(&text).into_iter().map(|(name, instead)| (name, (place.clone(), instead))));
        }
    }
    let is_serialized = |name: &str| SERIALIZED.iter().any(|(serialized, _)| *serialized == name);
    let wrong: Vec<String> = found
        .iter()
        .filter(|(name, _)| !is_serialized(name))
        .map(|(name, (place, instead))| format!("{place}: {name}: {instead}"))
        .collect();
    assert!(wrong.is_empty(), "names with words to avoid, and what to write instead:\n    {}", wrong.join("\n    "));
    for (name, _) in SERIALIZED {
        assert!(found.contains_key(name), "{name} does not exist any more, remove it from SERIALIZED in tidy/words.rs");
    }
}

/// The names of the code that contain a word to avoid, with what to write instead of the word.
fn names_to_change(text: &str) -> BTreeMap<String, &'static str> {
    let code = code_of(text);
    let names: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let avoided = |name: &str| {
        let words = words_of(name);
        AVOIDED.iter().find(|(word, _)| words.iter().any(|of_name| of_name == word)).map(|(_, instead)| *instead)
    };
    names.into_iter().filter_map(|name| Some((name.to_owned(), avoided(name)?))).collect()
}

/// The words of a name in `snake_case`, `CamelCase` or `CAPITALS`, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in name.split('_') {
        let mut after_lower = false;
        let mut word = String::new();
        for c in part.chars() {
            if c.is_uppercase() && after_lower {
                words.push(std::mem::take(&mut word));
            }
            after_lower = !c.is_uppercase();
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    words
}

#[test]
fn a_word_to_avoid_is_detected_as_a_part_of_a_name() {
    let names = |text: &str| names_to_change(text).into_keys().collect::<Vec<_>>();
    assert_eq!(names("struct Lies { on_began: u8 }"), ["Lies", "on_began"]);
    assert_eq!(names("Kind::NobodyReads => MOST_WANTS"), ["MOST_WANTS", "NobodyReads"]);
    assert!(names("let applies = beginning(families); // it lies\nlet text = \"nobody\";").is_empty());
    assert_eq!(words_of("someCamelCase_and_SNAKE"), ["some", "camel", "case", "and", "snake"]);
}
