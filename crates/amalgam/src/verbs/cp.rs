//! `amalgam cp`: copies declared outputs of tasks to this machine.

use crate::client::Client;
use crate::connection::Connection;
use crate::failure::{Failure, Kind, Result};
use crate::output_files::{self, Manner, cannot};
use crate::selectors::Target;
use crate::verbs::outputs::place;
use crate::{discovery, output, show};
use amalgam_core::vocabulary::files::check_output;
use amalgam_core::why::counted;
use amalgam_daemon::api::OutputFile;
use clap::Args;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam cp 7.count.3:counts.txt .                an output of task 3 of stage count
  amalgam cp 7.count.3:counts.txt three.txt        the same, under another name
  amalgam cp '7.map.*:part-*' '7.reduce:*' parts/  outputs of all tasks of two stages
  amalgam cp --tree 'last:*' results               all, as results/STAGE/PLACE/NAME
  amalgam cp 7.count.3:counts.txt - | sort         to standard output
A file is there as a whole, with the checksum that it had on its node, or not at all. One that is
there already and the same is left as it is.")]
pub struct CpArgs {
    /// Outputs: JOB, JOB.STAGE, JOB.STAGE.PLACE, JOB.STAGE.FIRST-LAST or an attempt, a colon, and the name of an output, in which `*`
    /// stands for any text
    #[arg(required = true, value_name = "TASKS:NAME", value_parser = Source::parse)]
    sources: Vec<Source>,
    /// A file, a directory (with a slash at its end if it has to be created), or - for standard output
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Write to TO/STAGE/PLACE/NAME instead of TO/NAME
    #[arg(long)]
    tree: bool,
    /// Replace existing files that differ
    #[arg(long)]
    force: bool,
    /// Keep what has arrived, in .FILE.amalgam-part, if the copy is interrupted, and continue from there
    #[arg(long = "continue")]
    continues: bool,
}

/// Outputs of tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Source {
    target: Target,
    pattern: String,
}

impl Source {
    fn parse(text: &str) -> std::result::Result<Source, String> {
        let (tasks, pattern) = text
            .split_once(':')
            .filter(|(_, pattern)| !pattern.is_empty())
            .ok_or("write the tasks, a colon and the name of an output, such as `7.count.3:counts.txt` or `7:*`")?;
        // All tasks of a stage, or all stages.
        let tasks = tasks.strip_suffix(".*").unwrap_or(tasks);
        if tasks.contains('*') {
            return Err(
                "`*` stands for all tasks of a stage or all stages of a job, at the end: `7.count.*:NAME`, `7.*:NAME`"
                    .to_owned(),
            );
        }
        Ok(Source { target: Target::parse(tasks)?, pattern: pattern.to_owned() })
    }
}

/// An output and its job.
struct Found {
    job: u64,
    file: OutputFile,
}

pub fn execute(args: CpArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let found = find(&client, &args.sources)?;
    if args.to == Path::new("-") {
        let [Found { job, file }] = &found[..] else { return Err(too_many(&found, "standard output is one file")) };
        output_files::print(&client, *job, file, &mut output::stdout())?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_directory = args.to.is_dir() || args.to.as_os_str().as_encoded_bytes().ends_with(b"/") || args.tree;
    let paths = match (&found[..], is_directory) {
        ([_], false) => vec![args.to.clone()],
        (_, false) => {
            return Err(too_many(&found, &format!("{} is not a directory: write `{0}/`", args.to.display())));
        }
        (_, true) => {
            fs::create_dir_all(&args.to).map_err(|error| cannot("make", &args.to, &error))?;
            if args.tree {
                found.iter().map(|found| place(&args.to, &found.file)).collect::<Result<_>>()?
            } else {
                names_in(&args.to, &found)?
            }
        }
    };
    let directory = match args.to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        _ if is_directory => args.to.as_path(),
        Some(parent) => parent,
        None => Path::new("."),
    };
    let manner = Manner { force: args.force, continues: args.continues };
    let (mut failures, mut bytes, mut written) = (Vec::new(), 0, 0);
    for (Found { job, file }, path) in found.iter().zip(&paths) {
        match output_files::fetch(&client, *job, file, directory, path, manner) {
            Ok(_) => (written, bytes) = (written + 1, bytes + file.bytes),
            // Without a server the other files would fail as well.
            Err(failure) if failure.kind == Kind::Unreachable => return Err(failure),
            Err(failure) => failures.push(failure),
        }
    }
    show::print(&format!("{}, {} to {}\n", counted(written, "file"), show::bytes(bytes), args.to.display()))?;
    show::failures(failures.iter());
    Ok(ExitCode::from(u8::from(!failures.is_empty())))
}

