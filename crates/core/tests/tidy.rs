//! Checks of the project's structure: which modules may import which, what core must not use, and that the pages about
//! the papers and the code name things that exist, and which words names avoid. Each rule is shown to detect a violation.

#[path = "tidy/graph.rs"]
mod graph;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/sizes.rs"]
mod sizes;
#[path = "tidy/words.rs"]
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which of core's modules each of them may import. A module that is not listed here has no place in the design yet.
const MAY_IMPORT: [(&str, &[&str]); 17] = [
    ("vocabulary", &[]),
    ("protocol", &["vocabulary"]),
    ("why", &["vocabulary", "protocol"]),
    ("progress", &["vocabulary", "protocol"]),
    ("role", &["vocabulary", "protocol", "why", "progress"]),
    ("story", &["vocabulary", "protocol", "why", "role"]),
    // A policy reports the rule by which it chose an ask, and the rule travels with the grant.
    ("policy", &["vocabulary", "why", "protocol::Rule"]),
    ("scheduling", &["vocabulary", "why", "protocol", "policy"]),
    ("dispatch", &["vocabulary", "protocol", "role", "why", "policy", "scheduling"]),
    ("node", ROLES_MAY),
    ("master", ROLES_MAY),
    ("job_manager", &["vocabulary", "protocol", "role", "why", "policy", "scheduling", "dispatch", "progress"]),
    ("job_host", ROLES_MAY),
    ("global_master", ROLES_MAY),
    (
        "preset",
        &[
            "vocabulary",
            "protocol",
            "policy",
            "scheduling",
            "dispatch",
            "node",
            "master",
            "job_manager",
            "global_master",
        ],
    ),
    (
        "hosting",
        &[
            "vocabulary",
            "protocol",
            "why",
            "role",
            "policy",
            "dispatch",
            "node",
            "master",
            "job_manager",
            "job_host",
            "global_master",
            "preset",
        ],
    ),
    ("lib", &[]),
];
const ROLES_MAY: &[&str] = &["vocabulary", "protocol", "role", "why", "policy", "scheduling", "dispatch"];
const ROLES: [&str; 5] = ["node", "master", "job_manager", "job_host", "global_master"];

const PAPERS: [&str; 5] = ["mercury", "carbyne", "megha", "apollo", "sparrow"];

/// Names that would make core depend on anything but its arguments.
const BANNED_IN_CORE: [&str; 10] = [
    "HashMap",
    "HashSet",
    "Instant::now",
    "SystemTime",
    "rand::",
    "std::thread",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
];

/// What core may depend on: serde, a seedable generator, and collections without a hash function of their own.
const CORES_DEPENDENCIES: [&str; 4] = ["fixedbitset", "hashbrown", "rand_pcg", "serde"];

/// Crates that must not name the listed crates, neither in their manifests nor in their sources.
const STRANGERS: [(&str, &[&str]); 7] = [
    ("core", &["amalgam-workload", "amalgam-sim", "amalgam-daemon", "amalgam-cli", "amalgam", "amalgam-lab"]),
    ("workload", &["amalgam-sim", "amalgam-daemon", "amalgam-cli", "amalgam", "amalgam-lab"]),
    ("sim", &["amalgam-daemon", "amalgam-cli", "amalgam", "amalgam-lab"]),
    ("daemon", &["amalgam-sim", "amalgam-cli", "amalgam", "amalgam-lab"]),
    ("cli", &["amalgam-sim", "amalgam", "amalgam-lab"]),
    ("amalgam", &["amalgam-lab"]),
    ("lab", &["amalgam"]),
];

const MECHANISMS: [(&str, char, u32); 4] =
    [("mercury", 'M', 14), ("carbyne", 'C', 10), ("megha", 'G', 10), ("apollo", 'A', 16)];

// ---- the project ---------------------------------------------------------------------------------------------------

