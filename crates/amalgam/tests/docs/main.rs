//! Checks of the documentation: links have targets, runnable blocks print the output shown, and reference pages name what the
//! program has. `UPDATE_DOCS=1` rewrites outputs and generated pages. docs/developers/testing.md explains the marks. A test
//! beside each rule shows that it detects a violation.

mod console;
mod help;
mod links;
mod markdown;
mod normal;
mod reference;
mod shell;

use markdown::Page;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

/// Pages outside of `docs/`.
const AT_THE_TOP: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

const HELP: &str = "# Help texts

What `--help` prints for every command, in one place. This page is generated: after a change, run
`UPDATE_DOCS=1 cargo test -p amalgam --test docs`.
";

/// How many pages run at the same time.
const RUNNERS: usize = 2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

fn is_update() -> bool {
    env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1")
}

/// All pages, by their paths in the repository.
fn pages() -> BTreeMap<String, Page> {
    let mut paths: Vec<PathBuf> = AT_THE_TOP.iter().map(|name| root().join(name)).collect();
    let mut open = vec![root().join("docs")];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a folder of docs") {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        (name.clone(), Page::new(name, text))
    };
    paths.into_iter().map(read).collect()
}

fn page(path: &str) -> Page {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    Page::new(path.to_owned(), text)
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let exists = |path: &str| root().join(path).exists();
    let wrong: Vec<String> = pages.values().flat_map(|page| links::broken(page, &pages, &exists)).collect();
    none(&wrong);
}

#[test]
fn the_summary_lists_every_page() {
    none(&links::unlisted(&page("docs/SUMMARY.md"), pages().keys().map(String::as_str)));
}

#[test]
fn runnable_blocks_print_the_output_shown() {
    let mut runnable: Vec<Page> = pages().into_values().filter(|page| !console::blocks(page).is_empty()).collect();
    assert!(!runnable.is_empty(), "no page has a runnable block");
    runnable.reverse();
    let (open, wrong) = (Mutex::new(runnable), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..RUNNERS {
            scope.spawn(|| {
                while let Some(page) = { open.lock().expect("no runner panics").pop() } {
                    let (found, written) = console::run(&page);
                    if let Some(text) = written.filter(|_| is_update()) {
                        fs::write(root().join(&page.path), text).expect("the page can be written");
                    } else {
                        wrong.lock().expect("no runner panics").extend(found);
                    }
                }
            });
        }
    });
    none(&wrong.into_inner().expect("no runner panics"));
}

#[test]
fn the_page_of_help_texts_is_the_programs() {
    let wanted = help::help_page(HELP, "amalgam", Path::new(env!("CARGO_BIN_EXE_amalgam")));
    let path = root().join("docs/reference/help.md");
    if is_update() {
        fs::create_dir_all(path.parent().expect("a page has a folder")).expect("the folder can be made");
        fs::write(&path, &wanted).expect("the page can be written");
    }
    let is = fs::read_to_string(&path).unwrap_or_default();
    none(&help::difference("docs/reference/help.md", &is, &wanted));
}

#[test]
fn hidden_verbs_are_left_out_and_all_others_are_there() {
    let page = help::help_page(HELP, "amalgam", Path::new(env!("CARGO_BIN_EXE_amalgam")));
    assert!(page.contains("## `amalgam node list`"), "{page}");
    assert!(!page.contains("amalgam executor"), "it is hidden");
}

#[test]
fn the_configuration_reference_names_every_key() {
    let path = "docs/cluster/configuration.md";
    none(&reference::wrong_keys(path, &reference::first_column(&page(path)), &reference::configuration()));
}

#[test]
fn the_page_of_job_files_names_every_key() {
    let schema = fs::read_to_string(root().join("docs/job.schema.json")).expect("the schema of job files");
    none(&reference::unnamed(&page("docs/job-files.md"), &reference::keys_of_schema(&schema)));
}