/// The selected outputs, each once.
fn find(client: &Client, sources: &[Source]) -> Result<Vec<Found>> {
    let mut found: BTreeMap<(u64, String, String), OutputFile> = BTreeMap::new();
    for Source { target, pattern } in sources {
        let id = target.job(client)?;
        let job = client.job(id)?;
        let meant = target.find(client, &job)?;
        for file in output_files::find(client, &job, &meant, pattern)? {
            // The names are the server's, and may not point elsewhere.
            check_output(&file.name).map_err(|(problem, _)| {
                let what = format!("output `{}` of task {}: {problem}", file.name.escape_debug(), file.task);
                Failure::new(what, "use a server of this program's version")
            })?;
            found.insert((id, file.task.clone(), file.name.clone()), file);
        }
        if !job.summary.state.has_ended() {
            show::note(&format!("job {id} has not ended: these are the outputs of the tasks that have succeeded"));
        }
    }
    Ok(found.into_iter().map(|((job, ..), file)| Found { job, file }).collect())
}

fn too_many(found: &[Found], why: &str) -> Failure {
    let names: Vec<String> = found.iter().take(3).map(named).collect();
    let more = if found.len() > names.len() { ", .." } else { "" };
    let what = format!("{} files are selected: {}{more}", found.len(), names.join(", "));
    Failure::new(what, why)
}

fn named(Found { file, .. }: &Found) -> String {
    format!("{}:{}", file.task, file.name)
}

/// The files in the directory, by the last parts of their names.
fn names_in(directory: &Path, found: &[Found]) -> Result<Vec<PathBuf>> {
    let mut names: BTreeMap<&str, &Found> = BTreeMap::new();
    let mut paths = Vec::new();
    for one in found {
        let name = one.file.name.rsplit('/').next().unwrap_or(&one.file.name);
        if let Some(other) = names.insert(name, one) {
            let what = format!("{} and {} would both be {}", named(other), named(one), directory.join(name).display());
            return Err(Failure::new(what, "--tree writes to TO/STAGE/PLACE/NAME"));
        }
        paths.push(directory.join(name));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_name_tasks_and_outputs() {
        let target = |text: &str| Target::parse(text).unwrap();
        for (text, tasks, pattern) in [
            ("7.count.3:counts.txt", "7.count.3", "counts.txt"),
            ("7.map.*:part-*", "7.map", "part-*"),
            ("7.*:a:b", "7", "a:b"),
            ("last:*", "last", "*"),
            ("7-1-3:x", "7-1-3", "x"),
        ] {
            let source = Source { target: target(tasks), pattern: pattern.to_owned() };
            assert_eq!(Source::parse(text), Ok(source), "{text}");
        }
        for wrong in ["7.count.3", "7:", ":x", "7.a.b:x", "7.*.3:x"] {
            assert!(Source::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_of_one_name_are_not_written_over_each_other() {
        let found = |task: &str, name: &str| Found {
            job: 1,
            file: OutputFile { task: task.to_owned(), name: name.to_owned(), ..OutputFile::default() },
        };
        let to = Path::new("to");
        let paths = names_in(to, &[found("1.0.0", "a/x"), found("1.0.1", "a/y")]).unwrap();
        assert_eq!(paths, [to.join("x"), to.join("y")]);
        let clash = names_in(to, &[found("1.0.0", "a/x"), found("1.0.1", "b/x")]).unwrap_err();
        assert_eq!(clash.what, "1.0.0:a/x and 1.0.1:b/x would both be to/x");
    }
}
