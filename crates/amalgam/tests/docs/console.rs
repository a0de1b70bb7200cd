//! Blocks marked ```` ```console run ````: `$ ` starts a command, `> ` continues it, and its output follows.

use crate::markdown::Page;
use crate::normal::{matches, renewed};
use crate::shell::Shell;

/// The info string of blocks that are run.
const MARK: &str = "console run";

/// The runnable blocks of a page as steps, in their order.
pub fn blocks(page: &Page) -> Vec<Step> {
    page.blocks()
        .iter()
        .filter(|block| block.info == MARK)
        .flat_map(|block| steps(block.line, &block.content))
        .collect()
}

/// A command and its expected output.
#[derive(PartialEq, Eq, Debug)]
pub struct Step {
    /// The line of the command, from 1.
    pub line: usize,
    pub command: String,
    /// The first line of output.
    pub output_line: usize,
    pub output: Vec<String>,
}

fn steps(first_line: usize, content: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, text) in (first_line..).zip(content.lines()) {
        let open = steps.last_mut().filter(|step| step.output.is_empty());
        match (text.strip_prefix("$ "), open) {
            (Some(command), _) => {
                steps.push(Step { line, command: command.to_owned(), output_line: line + 1, output: Vec::new() });
            }
            (None, Some(step)) if step.command.ends_with('\\') || text.starts_with("> ") || text == ">" => {
                step.command.push('\n');
                step.command
                    .push_str(text.strip_prefix('>').map_or(text, |text| text.strip_prefix(' ').unwrap_or(text)));
                step.output_line = line + 1;
            }
            (None, _) => {
                // Lines before the first command would be the output of a command that does not exist.
                let nothing = || Step { line, command: String::new(), output_line: line, output: Vec::new() };
                if steps.is_empty() {
                    steps.push(nothing());
                }
                steps.last_mut().expect("there is one").output.push(text.to_owned());
            }
        }
    }
    steps
}

/// Runs the blocks of a page. Returns the failures, and if there are any the page with the actual outputs.
pub fn run(page: &Page) -> (Vec<String>, Option<String>) {
    let misplaced = page.blocks().into_iter().filter(|block| block.info == MARK && !block.is_at_margin);
    let mut wrong: Vec<String> =
        misplaced.map(|block| format!("{}:{}: a runnable block must not be indented", page.path, block.line)).collect();
    if !wrong.is_empty() {
        return (wrong, None);
    }
    let mut shell = match Shell::start() {
        Ok(shell) => shell,
        Err(problem) => return (vec![format!("{}: no shell: {problem}", page.path)], None),
    };
    let mut lines: Vec<String> = page.text.lines().map(str::to_owned).collect();
    let mut shift = 0_isize;
    for step in blocks(page) {
        let got = match shell.run(&step.command) {
            Ok(got) => got,
            Err(problem) => {
                wrong.push(format!("{}:{}: `{}` {problem}", page.path, step.line, step.command));
                return (wrong, None);
            }
        };
        let expected: Vec<&str> = step.output.iter().map(String::as_str).collect();
        let got: Vec<&str> = got.lines().map(str::trim_end).collect();
        if !matches(&expected, &got) {
            wrong.push(failure(page, &step, &got, &shell.said_by_daemons()));
            let at = (step.output_line - 1).saturating_add_signed(shift);
            lines.splice(at..at + expected.len(), renewed(&expected, &got));
            shift += got.len() as isize - expected.len() as isize;
        }
    }
    let written = (!wrong.is_empty()).then(|| lines.join("\n") + "\n");
    (wrong, written)
}

fn failure(page: &Page, step: &Step, got: &[&str], daemons: &str) -> String {
    let block = |lines: &str| lines.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let (expected, got) = (block(&step.output.join("\n")), block(&got.join("\n")));
    let place = format!("{}:{}", page.path, step.line);
    let daemons = if daemons.is_empty() { String::new() } else { format!("  daemons said\n{}", block(daemons)) };
    format!("{place}: `{}` prints something else\n  expected\n{expected}  got\n{got}{daemons}", step.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(block: &str) -> Page {
        Page::new("page.md".to_owned(), format!("# Title\n\n```console run\n{block}```\n\nend\n"))
    }

    #[test]
    fn commands_and_their_outputs_are_distinguished() {
        let of = |block: &str| blocks(&page(block));
        let step = |line, command: &str, output_line, output: &[&str]| Step {
            line,
            command: command.to_owned(),
            output_line,
            output: output.iter().map(|&line| line.to_owned()).collect(),
        };
        assert_eq!(of("$ a\nb\n$ c\n"), [step(4, "a", 5, &["b"]), step(6, "c", 7, &[])]);
        assert_eq!(of("$ cat <<E\n> x\n>\n> E\nx\n"), [step(4, "cat <<E\nx\n\nE", 8, &["x"])]);
        assert_eq!(of("$ a \\\n    b\nc\n"), [step(4, "a \\\n    b", 6, &["c"])]);
        assert_eq!(of("a\n"), [step(4, "", 4, &["a"])]);
        let other = Page::new("page.md".to_owned(), "```console\n$ rm -rf /\n```\n".to_owned());
        assert!(blocks(&other).is_empty(), "only marked ones are run");
    }

    #[test]
    fn a_page_that_is_true_is_left_alone() {
        let (wrong, written) = run(&page("$ printf 'a\\nb\\nc\\n'\na\n...\nc\n$ x=1\n$ echo $x took 2s\n1 took 5s\n"));
        assert_eq!((wrong, written), (Vec::new(), None), "one shell has all commands");
    }

    #[test]
    fn a_page_with_wrong_output_is_reported_by_line_and_renewed() {
        let page = page("$ echo a\nb\nc\n$ echo took 2s; echo d\ntook 5s\n$ false\n$ echo $?\n0\n");
        let (wrong, written) = run(&page);
        let stdout = "page.md:4: `echo a` prints something else\n  expected\n    b\n    c\n  got\n    a\n";
        assert_eq!(wrong[0], stdout);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        let renewed = "# Title\n\n```console run\n$ echo a\na\n$ echo took 2s; echo d\ntook 5s\nd\n$ false\n$ echo $?\n1\n```\n\nend\n";
        assert_eq!(written.as_deref(), Some(renewed));
    }

    #[test]
    fn an_indented_block_is_refused() {
        let page = Page::new("page.md".to_owned(), "* x\n\n  ```console run\n  $ a\n  ```\n".to_owned());
        let (wrong, _) = run(&page);
        assert_eq!(wrong, ["page.md:4: a runnable block must not be indented"]);
    }

    #[test]
    fn a_cluster_of_a_page_answers_at_the_pages_port_and_ends_with_it() {
        let text = "$ amalgam dev --cpus 1 --memory 64MiB &\n\
            ready: 1 node at http://127.0.0.1:7433, preset amalgam, state in /home/ada/.local/state/amalgam\n\
            $ amalgam submit -- true\njob 1 submitted: true, 1 task\n\
            $ amalgam wait 1 --server http://127.0.0.1:7433\njob 1 succeeded\n\
            $ pwd\n/home/ada/amalgam\n";
        let (wrong, _) = run(&page(text));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
