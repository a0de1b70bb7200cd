//! The connection to the executor. It is opened before other threads start, and opened again if the executor exits.

use super::executor_routing::ExecutorRouting;
use super::fetcher::Fetcher;
use super::inbox::Sender;
use super::{Envelope, Input, end_process_on_panic};
use crate::executor::{
    Enforcement, ExecutorConfig, ExecutorError, ExecutorFrame, ExecutorReply, Hello, Link, PretendedExecutor, RunAs,
    ensure_running,
};
use crate::frames::{self, Decoder};
use crate::versions::WIRE;
use amalgam_core::protocol::{ExecutorReport, Message, ToExecutor};
use amalgam_core::vocabulary::{EndReason, Ended, Instant, NodeId};
use rustix::event::PollFlags;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

const RETRY: Duration = Duration::from_millis(200);

/// How to start an executor.
#[derive(Clone, Debug)]
pub struct ExecutorSetup {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub config: ExecutorConfig,
    /// Maximum size of what ended tasks have written to standard output and error, in bytes [default: a tenth of the file system].
    pub output_limit: Option<u64>,
}

/// A new connection whose hello has been received.
pub struct ExecutorLink {
    setup: ExecutorSetup,
    stream: UnixStream,
    decoder: Decoder,
    /// Version of the messages that both sides understand.
    version: u32,
    pub enforcement: Enforcement,
    pub run_as: RunAs,
}

impl ExecutorLink {
    /// Connects to the executor, and starts one if none runs. Must be called before other threads start.
    pub fn open(setup: ExecutorSetup) -> Result<ExecutorLink, ExecutorError> {
        let stream = ensure_running(&setup.program, &setup.arguments, &setup.config)?;
        let (stream, decoder, version, hello) =
            greet(stream).map_err(|error| ExecutorError::System { what: "understand the executor", error })?;
        let Hello { enforcement, run_as, pid, .. } = hello;
        if run_as != setup.config.run_as {
            return Err(ExecutorError::RunsAs { pid, run_as, wanted: setup.config.run_as });
        }
        Ok(ExecutorLink { setup, stream, decoder, version, enforcement, run_as })
    }

    pub fn setup(&self) -> &ExecutorSetup {
        &self.setup
    }
}

/// The loop's side of the executor.
#[derive(Default)]
pub struct Executor {
    state: ExecutorState,
    setup: Option<ExecutorSetup>,
    /// Number of connections so far.
    incarnation: u64,
    /// Version of the messages on the current connection.
    version: u32,
    routing: ExecutorRouting,
    /// Ends of attempts that the executor is too old for.
    refused: Vec<ExecutorReport>,
    /// Executes orders about files in this process.
    files: Option<Fetcher>,
    reconnects: Option<mpsc::Sender<Reconnect>>,
}

#[derive(Default)]
enum ExecutorState {
    /// This process has no executor, or is about to reconnect.
    #[default]
    Away,
    Connected(Link),
    /// Simulated in this process, for nodes that run no processes.
    Pretended(PretendedExecutor),
}

/// A request to reconnect. It contains the inbox's sender because a sender that the thread kept would keep the loop
/// running.
struct Reconnect {
    setup: ExecutorSetup,
    inputs: Sender,
}

impl Executor {
    #[cfg(test)]
    pub fn over(link: Link) -> Executor {
        Executor { state: ExecutorState::Connected(link), version: WIRE.newest, ..Executor::default() }
    }

    /// A simulated executor: it starts no processes, and its attempts end after their run time.
    pub fn pretended() -> Executor {
        Executor { state: ExecutorState::Pretended(PretendedExecutor::default()), ..Executor::default() }
    }

    /// Uses this connection from now on. Returns its number.
    pub fn connect(&mut self, fresh: ExecutorLink) -> io::Result<u64> {
        let ExecutorLink { setup, stream, decoder, version, .. } = fresh;
        self.version = version;
        self.setup = Some(setup);
        self.incarnation += 1;
        self.state = ExecutorState::Connected(Link::new(stream, decoder)?);
        Ok(self.incarnation)
    }

