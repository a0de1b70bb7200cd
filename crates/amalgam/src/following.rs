//! Output of tasks: of one task while it is written, of several tasks as each ends, so that their lines do not mix.

use crate::client::{Client, Query, patiently, very_patiently};
use crate::failure::{Failure, Kind, Result};
use crate::{output, show};
use amalgam_core::vocabulary::Stream;
use amalgam_daemon::api::{Event, EventKind, TaskState, TaskSummary};
use amalgam_daemon::http::{ATTEMPT, ENDED, NEWER};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Destination of output. Progress bars wrap it.
pub trait Sink {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()>;
}

/// Writes to our own standard streams.
pub struct Plain;

impl Sink for Plain {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Stdout => output::stdout().write_all(bytes),
            Stream::Stderr => output::stderr().write_all(bytes),
        }
    }
}

/// Writes everything to standard output, for a single requested stream.
pub struct ToStdout;

impl Sink for ToStdout {
    fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        Plain.write(Stream::Stdout, bytes)
    }
}

/// Writes everything to standard error, where standard output is used for something else.
pub struct ToStderr(pub Box<dyn Sink + Send>);

impl Sink for ToStderr {
    fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0.write(Stream::Stderr, bytes)
    }
}

/// A task and the prefix of its lines.
#[derive(Clone, Debug)]
pub struct Source {
    pub job: u64,
    pub stage: u32,
    pub index: u32,
    pub prefix: Option<String>,
}

impl Source {
    fn path(&self, stream: Stream, attempt: Option<&str>, offset: u64, follow: bool) -> String {
        let mut query = Query::default()
            .with("task", &format!("{}.{}", self.stage, self.index))
            .with("stream", if stream == Stream::Stdout { "stdout" } else { "stderr" })
            .with("offset", &offset.to_string())
            .with("follow", if follow { "attempt" } else { "false" });
        query.add("attempt", attempt);
        format!("/v1/jobs/{}/output{query}", self.job)
    }
}

/// Copies a task's output; if `follow`, until the task has ended, including further attempts. After a broken connection it
/// continues at the same place. Output is complete only if the server says so.
pub fn copy(client: &Client, source: &Source, stream: Stream, follow: bool, sink: &mut dyn Sink) -> Result<()> {
    let mut writer = LineWriter { prefix: source.prefix.as_deref(), stream, sink, partial: Vec::new() };
    let (mut attempt, mut offset) = (None, 0u64);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let open = || client.open(&source.path(stream, attempt.as_deref(), offset, follow));
        let answer = match if follow { very_patiently(open) } else { patiently(open) } {
            Ok(answer) => answer,
            Err(failure) => {
                // The part of the last line that arrived is still shown.
                writer.finish()?;
                return Err(failure);
            }
        };
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (of, newer, ended) = (header(ATTEMPT), header(NEWER), header(ENDED).is_some());
        attempt = attempt.or(of);
        let mut body = answer.into_body().into_reader();
        let is_whole = loop {
            match body.read(&mut buffer) {
                Ok(0) => break true,
                Ok(count) => {
                    offset += count as u64;
                    writer.write(&buffer[..count])?;
                }
                Err(_) => break false,
            }
        };
        if is_whole && (ended || !follow) {
            return writer.finish();
        }
        if let Some(newer) = newer.filter(|_| is_whole) {
            writer.finish()?;
            (attempt, offset) = (Some(newer), 0);
        }
    }
}

/// Writes whole lines with a prefix; without a prefix, writes bytes as they arrive.
struct LineWriter<'a> {
    prefix: Option<&'a str>,
    stream: Stream,
    sink: &'a mut dyn Sink,
    partial: Vec<u8>,
}

/// A longer line is split, to bound the memory.
const MAX_LINE: usize = 1 << 20;

impl LineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(prefix) = self.prefix else { return self.hand_on(bytes) };
        let mut out = Vec::with_capacity(bytes.len() + 64);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() > MAX_LINE {
                push_line(&mut out, prefix, &mut self.partial);
            }
        }
        if out.is_empty() { Ok(()) } else { self.hand_on(&out) }
    }

    fn hand_on(&mut self, bytes: &[u8]) -> Result<()> {
        let place = "standard output or standard error, which show the output of tasks";
        self.sink.write(self.stream, bytes).map_err(|error| Failure::unwritten(place, &error))
    }

    /// Ends an incomplete line.
    fn finish(&mut self) -> Result<()> {
        if let Some(prefix) = self.prefix.filter(|_| !self.partial.is_empty()) {
            let mut out = Vec::new();
            push_line(&mut out, prefix, &mut self.partial);
            self.hand_on(&out)?;
        }
        Ok(())
    }
}

fn push_line(out: &mut Vec<u8>, prefix: &str, line: &mut Vec<u8>) {
    out.extend_from_slice(prefix.as_bytes());
    out.append(line);
    if !out.ends_with(b"\n") {
        out.push(b'\n');
    }
}

/// The output of a job with several tasks: a prefix names the task of each line.
pub struct Followed {
    client: Client,
    job: u64,
    /// Stages with one task, whose prefix has no index.
    single: BTreeSet<String>,
    prefixed: bool,
}

