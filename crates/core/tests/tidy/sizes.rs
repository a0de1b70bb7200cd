//! Files and functions are short, or a line before them gives the reason: `// Long: the reason`.

use super::{code_of, root, sources};

const FILE_LINES: usize = 700;
const FUNCTION_LINES: usize = 70;
const REASON: &str = "// Long: ";

#[test]
fn files_and_functions_are_not_too_long() {
    let all = sources(&root().join("crates"));
    let mut found: Vec<String> =
        all.iter().flat_map(|(path, text)| too_long(&format!("crates/{path}"), text)).collect();
    found.sort();
    assert!(found.is_empty(), "too long, without a line `{REASON}the reason` before it:\n    {}", found.join("\n    "));
}

fn too_long(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    if lines.len() > FILE_LINES && !lines.iter().take(3).any(|line| line.starts_with(REASON)) {
        found.push(path.to_owned());
    }
    let code: Vec<String> = code_of(text).lines().map(str::to_owned).collect();
    let mut at = 0;
    while at < code.len() {
        let Some((name, end)) = function(&code, at) else {
            at += 1;
            continue;
        };
        let above = lines[..at].iter().rev().take_while(|line| is_above(line));
        let has_reason = above.into_iter().any(|line| line.trim_start().starts_with(REASON));
        if end + 1 - at > FUNCTION_LINES && !has_reason {
            found.push(format!("{path}: {name}"));
        }
        // Inner functions are counted with the outer one.
        at = end + 1;
    }
    found
}

/// Lines that may be between the reason and its function.
fn is_above(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("#[")
}

/// The name of the function that starts in this line, and the line in which it ends.
fn function(code: &[String], at: usize) -> Option<(String, usize)> {
    let (_, after) = code[at].split_once("fn ").filter(|(before, _)| {
        let words = ["pub", "const", "unsafe", "async", "extern", "(super)", "(crate)"];
        before
            .split_whitespace()
            .all(|word| words.iter().any(|known| word.starts_with(known)) || word.starts_with("pub("))
    })?;
    let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    // Braces within parentheses are patterns of arguments.
    let (mut depth, mut brackets, mut is_open) = (0, 0, false);
    for (line, text) in code.iter().enumerate().skip(at) {
        for c in text.chars() {
            match c {
                '[' | '(' if !is_open => brackets += 1,
                ']' | ')' if !is_open => brackets -= 1,
                ';' if !is_open && brackets == 0 => return None,
                '{' if brackets == 0 => (depth, is_open) = (depth + 1, true),
                '}' if is_open => depth -= 1,
                _ => {}
            }
            if is_open && depth == 0 {
                return Some((name, line));
            }
        }
    }
    None
}

#[test]
fn a_file_or_function_that_is_too_long_is_detected() {
    let body = "    x();\n".repeat(FUNCTION_LINES);
    let long = format!("pub(super) fn long(a: [u8; 2]) {{\n{body}}}\n");
    assert_eq!(too_long("p", &long), ["p: long"]);
    assert!(too_long("p", &format!("// Long: one match of all messages.\n/// Doc.\n#[inline]\n{long}")).is_empty());
    assert_eq!(too_long("p", &format!("// Long: of another.\nfn short() {{}}\n{long}")), ["p: long"]);
    assert_eq!(too_long("p", &format!("fn long(A {{ a }}: A) {{\n{body}}}\n")), ["p: long"]);
    let short = "    x(\"{\"); // {\n".repeat(FUNCTION_LINES - 2);
    assert!(too_long("p", &format!("fn short() {{\n{short}}}\nfn other();\n")).is_empty());
    let file = "// x\n".repeat(FILE_LINES + 1);
    assert_eq!(too_long("p", &file), ["p"]);
    assert!(too_long("p", &format!("// Long: a table.\n{file}")).is_empty());
}