    /// Sends orders about files to `files` from now on.
    pub fn fetch_with(&mut self, files: Fetcher) {
        self.files = Some(files);
    }

    /// The descriptor and the events that the loop has to wait for.
    pub fn watch(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let ExecutorState::Connected(link) = &self.state else { return None };
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, link.unsent() > 0);
        Some((link.as_fd(), interest))
    }

    /// When the next report is due that has no descriptor to wait for: of a simulated executor, or of a refused attempt.
    pub fn due(&self) -> Option<Instant> {
        if !self.refused.is_empty() {
            return Some(Instant::ZERO);
        }
        match &self.state {
            ExecutorState::Pretended(executor) => executor.due(),
            ExecutorState::Away | ExecutorState::Connected(_) => None,
        }
    }

    /// Returns the executor's reports as messages to the nodes, and sends orders that are still in the send buffer.
    ///
    /// An error means that the connection is broken, and comes with the messages received before. Call
    /// [`Executor::reconnect`] then.
    pub fn exchange(&mut self, now: Instant) -> (Vec<Envelope>, io::Result<()>) {
        let refused = std::mem::take(&mut self.refused);
        let mut envelopes: Vec<_> = refused.into_iter().filter_map(|report| self.routing.envelope(report)).collect();
        let link = match &mut self.state {
            ExecutorState::Away => return (envelopes, Ok(())),
            ExecutorState::Pretended(executor) => {
                envelopes.extend(executor.reports(now).into_iter().filter_map(|report| self.routing.envelope(report)));
                return (envelopes, Ok(()));
            }
            ExecutorState::Connected(link) => link,
        };
        // Reports that arrived before the connection broke are still delivered.
        let received = link.receive();
        let outcome =
            take_in(link, &mut self.routing, &mut envelopes).and(received).and_then(|is_open| match is_open {
                true => link.send(),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            });
        (envelopes, outcome)
    }

    /// Starts the thread that reconnects. It is started early because the machine may not allow a new thread later.
    pub fn prepare_to_reconnect(&mut self) -> io::Result<()> {
        let (requests, requested) = mpsc::channel::<Reconnect>();
        let work = move || {
            for Reconnect { setup, inputs } in requested {
                // An error means that the loop has stopped and needs no connection.
                let _ = inputs.send(Input::ExecutorConnected(Box::new(reconnect(&setup))));
            }
        };
        std::thread::Builder::new().name("executor".to_owned()).spawn(|| end_process_on_panic(work))?;
        self.reconnects = Some(requests);
        Ok(())
    }

    /// Reconnects in the background. The new connection arrives as [`Input::ExecutorConnected`].
    pub fn reconnect(&mut self, inputs: Sender) {
        self.state = ExecutorState::Away;
        self.routing.forget_lists();
        if let (Some(reconnects), Some(setup)) = (&self.reconnects, &self.setup) {
            // The thread runs until `reconnects` is dropped, so this does not fail.
            let _ = reconnects.send(Reconnect { setup: setup.clone(), inputs });
        }
    }

    /// Sends the executor the numbers of this process's nodes.
    pub fn serve_nodes(&mut self, nodes: Vec<NodeId>) {
        self.send_frames(&[ExecutorFrame::Serve { nodes }]);
    }

    /// Sends orders to the executor. Without a connection they are lost, as the protocol allows.
    pub fn order(&mut self, envelopes: Vec<Envelope>) {
        let orders = envelopes.into_iter().filter_map(|envelope| match envelope.message {
            Message::ToExecutor(order) => {
                self.routing.note(&order);
                match &self.files {
                    Some(files) => files.take(order),
                    None => Some(order),
                }
            }
            _ => None,
        });
        if let ExecutorState::Pretended(executor) = &mut self.state {
            orders.for_each(|order| executor.handle(order));
            return;
        }
        if matches!(self.state, ExecutorState::Away) {
            return;
        }
        let (version, refused) = (self.version, &mut self.refused);
        let known = orders.filter(|order| {
            let is_known = order.since() <= version;
            if let (false, ToExecutor::Launch(order)) = (is_known, order)
                && (order.template.program.is_isolated() || order.template.program.container.is_some())
            {
                let why = "the executor of this node is older than its agent and cannot isolate tasks or run them in containers; \
                           restart the node's executor when its tasks have ended, or submit the job with `--isolation none`";
                let ended = Ended::without_run(EndReason::LaunchFailed(why.to_owned()));
                refused.push(ExecutorReport::Finished { attempt: order.attempt, ended });
            } else if !is_known {
                tracing::warn!(version, "the executor's version is too old for an order, which is dropped; restart the executor when its tasks have ended");
            }
            is_known
        });
        let orders: Vec<ExecutorFrame> = known.map(ExecutorFrame::Order).collect();
        if !orders.is_empty() {
            self.send_frames(&orders);
        }
    }

    fn send_frames(&mut self, frames: &[ExecutorFrame]) {
        let ExecutorState::Connected(link) = &mut self.state else { return };
        for frame in frames {
            if let Err(error) = link.queue(frame) {
                tracing::error!(%error, "cannot encode a frame for the executor");
            }
        }
        // If the connection is broken, the next `exchange` returns the error.
        if let Err(error) = link.send() {
            tracing::warn!(%error, "cannot send an order to the executor");
        }
    }
}

