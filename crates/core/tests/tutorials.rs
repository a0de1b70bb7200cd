//! Runs the tutorials of docs/developers: their blocks are applied to a copy of this crate, and the tests that they
//! name are run there.
//!
//! The mark of a block defines its use. ```` ```rust file=PATH ```` is a whole new file. ```` ```diff file=PATH ````
//! changes a file, with lines that stay (` `), are removed (`-`) and are added (`+`). ```` ```console test ```` has the
//! commands that must succeed afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of the copy, by their paths in the repository.
type Files = BTreeMap<String, String>;

#[test]
fn the_tutorials_can_be_followed() {
    for name in ["tutorial-policy.md", "tutorial-message.md"] {
        let path = format!("docs/developers/{name}");
        let page = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        if let Err(problem) = walk(&path, &page) {
            panic!("{problem}");
        }
    }
}

fn walk(path: &str, page: &str) -> Result<(), String> {
    let mut files = sources();
    let blocks = blocks(page);
    for block in &blocks {
        apply(block, &mut files).map_err(|problem| format!("{path}:{}: {problem}", block.line))?;
    }
    let name = Path::new(path).file_stem().expect("a page has a name");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tutorials").join(name);
    write(&copy, &files);
    let commands = commands(&blocks);
    if commands.is_empty() {
        return Err(format!("{path}: has no block `console test`"));
    }
    for (line, command) in commands {
        test(&copy, command).map_err(|problem| format!("{path}:{line}: `{command}` {problem}"))?;
    }
    Ok(())
}

// ---- blocks --------------------------------------------------------------------------------------------------------

struct Block {
    /// The line of its first line of content, from 1.
    line: usize,
    kind: Kind,
    content: String,
}

