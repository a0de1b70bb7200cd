//! The page of the lab's help texts equals the program's output. `UPDATE_DOCS=1` rewrites the page.

#[path = "../../amalgam/tests/docs/help.rs"]
mod help;

use std::env;
use std::fs;
use std::path::Path;

const TITLE: &str = "# Help texts of the lab

What `--help` of `amalgam-lab` prints for every command. This page is generated: after a change, run
`UPDATE_DOCS=1 cargo test -p amalgam-lab --test help`.
";

#[test]
fn the_page_of_help_texts_is_the_programs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/lab-help.md");
    let wanted = help::help_page(TITLE, "amalgam-lab", Path::new(env!("CARGO_BIN_EXE_amalgam-lab")));
    if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, &wanted).expect("the page can be written");
    }
    let is = fs::read_to_string(&path).unwrap_or_default();
    let wrong = help::difference("docs/reference/lab-help.md", &is, &wanted);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