impl Followed {
    /// Puts the task's name before each line if `prefixed`.
    pub fn new<'a>(
        client: &Client,
        job: u64,
        stages: impl Iterator<Item = (&'a str, u64)>,
        prefixed: bool,
    ) -> Followed {
        let single = stages.filter(|(_, tasks)| *tasks == 1).map(|(name, _)| name.to_owned());
        Followed { client: client.clone(), job, single: single.collect(), prefixed }
    }

    /// Copies the output of every task as it ends, until the job has ended. `from` is a sequence number before the job's first
    /// event. `wanted` selects tasks.
    pub fn copy_as_tasks_end(
        &self,
        mut from: u64,
        streams: &[Stream],
        wanted: &dyn Fn(&Event) -> bool,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let mut failing_since: Option<Instant> = None;
        let mut shown = BTreeSet::new();
        loop {
            let events = patiently(|| self.client.events(self.job, from))?;
            for event in events {
                failing_since = None;
                from = event.sequence + 1;
                match event.kind {
                    EventKind::JobEnded => return Ok(()),
                    EventKind::TaskEnded if wanted(&event) => {
                        let task = event.task.as_deref().and_then(parse_task);
                        if let Some(task) = task.filter(|task| shown.insert(*task)) {
                            self.copy_ended(task, &event, streams, sink)?;
                        }
                    }
                    EventKind::Gap => {
                        self.copy_unseen(streams, wanted, &mut shown, sink)?;
                        if self.client.wait(self.job, Duration::ZERO)?.state.has_ended() {
                            return Ok(());
                        }
                    }
                    _ => {}
                }
            }
            // The connection ended. Give up on a server that has stopped for good.
            let since = *failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(30) {
                let what = "the server closes the connection repeatedly";
                return Err(Failure::unreachable(what, "check that it runs"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Copies the output of tasks whose events were missed, according to the tasks' states.
    fn copy_unseen(
        &self,
        streams: &[Stream],
        wanted: &dyn Fn(&Event) -> bool,
        shown: &mut BTreeSet<(u32, u32)>,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let ended = Query::default().with("state", "succeeded,failed,cancelled");
        let tasks: Vec<TaskSummary> = self.client.list(&format!("/v1/jobs/{}/tasks", self.job), &ended)?;
        for task in tasks {
            let event = Event { stage: Some(task.stage), ..Event::default() };
            if let Some(task) = parse_task(&task.task).filter(|task| wanted(&event) && shown.insert(*task)) {
                self.copy_ended(task, &event, streams, sink)?;
            }
        }
        Ok(())
    }

    fn copy_ended(&self, task: (u32, u32), event: &Event, streams: &[Stream], sink: &mut dyn Sink) -> Result<()> {
        let source = self.source(task, event.stage.as_deref());
        for stream in streams {
            let written = if *stream == Stream::Stdout { event.stdout_bytes } else { event.stderr_bytes };
            if written == Some(0) {
                continue;
            }
            match copy(&self.client, &source, *stream, false, sink) {
                Err(failure) if failure.kind == Kind::Removed => show::failures([&failure]),
                copied => copied?,
            }
        }
        Ok(())
    }

    /// Prints the output of the tasks so far, one after the other. Returns the nodes whose output is not available now, or not all of
    /// whose output exists any more.
    pub fn copy_tasks(
        &self,
        tasks: &[TaskSummary],
        streams: &[Stream],
        sink: &mut dyn Sink,
    ) -> Result<BTreeMap<String, Failure>> {
        let mut missing = BTreeMap::new();
        for task in tasks.iter().filter(|task| !matches!(task.state, TaskState::Waiting | TaskState::Queued)) {
            let Some(place) = parse_task(&task.task) else { continue };
            // It can take ten seconds until a node counts as not answering, so each is asked once.
            if task.node.as_ref().is_some_and(|node| missing.contains_key(node)) {
                continue;
            }
            let source = self.source(place, Some(&task.stage));
            for stream in streams {
                match copy(&self.client, &source, *stream, false, sink) {
                    Err(failure) if failure.kind == Kind::Unavailable => {
                        missing.insert(task.node.clone().unwrap_or_default(), failure);
                        break;
                    }
                    Err(failure) if failure.kind == Kind::Removed => {
                        // The node has the output of other tasks, which is why it has no entry by its name.
                        missing.insert(failure.what.clone(), failure);
                    }
                    copied => copied?,
                }
            }
        }
        Ok(missing)
    }

    fn source(&self, (stage, index): (u32, u32), name: Option<&str>) -> Source {
        let name = name.map_or_else(|| stage.to_string(), str::to_owned);
        let shown = show::visible(&name);
        let prefix = if self.single.contains(&name) { format!("{shown}: ") } else { format!("{shown}/{index}: ") };
        Source { job: self.job, stage, index, prefix: self.prefixed.then_some(prefix) }
    }
}

/// The stage and index of `JOB.STAGE.INDEX`.
fn parse_task(task: &str) -> Option<(u32, u32)> {
    let mut parts = task.split('.').skip(1);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kept(Vec<u8>);
    impl Sink for Kept {
        fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn prefixed_lines_stay_whole() {
        let mut kept = Kept(vec![]);
        let mut writer = LineWriter { prefix: Some("a/0: "), stream: Stream::Stdout, sink: &mut kept, partial: vec![] };
        for piece in ["one\ntw", "o", "\n\nlast"] {
            writer.write(piece.as_bytes()).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(String::from_utf8(kept.0).unwrap(), "a/0: one\na/0: two\na/0: \na/0: last\n");
    }
}