/// Stops the executor and its tasks, if one runs.
pub fn shut_down(config: &ExecutorConfig) {
    if let Ok(mut stream) = crate::executor::connect(&config.socket) {
        let mut frame = Vec::new();
        if frames::encode(&ExecutorFrame::Shutdown, &mut frame).is_ok() && stream.write_all(&frame).is_ok() {
            // The executor closes the connection when it has stopped.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    }
}

/// Adds the reports that have arrived to `envelopes`, as messages to the nodes.
fn take_in(link: &mut Link, routing: &mut ExecutorRouting, envelopes: &mut Vec<Envelope>) -> io::Result<()> {
    while let Some(reply) = link.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
        match reply {
            ExecutorReply::Report(report) => envelopes.extend(routing.envelope(report)),
            ExecutorReply::Note(note) => tracing::warn!("{note}"),
            ExecutorReply::Hello(_) => {}
        }
    }
    Ok(())
}

fn greet(mut stream: UnixStream) -> io::Result<(UnixStream, Decoder, u32, Hello)> {
    let mut decoder = Decoder::default();
    loop {
        match next_reply(&mut decoder)? {
            Some(ExecutorReply::Hello(hello)) => {
                let Hello { version, pid, wire, .. } = &hello;
                let common = WIRE.common(*wire).ok_or_else(|| {
                    io::Error::other(format!(
                        "the executor (pid {pid}) of Amalgam {version} supports protocol {wire}, and this program \
                         supports {WIRE}; use the program that started the executor until its tasks have ended, or \
                         stop them with `kill {pid}`"
                    ))
                })?;
                return Ok((stream, decoder, common, hello));
            }
            Some(ExecutorReply::Report(_) | ExecutorReply::Note(_)) => return Err(io::ErrorKind::InvalidData.into()),
            None => fill(&mut stream, &mut decoder)?,
        }
    }
}

fn fill(stream: &mut UnixStream, decoder: &mut Decoder) -> io::Result<()> {
    let mut bytes = [0; 64 * 1024];
    match stream.read(&mut bytes)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            decoder.push(&bytes[..count]);
            Ok(())
        }
    }
}

