//! Differences between two runs of the same commands that readers can ignore.

use regex::Regex;
use std::sync::LazyLock;

/// Applied in this order; a later rule sees the result of the earlier ones.
static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    const UNIT: &str = "(?:ns|us|µs|ms|s|m|h|d)";
    let rules = [
        (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?".to_owned(), "TIME"),
        (r"\b\d+:\d\d:\d\d(?:\.\d+)?\b".to_owned(), "TIME"),
        (r"\b\d+(?:\.\d+)? (?:[A-Za-z]+-s|seconds?|minutes?|hours?|days?|ns|us|µs|ms|s)\b".to_owned(), "DURATION"),
        (format!(r"\b(?:\d+(?:\.\d+)?{UNIT})+\b"), "DURATION"),
        (r"\b(pid|process)([ =:]+)\d+\b".to_owned(), "$1${2}ID"),
        (r"\b\d+\.\d+\.\d+\.\d+:\d{5}\b".to_owned(), "ADDRESS"),
        (r#"\b(amalgam|"version":) "?\d+\.\d+\.\d+[^\s"]*"#.to_owned(), "$1 VERSION"),
        (r"\s+".to_owned(), " "),
    ];
    rules.into_iter().map(|(rule, instead)| (Regex::new(&rule).expect("a rule"), instead)).collect()
});

/// A line with times, durations, process ids, temporary addresses and versions replaced, and each run of spaces as one space.
pub fn normal(line: &str) -> String {
    let replaced = |text: String, (rule, instead): &(Regex, &str)| rule.replace_all(&text, *instead).into_owned();
    RULES.iter().fold(line.trim_end().to_owned(), replaced)
}

/// Whether the lines are as expected; `...` stands for any number of lines.
pub fn matches(expected: &[&str], got: &[&str]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((&"...", rest)) => (0..=got.len()).any(|skipped| matches(rest, &got[skipped..])),
        Some((line, rest)) => {
            got.split_first().is_some_and(|(first, others)| normal(line) == normal(first) && matches(rest, others))
        }
    }
}

/// The actual lines; where they match the expected ones, the expected text is kept.
pub fn renewed(expected: &[&str], got: &[&str]) -> Vec<String> {
    let mut rest = expected;
    let mut lines = Vec::new();
    for line in got {
        match rest.iter().position(|expected| normal(expected) == normal(line)) {
            Some(at) => {
                lines.push(rest[at].to_owned());
                rest = &rest[at + 1..];
            }
            None => lines.push((*line).to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_lengths_do_not_matter_and_everything_else_does() {
        let same = |one: &str, other: &str| assert_eq!(normal(one), normal(other));
        same("2026-11-25T04:51:15.591015Z  started", "2027-01-02T03:04:05Z  started");
        same("started after 18.5 ms (predicted: 0 to 30.7 ms)", "started after 2 s (predicted: 0 to 1 s)");
        same("waited 1m30s", "waited 12.6ms");
        same("gave  2.983 cpu-s", "gave  12.1 cpu-s");
        same("a   b", "a b  ");
        same("pid 12 at 127.0.0.1:43210", "pid 3456 at 127.0.0.1:51234");
        same("amalgam 0.1.0", "amalgam 1.22.3-rc.1");
        let differ = |one: &str, other: &str| assert_ne!(normal(one), normal(other));
        differ("job 1 submitted", "job 2 submitted");
        differ("task 2.0.2", "task 2.0.3");
        differ("256 MiB", "512 MiB");
        differ("http://127.0.0.1:7433", "http://127.0.0.1:7434");
        differ("2 cpu", "3 cpu");
    }

    #[test]
    fn three_dots_stand_for_any_lines() {
        assert!(matches(&["a", "...", "d"], &["a", "b", "c", "d"]));
        assert!(matches(&["a", "..."], &["a"]));
        assert!(!matches(&["a", "...", "d"], &["a", "b", "c"]));
        assert!(!matches(&["a"], &["a", "b"]));
        assert!(!matches(&["a", "b"], &["a"]));
        assert!(!matches(&["a ..."], &["a b"]), "only alone on a line");
    }

    #[test]
    fn lines_that_did_not_change_keep_their_words() {
        assert_eq!(
            renewed(&["took 1s", "old", "took 2s"], &["took 5s", "new", "took 6s"]),
            ["took 1s", "new", "took 2s"]
        );
    }
}
