//! Files that tasks write for other tasks: stages name them by pattern, nodes by the digest of their contents.

use super::{NodeId, StageSpec};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};

/// Stands for the index of the writing task in the name of an output, and of the reading task in a pattern of inputs.
pub const INDEX: &str = "{index}";
/// Where inputs appear in a task's working directory: `inputs/STAGE/INDEX/NAME`.
pub const INPUTS: &str = "inputs";
/// The most files that one task may read.
pub const MAX_INPUTS: u64 = 100_000;
/// The longest name of an output, in bytes.
pub const MAX_NAME: usize = 1_024;
/// The longest name of a file or a directory, in bytes: of a part of an output's name, and of a stage.
pub const MAX_PART: usize = 255;
/// The digits of the largest index.
pub(super) const INDEX_DIGITS: usize = 20;

/// The SHA-256 of a file's contents, by which nodes name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

/// A file that a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredFile {
    pub digest: Digest,
    pub bytes: u64,
}

/// A declared output of an attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutputFile {
    pub name: String,
    pub digest: Digest,
    pub bytes: u64,
}

/// A file that an attempt finds in its working directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InputFile {
    /// Relative to the working directory.
    pub path: String,
    pub digest: Digest,
    pub bytes: u64,
    /// Nodes that are known to have it; only some of them if there are many.
    pub holders: Vec<NodeId>,
}

/// The files in the report of an attempt's end.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct EndedFiles {
    /// Its outputs, stored on the node that ran it.
    pub outputs: Vec<OutputFile>,
    /// Inputs that could not be fetched, with the nodes that were asked.
    pub missing: Vec<(Digest, NodeId)>,
}

/// Outputs of one earlier stage that a stage reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InputSpec {
    /// One of the stages that this stage depends on.
    pub stage: u32,
    /// A pattern over the names of its tasks' outputs.
    pub files: String,
}

/// The result of a fetch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fetched {
    Done,
    /// The node that was asked does not have it.
    Absent,
    /// The received data is not the file.
    Wrong,
    /// The received data is not the file, and the node that was asked found that its copy is damaged.
    Spoiled,
    /// The node that was asked does not answer.
    Unreachable,
    /// The node that was asked sent the beginning and then stopped answering.
    CutShort,
    /// This node cannot store it; the text gives the reason and a remedy.
    NoRoom(String),
    /// The node that was asked sends it to others now, and named nodes that have received it.
    Busy(Vec<NodeId>),
}

impl StageSpec {
    /// The outputs of the stage that match the pattern for the reading task of index `reader`: positions of tasks, in order, and
    /// names.
    pub fn select_outputs(&self, files: &str, reader: u64) -> Vec<(u32, String)> {
        let mut found = Vec::new();
        self.visit_outputs(files, reader, |position, name| found.push((position, name.to_owned())));
        found.sort_unstable();
        found
    }

    /// The number of these outputs, without a list of them.
    pub fn count_outputs(&self, files: &str, reader: u64) -> u64 {
        let mut found = 0;
        self.visit_outputs(files, reader, |_, _| found += 1);
        found
    }

    fn visit_outputs(&self, files: &str, reader: u64, mut visit: impl FnMut(u32, &str)) {
        let wanted = name_for(files, reader);
        let is_exact = !wanted.contains('*');
        let mut name = String::new();
        for template in &self.outputs {
            if !template.contains(INDEX) {
                if matches(&wanted, template) {
                    (0..self.tasks.len()).for_each(|position| visit(position, template));
                }
            } else if is_exact {
                let index = index_in(template, &wanted);
                let position = index.and_then(|index| self.tasks.position_of(index));
                position.into_iter().for_each(|position| visit(position, &wanted));
            } else {
                for position in 0..self.tasks.len() {
                    write_name(template, self.tasks.index_value(position), &mut name);
                    if matches(&wanted, &name) {
                        visit(position, &name);
                    }
                }
            }
        }
    }

    /// How many files the task at this position reads from the stages before it.
    pub fn count_inputs(&self, before: &[StageSpec], position: u32) -> u64 {
        let index = self.tasks.index_value(position);
        let of = |input: &InputSpec| before[input.stage as usize].count_outputs(&input.files, index);
        self.inputs.iter().fold(0, |sum: u64, input| sum.saturating_add(of(input)))
    }

    /// Tasks that may read the most files: if the tasks differ, the first and the last are assumed to.
    pub fn samples_of_readers(&self) -> impl Iterator<Item = u32> {
        let by_index = self.inputs.iter().any(|input| input.files.contains(INDEX));
        let last = self.tasks.len().saturating_sub(1);
        std::iter::once(0).chain((by_index && last > 0).then_some(last))
    }

    /// Whether its tasks write or read files.
    pub fn has_files(&self) -> bool {
        !self.outputs.is_empty() || !self.inputs.is_empty()
    }
}

/// The name or pattern for the task of this index.
pub fn name_for(text: &str, index: u64) -> String {
    text.replace(INDEX, &index.to_string())
}

/// The same, written over `name`.
fn write_name(text: &str, index: u64, name: &mut String) {
    name.clear();
    for (number, part) in text.split(INDEX).enumerate() {
        if number > 0 {
            // Writing to a String cannot fail.
            let _ = write!(name, "{index}");
        }
        name.push_str(part);
    }
}

/// The path of an output of the task with this index for the tasks that read it.
pub fn input_path(stage: &str, index: u64, name: &str) -> String {
    format!("{INPUTS}/{stage}/{index}/{name}")
}

