//! Pages of help texts, as the programs print them.

use std::path::Path;
use std::process::{Command, Stdio};

/// The `--help` of every visible verb of a program, below this title.
pub fn help_page(title: &str, program: &str, file: &Path) -> String {
    let mut page = title.to_owned();
    // In the order in which a reader follows the lists of commands.
    let mut open: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(verb) = open.pop() {
        let help = help(file, &verb);
        let name = [&[program.to_owned()], verb.as_slice()].concat().join(" ");
        page.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end()));
        let below = subcommands(&help).into_iter().map(|name| [verb.as_slice(), &[name]].concat());
        open.extend(below.rev());
    }
    page
}

fn help(file: &Path, verb: &[String]) -> String {
    let mut command = Command::new(file);
    command.args(verb).arg("--help").env_clear().env("HOME", "/").stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{verb:?} --help: {output:?}");
    String::from_utf8(output.stdout)
        .expect("help is text")
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Continued descriptions are indented further.
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The first line in which two texts differ.
pub fn difference(path: &str, is: &str, wanted: &str) -> Vec<String> {
    if is == wanted {
        return Vec::new();
    }
    let at = is.lines().zip(wanted.lines()).take_while(|(is, wanted)| is == wanted).count();
    let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
    let (line_number, is, wanted) = (at + 1, line(is), line(wanted));
    vec![format!("{path}:{line_number}: says\n    {is}\nand the program\n    {wanted}\nUPDATE_DOCS=1 writes it anew")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_help_without_their_descriptions() {
        let help = "Usage: x\n\nCommands:\n  one   First,\n          and more\n  two-b Second\n\nOptions:\n  -h\n";
        assert_eq!(subcommands(help), ["one", "two-b"]);
    }

    #[test]
    fn a_page_that_differs_from_the_program_is_reported_by_line() {
        assert!(difference("p", "a\nb\n", "a\nb\n").is_empty());
        assert!(difference("p", "a\nb\n", "a\nc\n")[0].starts_with("p:2: says\n    b\nand the program\n    c\n"));
        assert_eq!(difference("p", "", "a\n").len(), 1);
    }
}