fn next_reply(decoder: &mut Decoder) -> io::Result<Option<ExecutorReply>> {
    decoder.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn reconnect(setup: &ExecutorSetup) -> ExecutorLink {
    loop {
        match ExecutorLink::open(setup.clone()) {
            Ok(link) => return link,
            Err(error) => tracing::error!(%error, "cannot start or reach an executor; trying again"),
        }
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::{Address, ToNode};
    use amalgam_core::vocabulary::{AttemptId, Epoch, Isolation, JobId, LaunchOrder, Program, TaskId, TaskTemplate};
    use std::sync::Arc;

    #[test]
    fn an_order_that_the_executors_version_does_not_have_is_not_sent() {
        let order = || ToExecutor::List { node: NodeId(1) };
        let sent_to = |version| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut executor = Executor::over(Link::new(ours, Decoder::default()).unwrap());
            executor.version = version;
            let (from, to) = (Address::Node(NodeId(1)), Address::Executor(NodeId(1)));
            executor.order(vec![Envelope { from, to, message: Message::ToExecutor(order()) }]);
            let mut theirs = Link::new(theirs, Decoder::default()).unwrap();
            theirs.receive().unwrap();
            theirs.next::<ExecutorFrame>().unwrap()
        };
        let since = order().since();
        assert_eq!(sent_to(since - 1), None);
        assert_eq!(sent_to(since), Some(ExecutorFrame::Order(order())));
    }

    #[test]
    fn an_executor_that_cannot_isolate_tasks_does_not_run_them() {
        let attempt = AttemptId { job: JobId(1), epoch: Epoch(1), number: 1 };
        let sent_to = |version, isolation| {
            let program = Arc::new(Program { command: vec!["true".into()], isolation, ..Program::default() });
            let order = LaunchOrder {
                attempt,
                task: TaskId { job: JobId(1), stage: 0, index: 0 },
                node: NodeId(1),
                node_name: "node".to_owned(),
                template: Arc::new(TaskTemplate { program, ..TaskTemplate::default() }),
                index: 0,
                item: None,
                devices: Vec::new(),
                inputs: Arc::default(),
                hosts: None,
                grant: None,
                shared_gpu: None,
                expected: None,
            };
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut executor = Executor::over(Link::new(ours, Decoder::default()).unwrap());
            executor.version = version;
            let (from, to) = (Address::Node(NodeId(1)), Address::Executor(NodeId(1)));
            let message = Message::ToExecutor(ToExecutor::Launch(Box::new(order)));
            executor.order(vec![Envelope { from, to, message }]);
            let is_due = executor.due().is_some();
            let (envelopes, outcome) = executor.exchange(Instant::ZERO);
            outcome.unwrap();
            assert_eq!(is_due, !envelopes.is_empty());
            let mut theirs = Link::new(theirs, Decoder::default()).unwrap();
            theirs.receive().unwrap();
            let sent = theirs.next::<ExecutorFrame>().unwrap();
            (sent.is_some(), envelopes.into_iter().map(|envelope| envelope.message).collect::<Vec<_>>())
        };
        for (version, isolation) in [(32, None), (32, Some(Isolation::None)), (33, Some(Isolation::PrivateTmp))] {
            assert_eq!(sent_to(version, isolation), (true, Vec::new()));
        }
        let (sent, ends) = sent_to(32, Some(Isolation::PrivateTmp));
        let [Message::ToNode(ToNode::Executor(ExecutorReport::Finished { attempt: ended, ended: how }))] = &ends[..]
        else {
            panic!("{ends:?}")
        };
        assert!(!sent && *ended == attempt);
        assert!(
            matches!(&how.reason, EndReason::LaunchFailed(why) if why.contains("is older than its agent")),
            "{how:?}"
        );
    }

    #[test]
    fn reports_before_a_malformed_frame_are_delivered() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut executor = Executor::over(Link::new(ours, Decoder::default()).unwrap());
        executor.routing.note(&ToExecutor::List { node: NodeId(1) });
        let mut frames = Vec::new();
        let report = ExecutorReply::Report(ExecutorReport::Executing { attempts: vec![] });
        frames::encode(&report, &mut frames).unwrap();
        frames.extend([0xff; 8]);
        theirs.write_all(&frames).unwrap();
        drop(theirs);
        let (envelopes, outcome) = executor.exchange(Instant::ZERO);
        assert_eq!((envelopes.len(), outcome.unwrap_err().kind()), (1, io::ErrorKind::InvalidData));
    }
}