/// The index for which the template gives this name.
fn index_in(template: &str, name: &str) -> Option<u64> {
    let (before, _) = template.split_once(INDEX)?;
    let digits: String = name.strip_prefix(before)?.chars().take_while(char::is_ascii_digit).collect();
    // The text after the index may start with a digit, too.
    let candidates = (1..=digits.len()).rev().filter_map(|length| digits[..length].parse().ok());
    candidates.into_iter().find(|index| name_for(template, *index) == name)
}

/// Whether the name matches the pattern, in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Whether this can be a declared output: a path that stays in the working directory.
///
/// # Errors
/// The problem and a remedy.
pub fn check_output(name: &str) -> Result<(), (&'static str, &'static str)> {
    let mut braces = name.replace(INDEX, "0");
    braces.retain(|c| c == '{' || c == '}');
    let mut parts = name.split('/');
    if name.is_empty() || name.len() > MAX_NAME {
        Err(("it is empty or longer than 1024 bytes", "name a file, such as `counts.txt`"))
    } else if name.chars().any(char::is_control) {
        Err(("it contains a control character", "remove it"))
    } else if name.starts_with('/') {
        Err(("it is absolute", "write a path relative to the task's working directory, such as `counts.txt`"))
    } else if parts.any(|part| part.is_empty() || part == "." || part == "..") {
        Err(("it has an empty part, `.` or `..`", "write a path that stays in the task's working directory"))
    } else if name.split('/').any(|part| longest(part) > MAX_PART) {
        Err(("a part of it can be longer than 255 bytes, the limit of a file name", "give it a shorter name"))
    } else if name.contains('*') {
        Err(("an output is one file, not a pattern", "name each file; stages that read them can use `*`"))
    } else if !braces.is_empty() {
        Err(("the only placeholder in braces is `{index}`", "use `{index}`, or remove the braces"))
    } else if name == INPUTS || name.starts_with("inputs/") {
        Err(("`inputs` is the directory of input files", "choose another directory"))
    } else {
        Ok(())
    }
}

/// The most bytes that this part of a name can have.
fn longest(part: &str) -> usize {
    let indexes = part.matches(INDEX).count();
    part.len() - indexes * INDEX.len() + indexes * INDEX_DIGITS
}

impl Digest {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Digest> {
        let mut digest = Digest([0; 32]);
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (place, byte) in digest.0.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
        }
        Some(digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{IndexRange, TaskSet};

    fn stage(tasks: TaskSet, outputs: &[&str]) -> StageSpec {
        StageSpec { tasks, outputs: outputs.iter().map(|name| (*name).to_owned()).collect(), ..StageSpec::default() }
    }

    fn selected(stage: &StageSpec, files: &str, reader: u64) -> Vec<(u32, String)> {
        stage.select_outputs(files, reader)
    }

    #[test]
    fn a_pattern_selects_all_files_those_of_one_task_or_one_of_each() {
        let indexes = TaskSet::Indexes(vec![IndexRange { first: 10, last: 30, step: 10 }]);
        let map = stage(indexes, &["log", "part-{index}", "to-0", "to-1"]);
        let names = |files: &str, reader: u64| -> Vec<String> {
            assert_eq!(map.count_outputs(files, reader), selected(&map, files, reader).len() as u64);
            selected(&map, files, reader).iter().map(|(position, name)| format!("{position}:{name}")).collect()
        };
        assert_eq!(names("*", 0).len(), 12);
        assert_eq!(names("log", 0), ["0:log", "1:log", "2:log"]);
        assert_eq!(names("part-{index}", 20), ["1:part-20"]);
        assert_eq!(names("part-*", 20), ["0:part-10", "1:part-20", "2:part-30"]);
        assert_eq!(names("to-{index}", 1), ["0:to-1", "1:to-1", "2:to-1"]);
        for nothing in ["part-{index}x", "part-", "lo", "og", "to-{index}"] {
            assert_eq!(selected(&map, nothing, 25), [], "{nothing}");
        }
    }

    #[test]
    fn an_index_is_found_beside_other_digits() {
        let part = stage(TaskSet::Count(20), &["a{index}1"]);
        assert_eq!(selected(&part, "a{index}1", 11), [(11, "a111".to_owned())]);
        assert_eq!(selected(&part, "a011", 0), [], "indexes have no leading zeros");
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, is_one) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abd", false),
            ("*b*", "abc", true),
            ("*bb*b", "abb", false),
            ("*.txt", "a.txt.gz", false),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches(pattern, name), is_one, "{pattern} {name}");
        }
    }

    #[test]
    fn an_output_stays_in_the_working_directory() {
        for good in ["counts.txt", "a/b/part-{index}.txt", "..a", "input"] {
            assert_eq!(check_output(good), Ok(()), "{good}");
        }
        let (longest, too_long) = ("a".repeat(235) + INDEX, "a".repeat(236) + INDEX);
        assert_eq!((check_output(&longest), check_output(&too_long).is_err()), (Ok(()), true));
        for bad in
            ["", "/tmp/a", "a/../b", "..", "./a", "a//b", "a/", "*.txt", "{item}", "a{", "inputs/a", "inputs", "a\nb"]
        {
            assert!(check_output(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest(std::array::from_fn(|byte| byte as u8 * 7));
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        for wrong in ["", "0g", &digest.to_string()[1..], &digest.to_string().to_uppercase()] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
