//! The size of arguments and environment that the kernel accepts when a program starts.

use super::byte_string::shown;
use super::{JobSpec, Program, StageSpec, TaskSet};
use std::fmt;

/// One argument, or one `NAME=value`, with the zero byte at its end: Linux's `MAX_ARG_STRLEN`.
pub const MAX_STRING: usize = 128 << 10;
/// All of them in total: a quarter of the stack, whose usual limit is 8 MiB.
pub const MAX_STRINGS: usize = 2 << 20;
/// The part of it for what the node and Amalgam add: variables, and the names of the program and of directories.
const ADDED: usize = 128 << 10;
/// What a string costs beside its bytes: the zero byte and a pointer.
const BESIDE: usize = 1 + size_of::<u64>();

/// Why no node could start a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooLarge {
    pub part: LaunchPart,
    pub bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchPart {
    /// A word of the command, by its place from 0.
    Word(usize),
    /// A variable, by its name.
    Variable(String),
    /// The item of the task at this place.
    Item(u32),
    All,
}

impl TooLarge {
    pub fn remedy(&self) -> &'static str {
        match self.part {
            LaunchPart::Word(_) => "put it into a file, and pass the file's name",
            LaunchPart::Variable(_) => "put the value into a file, and set the variable to the file's name",
            LaunchPart::Item(_) => "put the value into a file, and use the file's name as the item",
            LaunchPart::All => "put some of them into files, or export fewer variables",
        }
    }
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = MAX_STRING - 1;
        match &self.part {
            LaunchPart::Word(0) => write!(f, "the program's name")?,
            LaunchPart::Word(place) => write!(f, "argument {place} of the command")?,
            LaunchPart::Variable(name) => write!(f, "the variable `{name}` with its value")?,
            LaunchPart::Item(place) => write!(f, "item {place}, as the variable AMALGAM_ITEM,")?,
            LaunchPart::All => {
                let most = MAX_STRINGS - ADDED;
                return write!(
                    f,
                    "its arguments and variables have {} bytes in total; the kernel accepts {most} (a quarter of the stack)",
                    self.bytes
                );
            }
        }
        write!(f, " has {} bytes; the kernel accepts {most} (128 KiB)", self.bytes)
    }
}

/// Whether every task of a job can be started.
///
/// # Errors
/// The place of the stage, and its first part that is too large.
pub fn check(job: &JobSpec) -> Result<(), (usize, TooLarge)> {
    let wrong = |(index, stage)| check_stage(stage, job.submit_dir.len()).err().map(|wrong| (index, wrong));
    job.stages.iter().enumerate().find_map(wrong).map_or(Ok(()), Err)
}

/// Whether every task of a stage can be started.
///
/// # Errors
/// The first part that is too large.
pub fn check_stage(stage: &StageSpec, submit_dir: usize) -> Result<(), TooLarge> {
    let Program { command, env, .. } = &*stage.program;
    let words = command.iter().enumerate().map(|(place, word)| (LaunchPart::Word(place), word.len()));
    let variables =
        env.iter().map(|(name, value)| (LaunchPart::Variable(shown(name.as_bytes())), name.len() + 1 + value.len()));
    let largest = match &stage.tasks {
        TaskSet::Each(items) => (0..).zip(items.iter()).map(|(place, item)| (item.len(), place)).max(),
        _ => None,
    };
    let item = largest.map(|(bytes, place)| (LaunchPart::Item(place), "AMALGAM_ITEM=".len() + bytes));
    let mut all = "AMALGAM_SUBMIT_DIR=".len() + submit_dir + BESIDE;
    for (part, bytes) in words.chain(variables).chain(item) {
        if bytes >= MAX_STRING {
            return Err(TooLarge { part, bytes });
        }
        all += bytes + BESIDE;
    }
    if all > MAX_STRINGS - ADDED { Err(TooLarge { part: LaunchPart::All, bytes: all }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Items;
    use std::sync::Arc;

    fn stage(command: &[&str], env: &[(&str, &str)], items: &[&str]) -> StageSpec {
        let command = command.iter().map(|&word| word.into()).collect();
        let env = env.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let mut each = Items::default();
        items.iter().for_each(|item| each.push(item).unwrap());
        let tasks = if items.is_empty() { TaskSet::Count(1) } else { TaskSet::Each(each) };
        StageSpec { tasks, program: Arc::new(Program { command, env, ..Program::default() }), ..StageSpec::default() }
    }

    #[test]
    fn one_string_and_the_total_have_the_kernels_limits() {
        let most = "x".repeat(MAX_STRING - 1);
        let part = |stage: &StageSpec| check_stage(stage, 1).err().map(|wrong| wrong.part);
        assert_eq!(part(&stage(&["a", &most], &[], &[])), None);
        assert_eq!(part(&stage(&["a", &format!("{most}x")], &[], &[])), Some(LaunchPart::Word(1)));
        assert_eq!(part(&stage(&["a"], &[("A", &most[2..])], &[])), None);
        assert_eq!(part(&stage(&["a"], &[("A", &most[1..])], &[])), Some(LaunchPart::Variable("A".to_owned())));
        assert_eq!(part(&stage(&["a"], &[], &["b", &most[13..]])), None);
        assert_eq!(part(&stage(&["a"], &[], &["b", &most[12..]])), Some(LaunchPart::Item(1)));
        let many = vec![&most[..]; 15];
        assert_eq!(part(&stage(&many, &[], &[])), Some(LaunchPart::All));
        assert_eq!(part(&stage(&many[..14], &[], &[])), None);
        let short = vec!["x"; 200_000];
        assert_eq!(part(&stage(&short, &[], &[])), Some(LaunchPart::All), "each costs a pointer");
    }
}