#[test]
fn cores_modules_import_only_permitted_modules() {
    let wrong: Vec<String> = core_sources().iter().flat_map(|(path, text)| wrong_imports(path, text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn core_uses_no_clock_no_randomness_and_no_unordered_map() {
    let wrong: Vec<String> = core_sources().iter().flat_map(|(path, text)| banned_uses(path, text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn role_code_names_no_paper() {
    let wrong: Vec<String> = core_sources().iter().flat_map(|(path, text)| papers_in_roles(path, text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_depend_only_downwards() {
    let mut wrong = Vec::new();
    for (name, strangers) in STRANGERS {
        let dir = root().join("crates").join(name);
        wrong.extend(known_strangers(name, &read(&dir.join("Cargo.toml")), strangers));
        for (path, text) in sources(&dir.join("src")) {
            wrong.extend(strangers_in_source(&format!("{name}/{path}"), &text, strangers));
            if name == "workload" {
                wrong.extend(more_than_vocabulary(&path, &text));
            }
        }
    }
    let core = dependencies(&read(&root().join("crates/core/Cargo.toml")), "dependencies");
    wrong.extend(
        core.iter()
            .filter(|name| !CORES_DEPENDENCIES.contains(&name.as_str()))
            .map(|name| format!("core depends on {name}")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_mechanism_has_a_row_that_names_existing_code_and_tests() {
    let mut wrong = Vec::new();
    for (paper, envelope, count) in MECHANISMS {
        let page = fs::read_to_string(root().join("docs/papers").join(format!("{paper}.md"))).unwrap_or_default();
        wrong.extend(wrong_rows(paper, envelope, count, &page, &|path| fs::read_to_string(root().join(path)).ok()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// ---- the rules -----------------------------------------------------------------------------------------------------

fn wrong_imports(path: &str, text: &str) -> Vec<String> {
    let own = top_module(path);
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(module, _)| *module == own) else {
        return vec![format!("{path}: the module `{own}` is not in the list of imports")];
    };
    let is_allowed = |import: &str| {
        let within = |entry: &&str| import == *entry || import.starts_with(&format!("{entry}::"));
        import == own || import.starts_with(&format!("{own}::")) || allowed.iter().any(within)
    };
    let wrong = imports(path, text).into_iter().filter(|import| !is_allowed(import));
    wrong.map(|import| format!("{path}: `{own}` must not import `{import}`")).collect()
}

/// Every path from the crate's root that the text names, as `module::item` or as `module`.
fn imports(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !is_word_end(&code[..at]) {
            found.extend(paths(&code[at + "crate::".len()..]));
        }
    }
    // As many `super`s as there are modules around the file refer to the root.
    let (plain, tests) = code.split_once("#[cfg(test)]").unwrap_or((&code, ""));
    found.extend(imports_by_super(plain, module_depth(path)));
    found.extend(imports_by_super(tests, module_depth(path) + 1));
    found
}

fn imports_by_super(code: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("super::") {
        let mut after = &rest[at..];
        let mut levels = 0;
        while let Some(next) = after.strip_prefix("super::") {
            (after, levels) = (next, levels + 1);
        }
        if levels >= depth {
            found.extend(paths(after));
        }
        rest = after;
    }
    found
}

/// The first two parts of each path at the start of `text`, which may be a group in braces.
fn paths(text: &str) -> Vec<String> {
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let Some(group) = text.strip_prefix('{') else {
        let module = word(text);
        let after = &text[module.len()..];
        let items = after.strip_prefix("::").map_or_else(Vec::new, |items| match items.strip_prefix('{') {
            Some(group) => group_parts(group).iter().map(|part| word(part)).collect(),
            None => vec![word(items)],
        });
        let full = items.iter().map(|item| if item.is_empty() { module.clone() } else { format!("{module}::{item}") });
        let all: Vec<String> = full.collect();
        return if all.is_empty() { vec![module] } else { all };
    };
    group_parts(group).iter().flat_map(|part| paths(part)).collect()
}

/// The parts of a group, up to its closing brace.
fn group_parts(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                part.push(c);
            }
        }
    }
    parts.push(part);
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn banned_uses(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let uses = |banned: &&&str| code.match_indices(**banned).any(|(at, _)| !is_word_end(&code[..at]));
    BANNED_IN_CORE.iter().filter(uses).map(|banned| format!("{path}: uses `{banned}`")).collect()
}

fn papers_in_roles(path: &str, text: &str) -> Vec<String> {
    if !ROLES.contains(&top_module(path)) {
        return Vec::new();
    }
    let code = code_of(text).to_lowercase();
    PAPERS.iter().filter(|paper| code.contains(**paper)).map(|paper| format!("{path}: names {paper}")).collect()
}

fn known_strangers(name: &str, manifest: &str, strangers: &[&str]) -> Vec<String> {
    let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
    let known = sections.iter().flat_map(|section| dependencies(manifest, section));
    known
        .filter(|known| strangers.contains(&known.as_str()))
        .map(|known| format!("{name} depends on {known}"))
        .collect()
}

fn dependencies(manifest: &str, section: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            inside = header == section;
            // `[dependencies.name]`
            names.extend(header.strip_prefix(&format!("{section}.")).map(str::to_owned));
        } else if inside && !line.starts_with('#') {
            let name: String = line.chars().take_while(|c| c.is_alphanumeric() || "_-".contains(*c)).collect();
            names.extend((!name.is_empty()).then_some(name));
        }
    }
    names
}

fn strangers_in_source(path: &str, text: &str, strangers: &[&str]) -> Vec<String> {
    let code = code_of(text);
    let named = |stranger: &&&str| {
        let module = format!("{}::", stranger.replace('-', "_"));
        code.match_indices(&module).any(|(at, _)| !is_word_end(&code[..at]))
    };
    strangers.iter().filter(named).map(|stranger| format!("{path}: names {stranger}")).collect()
}

/// Workloads use the vocabulary and nothing else of core.
fn more_than_vocabulary(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let after = code.match_indices("amalgam_core::").flat_map(|(at, found)| paths(&code[at + found.len()..]));
    let wrong = after.filter(|import| import != "vocabulary" && !import.starts_with("vocabulary::"));
    wrong.map(|import| format!("workload/{path}: imports amalgam_core::{import}")).collect()
}

/// The mistakes of a page of mechanisms: `id | what | code | test | seen in`, one row for each.
fn wrong_rows(
    paper: &str,
    envelope: char,
    count: u32,
    page: &str,
    file: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut rows = BTreeMap::new();
    for line in page.lines().map(str::trim).filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() >= 5 {
            rows.insert(cells[0].to_owned(), cells);
        }
    }
    let mut wrong = Vec::new();
    for id in (1..=count).map(|number| format!("{envelope}{number}")) {
        let Some(cells) = rows.get(&id) else {
            wrong.push(format!("{paper} {id}: no row"));
            continue;
        };
        if cells[2].contains("not built") {
            continue;
        }
        for (cell, kind) in [(cells[2], "code"), (cells[3], "test")] {
            let references = references(cell);
            if references.is_empty() {
                wrong.push(format!("{paper} {id}: names no {kind}"));
            }
            for (path, symbol) in references {
                match file(&path) {
                    None => wrong.push(format!("{paper} {id}: {path} does not exist")),
                    Some(text) if !defines(&text, &symbol) => {
                        wrong.push(format!("{paper} {id}: {symbol} is not in {path}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    wrong
}

/// Every `path::symbol` in backticks; only the last part of a longer symbol is used.
fn references(cell: &str) -> Vec<(String, String)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    let split = quoted.filter_map(|quoted| quoted.split_once("::"));
    split
        .map(|(path, symbol)| {
            let last = symbol.rsplit("::").next().unwrap_or(symbol);
            (path.to_owned(), last.trim_end_matches("()").to_owned())
        })
        .collect()
}

fn defines(text: &str, symbol: &str) -> bool {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "mod", "type", "static"];
    text.match_indices(symbol).any(|(at, _)| {
        let before = &text[..at];
        let is_whole = !text[at + symbol.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let keyword = before.trim_end();
        let is_defined = KEYWORDS.iter().any(|word| keyword.strip_suffix(word).is_some_and(|rest| !is_word_end(rest)));
        is_whole && keyword.len() < before.len() && is_defined
    })
}

// ---- reading -------------------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn core_sources() -> Vec<(String, String)> {
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
}

/// All sources below a folder, with their paths relative to it.
fn sources(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(dir).expect("below the folder").to_string_lossy().into_owned();
                found.push((name, read(&path)));
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {}", dir.display());
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn top_module(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn module_depth(path: &str) -> usize {
    let parts = path.trim_end_matches(".rs").split('/').filter(|part| !matches!(*part, "mod" | "lib"));
    parts.count()
}

fn is_word_end(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The text without its comments and without the contents of its strings and characters. Lines are kept.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '\'' {
            character_len(rest)
        } else if c == '"' {
            string_len(rest)
        } else if c == 'r' && !is_word_end(&code) {
            raw_string_len(rest)
        } else {
            0
        };
        match skipped {
            0 => code.push(c),
            _ => code.extend(rest[..skipped].chars().filter(|c| *c == '\n')),
        }
        rest = &rest[skipped.max(c.len_utf8())..];
    }
    code
}

/// The length of a character in quotes; `None` for a lifetime.
fn character_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |end| end + 4),
        Some(_) => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// The length of `r"..."`, `r#"..."#` and so on; `None` for another word.
fn raw_string_len(text: &str) -> usize {
    let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let (start, end) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
    text[start..].find(&end).map_or(text.len(), |at| start + at + end.len())
}

// ---- the rules detect violations -----------------------------------------------------------------------------------

#[test]
fn a_wrong_import_is_detected_in_every_form() {
    let wrong = |path, text| wrong_imports(path, text).len();
    assert_eq!(wrong("node/mod.rs", "use crate::master::Master;"), 1, "roles do not import each other");
    assert_eq!(wrong("node/mod.rs", "use crate::{protocol::ToNode, job_manager};"), 1, "in a group");
    assert_eq!(wrong("vocabulary/job.rs", "fn f(ask: crate::protocol::Ask) {}"), 1, "outside a `use`");
    assert_eq!(wrong("master/load.rs", "use super::super::node::NodeAgent;"), 1, "through `super`");
    assert_eq!(
        wrong("policy/mod.rs", "use crate::protocol::{Ask, Rule};"),
        1,
        "one permitted item does not permit the others"
    );
    assert_eq!(wrong("role.rs", "use crate::job_manager::JobManager;"), 1);
    assert_eq!(wrong("surprise.rs", ""), 1, "a module that is not listed");
    assert_eq!(wrong("policy/mod.rs", "use crate::protocol::Rule; // not crate::master"), 0);
    assert_eq!(wrong("why.rs", "use super::master; #[cfg(test)] mod tests { use super::*; }"), 1);
    assert_eq!(wrong("master/load.rs", "use super::Master; use crate::scheduling::{Ledger, Booking};"), 0);
}

#[test]
fn code_of_removes_comments_and_strings() {
    let text = "a // b\n/* c\n */ d \"e\\\" {\" '{' '\\'' f::<'g>() r#\"h \" i\"# 'j'";
    assert_eq!(code_of(text), "a \n\n d    f::<'g>()  ");
}

#[test]
fn clocks_randomness_and_unordered_maps_are_detected() {
    for banned in ["use std::collections::HashMap;", "let now = std::time::Instant::now();", "rand::random::<u8>()"] {
        assert_eq!(banned_uses("node/mod.rs", banned).len(), 1, "{banned}");
    }
    assert!(banned_uses("node/mod.rs", "// a HashMap would do\nlet text = \"Instant::now\"; operand::f();").is_empty());
}

#[test]
fn a_paper_in_role_code_is_detected() {
    assert_eq!(papers_in_roles("master/claims.rs", "if self.is_megha { }").len(), 1);
    assert_eq!(papers_in_roles("node/mod.rs", "struct SparrowProbe;").len(), 1);
    assert!(papers_in_roles("preset.rs", "Preset::Mercury").is_empty(), "presets may");
    assert!(papers_in_roles("node/mod.rs", "// as in Apollo").is_empty(), "comments may");
}

#[test]
fn a_dependency_in_the_wrong_direction_is_detected() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nserde = \"1\"\namalgam-daemon.workspace = true\n";
    assert_eq!(dependencies(manifest, "dependencies"), ["serde", "amalgam-daemon"]);
    assert_eq!(known_strangers("sim", manifest, STRANGERS[2].1).len(), 1);
    let table = "[dev-dependencies.amalgam-sim]\npath = \"../sim\"";
    assert_eq!(known_strangers("daemon", table, STRANGERS[3].1).len(), 1);
    assert_eq!(strangers_in_source("lib.rs", "use amalgam_sim::Agenda;", STRANGERS[3].1).len(), 1);
    assert_eq!(more_than_vocabulary("lib.rs", "use amalgam_core::{vocabulary::JobSpec, role::Role};").len(), 1);
}

#[test]
fn a_page_that_names_missing_code_is_detected() {
    let file = |path: &str| (path == "a.rs").then(|| "pub fn real() {}\nstruct Real;\nfn real_test() {}".to_owned());
    let wrong = |row: &str| wrong_rows("mercury", 'M', 1, row, &file);
    assert!(wrong("| M1 | x | `a.rs::real` `a.rs::Real` | `a.rs::real_test` | here |").is_empty());
    assert!(wrong("| M1 | x | not built | | |").is_empty());
    assert_eq!(wrong("").len(), 1, "no row");
    assert_eq!(wrong("| M1 | x | | `a.rs::real_test` | |"), ["mercury M1: names no code"]);
    assert_eq!(wrong("| M1 | x | `a.rs::real` | | |"), ["mercury M1: names no test"]);
    assert_eq!(wrong("| M1 | x | `b.rs::real` | `a.rs::real_test` | |"), ["mercury M1: b.rs does not exist"]);
    assert_eq!(wrong("| M1 | x | `a.rs::rea` | `a.rs::real_test` | |"), ["mercury M1: rea is not in a.rs"]);
    assert_eq!(wrong("| M1 | x | `a.rs::test` | `a.rs::real_test` | |"), ["mercury M1: test is not in a.rs"]);
}