#[derive(PartialEq, Eq, Debug)]
enum Kind {
    New(String),
    Changed(String),
    Test,
    Other,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(page.lines());
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```"));
        let content: String = inside.map(|line| format!("{line}\n")).collect();
        let kind = match info.split_once(" file=") {
            Some(("diff", path)) => Kind::Changed(path.trim().to_owned()),
            Some((_, path)) => Kind::New(path.trim().to_owned()),
            None if info == "console test" => Kind::Test,
            None => Kind::Other,
        };
        blocks.push(Block { line: number + 1, kind, content });
    }
    blocks
}

fn apply(block: &Block, files: &mut Files) -> Result<(), String> {
    match &block.kind {
        Kind::New(path) if files.contains_key(path) => Err(format!("{path} exists already")),
        Kind::New(path) => {
            files.insert(path.clone(), block.content.clone());
            Ok(())
        }
        Kind::Changed(path) => {
            let file = files.get_mut(path).ok_or_else(|| format!("{path} does not exist"))?;
            *file = changed(file, &block.content).map_err(|problem| format!("{path} {problem}"))?;
            Ok(())
        }
        Kind::Test | Kind::Other => Ok(()),
    }
}

/// The file with the lines of a difference applied. Parts of the difference are separated by an empty line, and no part
/// starts or ends with one.
fn changed(file: &str, difference: &str) -> Result<String, String> {
    let mut file = file.to_owned();
    for part in difference.split("\n\n").filter(|part| !part.trim().is_empty()) {
        let side = |without: char| -> Result<String, String> {
            let mut lines = String::new();
            for line in part.lines() {
                let (mark, text) = line.split_at_checked(1).ok_or("has an empty line within a part")?;
                match mark {
                    " " | "-" | "+" if mark.starts_with(without) => {}
                    " " | "-" | "+" => lines.extend([text, "\n"]),
                    _ => return Err(format!("has a line that starts with neither ` `, `-` nor `+`: {line}")),
                }
            }
            Ok(lines)
        };
        let (old, new) = (side('+')?, side('-')?);
        match at_lines(&file, &old)[..] {
            [at] => file.replace_range(at..at + old.len(), &new),
            [] => return Err(format!("does not have these lines:\n{old}")),
            _ => return Err(format!("has these lines more than once:\n{old}")),
        }
    }
    Ok(file)
}

/// The positions at which whole lines are found.
fn at_lines(file: &str, lines: &str) -> Vec<usize> {
    let starts_line = |at: &usize| *at == 0 || file[..*at].ends_with('\n');
    file.match_indices(lines).map(|(at, _)| at).filter(starts_line).collect()
}

fn commands(blocks: &[Block]) -> Vec<(usize, &str)> {
    let tests = blocks.iter().filter(|block| block.kind == Kind::Test);
    let lines = tests.flat_map(|block| (block.line..).zip(block.content.lines()));
    lines.filter_map(|(line, text)| Some((line, text.strip_prefix("$ ")?))).collect()
}

// ---- the copy ------------------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// This crate, alone in a workspace and without the crates that only its benchmarks need.
fn sources() -> Files {
    let mut files = Files::new();
    let mut open = vec!["crates/core/src".to_owned(), "crates/core/tests".to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(root().join(&dir)).expect("a folder of the crate") {
            let entry = entry.expect("an entry of a folder");
            let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                open.push(name);
            } else {
                files.insert(name, read(&entry.path()));
            }
        }
    }
    let manifest = read(&root().join("crates/core/Cargo.toml"));
    files.insert("crates/core/Cargo.toml".to_owned(), without(&manifest, &["dev-dependencies", "[bench]"]));
    let workspace = without(&read(&root().join("Cargo.toml")), &["profile"]);
    let alone = |line: &str| match line.split(" = ").next() {
        Some("members") => "members = [\"crates/core\"]\n".to_owned(),
        Some("default-members") => String::new(),
        _ => format!("{line}\n"),
    };
    files.insert("Cargo.toml".to_owned(), workspace.lines().map(alone).collect());
    files.insert("Cargo.lock".to_owned(), read(&root().join("Cargo.lock")));
    files
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A manifest without the sections whose names start with one of these.
fn without(manifest: &str, sections: &[&str]) -> String {
    let mut is_kept = true;
    let mut kept = String::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            is_kept = !sections.iter().any(|name| section.starts_with(name));
        }
        if is_kept {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

/// Makes the folder hold exactly these files. Files that did not change are not written, so that little is compiled
/// again.
fn write(copy: &Path, files: &Files) {
    for dir in ["crates/core/src", "crates/core/tests"] {
        remove_others(copy, dir, files);
    }
    for (name, text) in files {
        let path = copy.join(name);
        let is_lock_of_before = name == "Cargo.lock" && path.exists();
        if !is_lock_of_before && fs::read_to_string(&path).ok().as_ref() != Some(text) {
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
            fs::write(&path, text).expect("the file can be written");
        }
    }
}

fn remove_others(copy: &Path, dir: &str, files: &Files) {
    for entry in fs::read_dir(copy.join(dir)).into_iter().flatten() {
        let entry = entry.expect("an entry of a folder");
        let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            remove_others(copy, &name, files);
        } else if !files.contains_key(&name) {
            fs::remove_file(entry.path()).expect("the file can be removed");
        }
    }
}

/// Runs `cargo test ..`, of which at least one test must run.
fn test(copy: &Path, command: &str) -> Result<(), String> {
    let mut words = command.split_whitespace();
    if words.next() != Some("cargo") {
        return Err("is not a command of cargo".to_owned());
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(words).arg("--offline").current_dir(copy);
    cargo.env("CARGO_TARGET_DIR", copy.join("target")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.env("CARGO_INCREMENTAL", "1").env_remove("RUSTFLAGS").env_remove("RUSTC_WRAPPER");
    let output = cargo.output().map_err(|error| format!("cannot be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        return Err(format!("fails\n{out}\n{err}"));
    }
    if has_run_tests(&out) { Ok(()) } else { Err(format!("runs no test\n{out}")) }
}

fn has_run_tests(output: &str) -> bool {
    output.lines().any(|line| line.starts_with("test result: ok. ") && !line.contains(" 0 passed"))
}

// ---- the rules detect violations -----------------------------------------------------------------------------------

#[test]
fn blocks_are_recognized_by_their_marks() {
    let page = "text\n```rust file=a/b.rs\nfn a() {}\n```\n```diff file=c.rs\n+x\n```\n```console test\n$ cargo test x\nout\n```\n```rust\n```\n";
    let found = blocks(page);
    let kinds: Vec<&Kind> = found.iter().map(|block| &block.kind).collect();
    assert_eq!(kinds, [&Kind::New("a/b.rs".to_owned()), &Kind::Changed("c.rs".to_owned()), &Kind::Test, &Kind::Other]);
    assert_eq!((found[0].line, found[0].content.as_str()), (3, "fn a() {}\n"));
    assert_eq!(commands(&found), [(9, "cargo test x")]);
}

#[test]
fn a_difference_is_applied_where_its_lines_are_and_refused_elsewhere() {
    assert_eq!(changed("a\nb\nc\n", " a\n-b\n+x\n+y\n").as_deref(), Ok("a\nx\ny\nc\n"));
    assert_eq!(changed("a\nb\nc\n", "+x\n a\n\n c\n+y\n").as_deref(), Ok("x\na\nb\nc\ny\n"), "two parts");
    assert!(changed("a\nb\n", " c\n+x\n").is_err_and(|printed| printed.starts_with("does not have")));
    assert!(changed("a\na\n", " a\n+x\n").is_err_and(|printed| printed.starts_with("has these lines more than once")));
    assert!(changed("ab\n", " b\n+x\n").is_err(), "only whole lines");
    assert!(changed("a\n", "a\n").is_err_and(|printed| printed.starts_with("has a line that starts with neither")));
    let mut files = Files::from([("a.rs".to_owned(), "x\n".to_owned())]);
    let block = |kind| Block { line: 1, kind, content: "y\n".to_owned() };
    assert!(apply(&block(Kind::New("a.rs".to_owned())), &mut files).is_err(), "a.rs exists already");
    assert!(apply(&block(Kind::Changed("b.rs".to_owned())), &mut files).is_err(), "b.rs does not exist");
}

#[test]
fn a_run_without_tests_is_detected() {
    assert!(has_run_tests("test result: ok. 1 passed; 0 failed; 0 ignored\n"));
    assert!(!has_run_tests("running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 12 filtered out\n"));
}

#[test]
fn the_copy_needs_only_this_crate() {
    let files = sources();
    assert!(files["Cargo.toml"].contains("members = [\"crates/core\"]"));
    assert!(!files["crates/core/Cargo.toml"].contains("criterion"));
    assert!(files.contains_key("crates/core/src/lib.rs"));
}
