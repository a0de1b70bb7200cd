//! The output streams of a job's tasks in one archive.

use crate::client::{Client, Query};
use crate::failure::{Failure, Kind, Result};
use crate::following::{self, Sink, Source};
use crate::output_files::cannot;
use crate::selectors::Meant;
use crate::{output, show};
use amalgam_core::vocabulary::{Named, Stream};
use amalgam_core::why::counted;
use amalgam_daemon::api::{JobDetail, TaskSummary};
use amalgam_daemon::durable::Temporary;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{self, ExitCode};

/// Writes both streams of these tasks to a tar archive, as `JOB/STAGE/PLACE/stdout` and `stderr`. It has its name once it is
/// complete.
pub fn write(client: &Client, job: &JobDetail, meant: &Meant, path: &Path) -> Result<ExitCode> {
    let id = job.summary.id;
    if !job.summary.state.has_ended() {
        let what = format!("job {id} has not ended, and its output may still grow");
        return Err(Failure::new(what, format!("wait for its end with `amalgam wait {id}`")));
    }
    let mut query = Query::default();
    query.add("stage", meant.stage.map(|stage| stage.to_string()).as_deref());
    let mut tasks: Vec<TaskSummary> = client.list(&format!("/v1/jobs/{id}/tasks"), &query)?;
    tasks.retain(|task| meant.has(task.index));
    if path == Path::new("-") {
        let failures = Archive::new(client, job, Path::new("."), output::stdout())?.add(&tasks)?;
        return Ok(told(&failures));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unfinished = directory.join(format!(".amalgam-logs-{}.tar", process::id()));
    // It may be left from a process with the same number.
    let _ = std::fs::remove_file(&unfinished);
    let part = Temporary::create(unfinished, 0o666).map_err(|error| cannot("write", path, &error))?;
    let failures = Archive::new(client, job, directory, part.file())?.add(&tasks)?;
    let bytes = part.file().metadata().map_or(0, |found| found.len());
    part.rename(path).map_err(|error| cannot("write", path, &error))?;
    let tasks = counted(tasks.len() as u64, "task");
    show::print(&format!("output of {tasks}, {} in {}\n", show::bytes(bytes), path.display()))?;
    Ok(told(&failures))
}

fn told(failures: &[Failure]) -> ExitCode {
    show::failures(failures.iter());
    ExitCode::from(u8::from(!failures.is_empty()))
}

struct Archive<'a, W: Write> {
    client: &'a Client,
    job: &'a JobDetail,
    tar: tar::Builder<W>,
    /// Each stream in turn: an archive has the length of a file before its content.
    spool: Spool,
}

impl<'a, W: Write> Archive<'a, W> {
    fn new(client: &'a Client, job: &'a JobDetail, directory: &Path, out: W) -> Result<Archive<'a, W>> {
        let spool = Spool::new(directory).map_err(|error| cannot("write to", directory, &error))?;
        Ok(Archive { client, job, tar: tar::Builder::new(out), spool })
    }

    /// Adds the streams of these tasks. Returns why some are missing, each reason once.
    fn add(mut self, tasks: &[TaskSummary]) -> Result<Vec<Failure>> {
        let mut failures = BTreeMap::new();
        for task in tasks {
            for (stream, name) in [(Stream::Stdout, "stdout"), (Stream::Stderr, "stderr")] {
                match self.add_stream(task, stream, name) {
                    Ok(()) => {}
                    Err(failure) if failure.kind == Kind::Unreachable => return Err(failure),
                    Err(failure) => drop(failures.insert(failure.what.clone(), failure)),
                }
            }
        }
        let finished = self.tar.into_inner().and_then(|mut out| out.flush());
        finished.map_err(|error| Failure::unwritten("the archive", &error))?;
        Ok(failures.into_values().collect())
    }

    fn add_stream(&mut self, task: &TaskSummary, stream: Stream, name: &str) -> Result<()> {
        // The names are the server's, and may not point elsewhere.
        Named::Stage
            .check(&task.stage)
            .map_err(|bad| Failure::new(bad.problem, "use a server of this program's version"))?;
        let id = self.job.summary.id;
        let stage = self.job.stages.iter().position(|stage| stage.name == task.stage).unwrap_or(0) as u32;
        let source = Source { job: id, stage, index: task.index, prefix: None };
        let unwritten = |error: io::Error| Failure::unwritten("the archive", &error);
        self.spool.clear().map_err(unwritten)?;
        following::copy(self.client, &source, stream, false, &mut self.spool)?;
        let (bytes, content) = self.spool.content().map_err(unwritten)?;
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o644);
        header.set_mtime(task.ended_at.map_or(0, |at| at.0 / 1_000_000));
        let path = format!("{id}/{}/{}/{name}", task.stage, task.index);
        self.tar.append_data(&mut header, path, content).map_err(unwritten)
    }
}

/// A file without a name.
struct Spool(File);

impl Spool {
    fn new(directory: &Path) -> io::Result<Spool> {
        let path = directory.join(format!(".amalgam-logs-{}", process::id()));
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Spool(file))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()
    }

    fn content(&mut self) -> io::Result<(u64, impl Read + '_)> {
        let bytes = self.0.stream_position()?;
        self.0.rewind()?;
        Ok((bytes, (&self.0).take(bytes)))
    }
}

impl Sink for Spool {
    fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}
