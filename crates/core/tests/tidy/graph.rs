//! The modules of a crate depend on each other in one direction. Only the files of one folder may form cycles.

use super::{code_of, imports, is_word_end, paths, root, sources, top_module};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Which of a crate's top modules import which others.
type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_depend_on_each_other_in_one_direction() {
    let crates = fs::read_dir(root().join("crates")).expect("the crates").map(|entry| entry.expect("a crate").path());
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for dir in crates.filter(|dir| dir.join("src").exists()) {
        let name = dir.file_name().expect("a crate has a name").to_string_lossy().into_owned();
        found.extend(knots(&graph(&sources(&dir.join("src")))).into_iter().map(|knot| (name.clone(), knot)));
    }
    found.sort();
    let shown: String = found.iter().map(|(name, modules)| format!("    {name}: {}\n", modules.join(", "))).collect();
    assert!(
        found.is_empty(),
        "modules that depend on each other:\n{shown}let one of them import nothing of the others"
    );
}

fn graph(sources: &[(String, String)]) -> Graph {
    let modules: BTreeSet<&str> =
        sources.iter().map(|(path, _)| top_module(path)).filter(|name| !is_root(name)).collect();
    let roots = sources.iter().filter(|(path, _)| is_root(top_module(path)));
    let exported: BTreeMap<String, String> =
        roots.flat_map(|(_, text)| exports(&without_tests(&code_of(text)))).collect();
    let for_tests: Vec<String> =
        sources.iter().flat_map(|(path, text)| modules_for_tests(path, &code_of(text))).collect();
    let is_for_tests = |path: &str| {
        for_tests.iter().any(|module| path == format!("{module}.rs") || path.starts_with(&format!("{module}/")))
    };
    let mut graph = Graph::new();
    for (path, text) in sources.iter().filter(|(path, _)| !is_root(top_module(path)) && !is_for_tests(path)) {
        let own = top_module(path);
        let used = graph.entry(own.to_owned()).or_default();
        for import in imports(path, &without_tests(&code_of(text))) {
            let first = import.split("::").next().unwrap_or_default();
            let module = if modules.contains(first) { Some(first) } else { exported.get(first).map(String::as_str) };
            used.extend(module.filter(|module| *module != own).map(str::to_owned));
        }
    }
    graph
}

fn is_root(module: &str) -> bool {
    matches!(module, "lib" | "main" | "")
}

/// The items that a root re-exports from its modules, with their modules.
fn exports(code: &str) -> Vec<(String, String)> {
    let uses = code.match_indices("use ").filter(|(at, _)| !is_word_end(&code[..*at]));
    let named = uses.flat_map(|(at, found)| paths(code[at + found.len()..].trim_start_matches("crate::")));
    named.filter_map(|path| path.split_once("::").map(|(module, item)| (item.to_owned(), module.to_owned()))).collect()
}

const MARK: &str = "#[cfg(test)]";

/// The files (without their endings) and folders that a file compiles for tests only.
fn modules_for_tests(path: &str, code: &str) -> Vec<String> {
    let folder = match path.trim_end_matches(".rs") {
        "lib" | "main" => String::new(),
        module => format!("{}/", module.trim_end_matches("/mod")),
    };
    let declared = code.match_indices(MARK).filter_map(|(at, _)| {
        let after = code[at + MARK.len()..].trim_start().trim_start_matches("pub ");
        let name = after.strip_prefix("mod ")?;
        let (name, rest) = name.split_at(name.find(|c: char| !(c.is_alphanumeric() || c == '_'))?);
        rest.trim_start().starts_with(';').then(|| format!("{folder}{name}"))
    });
    declared.collect()
}

/// The code without the parts that are compiled for tests only.
fn without_tests(code: &str) -> String {
    let (mut kept, mut rest) = (String::new(), code);
    while let Some((before, after)) = rest.split_once(MARK) {
        kept.push_str(before);
        let open = after.find(['{', ';']).unwrap_or(after.len());
        let mut depth = 0;
        let end = after[open..].char_indices().find(|(_, c)| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0
        });
        rest = end.map_or("", |(at, _)| &after[open + at + 1..]);
    }
    kept.push_str(rest);
    kept
}

/// Groups of modules in which each module reaches all others.
fn knots(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (from.as_str(), reached(graph, from))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let mut knots: BTreeSet<Vec<String>> = BTreeSet::new();
    for from in graph.keys() {
        let both: Vec<String> = graph.keys().filter(|to| reaches(from, to) && reaches(to, from)).cloned().collect();
        knots.extend((both.len() > 1).then_some(both));
    }
    knots.into_iter().collect()
}

fn reached<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = graph.get(from).into_iter().flatten().map(String::as_str).collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(graph.get(next).into_iter().flatten().map(String::as_str));
        }
    }
    reached
}

#[test]
fn a_cycle_of_modules_is_detected() {
    let knots_of = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        knots(&graph(&files))
    };
    let line = [("a.rs", "use crate::b::B;"), ("b/mod.rs", "use crate::c::C;"), ("c.rs", "// crate::a\n")];
    assert!(knots_of(&line).is_empty());
    let knot =
        [("a.rs", "use crate::b::B;"), ("b/x.rs", "use super::super::c::C;"), ("c.rs", "fn f(a: crate::a::A) {}")];
    assert_eq!(knots_of(&knot), [["a", "b", "c"]]);
    let within = [("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use crate::a::x::X;")];
    assert!(knots_of(&within).is_empty(), "cycles within a folder are allowed");
    let by_root = [("lib.rs", "mod a; mod b;\npub use a::A;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use crate::A;")];
    assert_eq!(knots_of(&by_root), [["a", "b"]], "through the root");
    let tests = [("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }\nfn f() {}")];
    assert!(knots_of(&tests).is_empty(), "tests may import more");
    let files = [
        ("a/mod.rs", "use crate::b::B;\n#[cfg(test)]\nmod tests;"),
        ("a/tests.rs", "use crate::c::C;"),
        ("b.rs", ""),
        ("c.rs", "use crate::a::A;"),
    ];
    assert!(knots_of(&files).is_empty(), "also tests in files of their own");
}
