//! `amalgam outputs`: fetches the files that tasks declare as their outputs.

use crate::connection::Connection;
use crate::failure::{Failure, Kind, Result};
use crate::output_files::{self, Manner, cannot};
use crate::selectors::Target;
use crate::{discovery, show};
use amalgam_core::vocabulary::Named;
use amalgam_core::vocabulary::files::check_output;
use amalgam_core::why::counted;
use amalgam_daemon::api::OutputFile;
use clap::Args;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam outputs last -o results             all that the tasks of your newest job left
  amalgam outputs 7.count.3 -o results        of task 3 of stage count
  amalgam outputs 7 'part-*' -o results       the files of such names
  amalgam outputs 7 --list                    which there are, and where
A file is written to DIR/STAGE/PLACE/NAME, where PLACE is the task's place in its stage. It is there as a whole, with the
checksum that it had on its node, or not at all. One that is there already and the same is left as it is.")]
pub struct OutputsArgs {
    /// JOB, JOB.STAGE, JOB.STAGE.PLACE, JOB.STAGE.FIRST-LAST, or an attempt such as 7-1-3
    #[arg(value_parser = Target::parse)]
    target: Target,
    /// Only files of such names, in which `*` stands for any text
    #[arg(default_value = "*", hide_default_value = true)]
    pattern: String,
    /// Directory for the files; it is created if missing
    #[arg(short, long, value_name = "DIR", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// List them instead
    #[arg(long, conflicts_with_all = ["output", "force"])]
    list: bool,
    /// Replace existing files that differ
    #[arg(long)]
    force: bool,
    /// Print JSON: each file, and where it was written
    #[arg(long)]
    json: bool,
}

pub fn execute(args: OutputsArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let id = args.target.job(&client)?;
    let job = client.job(id)?;
    let meant = args.target.find(&client, &job)?;
    let files = output_files::find(&client, &job, &meant, &args.pattern)?;
    if !job.summary.state.has_ended() {
        show::note(&format!("job {id} has not ended: these are the outputs of the tasks that have succeeded"));
    }
    let Some(directory) = args.output.filter(|_| !args.list) else {
        return list(&files, args.json);
    };
    fs::create_dir_all(&directory).map_err(|error| cannot("make", &directory, &error))?;
    let mut failures = Vec::new();
    let mut written = Vec::new();
    for file in files {
        let manner = Manner { force: args.force, continues: false };
        let fetched = place(&directory, &file)
            .and_then(|path| output_files::fetch(&client, id, &file, &directory, &path, manner));
        match fetched {
            Ok(path) => written.push(Written { file, path: path.display().to_string() }),
            // Without a disk or a server the other files would fail as well.
            Err(failure) if failure.kind == Kind::Unreachable => return Err(failure),
            Err(failure) => failures.push(failure),
        }
    }
    if args.json {
        show::json(&written)?;
    } else {
        let bytes: u64 = written.iter().map(|written| written.file.bytes).sum();
        let files = counted(written.len() as u64, "file");
        show::print(&format!("{files}, {} in {}\n", show::bytes(bytes), directory.display()))?;
    }
    show::failures(failures.iter());
    Ok(ExitCode::from(u8::from(!failures.is_empty())))
}

#[derive(serde::Serialize)]
struct Written {
    #[serde(flatten)]
    file: OutputFile,
    path: String,
}

fn list(files: &[OutputFile], json: bool) -> Result<ExitCode> {
    if json {
        show::json(&files)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |file: &OutputFile| {
        let place = format!("{}.{}", file.stage, file.index);
        vec![place, file.name.clone(), file.bytes.to_string(), file.nodes.join(","), file.sha256.clone()]
    };
    let rows: Vec<_> = files.iter().map(row).collect();
    show::print(&show::table(&["TASK", "NAME", "BYTES", "NODES", "SHA256"], &rows))?;
    Ok(ExitCode::SUCCESS)
}

/// The path of a file. The server's names are not trusted: they may not point outside the directory.
pub fn place(directory: &Path, file: &OutputFile) -> Result<PathBuf> {
    let outside = |why: &str| {
        let what = format!("output `{}` of task {} is left out: {why}", file.name.escape_debug(), file.task);
        Failure::new(what, "use a server of this program's version")
    };
    Named::Stage.check(&file.stage).map_err(|bad| outside(&bad.problem))?;
    check_output(&file.name).map_err(|(problem, _)| outside(problem))?;
    let name = Path::new(&file.name);
    if !name.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(outside("its name points outside the directory"));
    }
    let relative = Path::new(&file.stage).join(file.index.to_string()).join(name);
    let mut parent = directory.to_owned();
    for part in relative.parent().into_iter().flat_map(Path::components) {
        parent.push(part);
        match fs::create_dir(&parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(cannot("make", &parent, &error)),
            _ => {}
        }
        let found = fs::symlink_metadata(&parent).map_err(|error| cannot("look at", &parent, &error))?;
        if !found.is_dir() {
            let what = format!("{} is not a directory", parent.display());
            return Err(Failure::new(what, "move it, or name another directory with --output"));
        }
    }
    Ok(directory.join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(stage: &str, name: &str) -> OutputFile {
        OutputFile { stage: stage.to_owned(), name: name.to_owned(), index: 3, ..OutputFile::default() }
    }

    #[test]
    fn nothing_is_written_outside_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&other).unwrap();
        assert_eq!(place(&own, &file("map", "a/b")).unwrap(), own.join("map/3/a/b"));
        for (stage, name) in
            [("..", "x"), ("a/b", "x"), ("", "x"), ("map", "../x"), ("map", "/x"), ("map", "a/../../x"), ("map", "")]
        {
            place(&own, &file(stage, name)).unwrap_err();
        }
        std::os::unix::fs::symlink(&other, own.join("link")).unwrap();
        place(&own, &file("link", "x")).unwrap_err();
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    }
}
