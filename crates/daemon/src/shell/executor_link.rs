//! The connection to the executor: made before anything else, kept, and made again when the executor died.

use super::executor_routing::ExecutorRouting;
use super::inbox::Sender;
use super::{Input, Letter, end_process_on_panic};
use crate::executor::{
    Enforcement, ExecutorConfig, ExecutorError, ExecutorFrame, ExecutorReply, Hello, Link, PretendedExecutor,
    ensure_running,
};
use crate::files::Fetcher;
use crate::frames::{self, Decoder};
use crate::versions::WIRE;
use amalgam_core::protocol::Message;
use amalgam_core::vocabulary::{Instant, NodeId};
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
}

/// A fresh connection that has said hello.
pub struct ExecutorLink {
    setup: ExecutorSetup,
    stream: UnixStream,
    decoder: Decoder,
    /// Of the messages that the executor understands.
    version: u32,
    pub enforcement: Enforcement,
}

impl ExecutorLink {
    /// Reaches the executor, or starts one. To be called before other threads start.
    pub fn open(setup: ExecutorSetup) -> Result<ExecutorLink, ExecutorError> {
        let stream = ensure_running(&setup.program, &setup.arguments, &setup.config)?;
        let (stream, decoder, version, enforcement) =
            greet(stream).map_err(|error| ExecutorError::System { what: "understand the executor", error })?;
        Ok(ExecutorLink { setup, stream, decoder, version, enforcement })
    }

    pub fn setup(&self) -> &ExecutorSetup {
        &self.setup
    }
}

/// The executor as the loop has it.
#[derive(Default)]
pub struct Executor {
    state: ExecutorState,
    setup: Option<ExecutorSetup>,
    /// Counts the connections.
    incarnation: u64,
    /// That of the present connection.
    version: u32,
    routing: ExecutorRouting,
    /// Carries out orders about files, which are for this process.
    files: Option<Fetcher>,
    reconnects: Option<mpsc::Sender<Reconnect>>,
}

#[derive(Default)]
enum ExecutorState {
    /// There is none, or the connection is about to be made again.
    #[default]
    Away,
    Connected(Link),
    /// In this process, for its nodes are hollow.
    Pretended(PretendedExecutor),
}

/// The order to make another connection. The inbox's sender comes with it: one that is kept would keep the loop going.
struct Reconnect {
    setup: ExecutorSetup,
    inputs: Sender,
}

impl Executor {
    #[cfg(test)]
    pub fn over(link: Link) -> Executor {
        Executor { state: ExecutorState::Connected(link), version: WIRE.newest, ..Executor::default() }
    }

    /// Nothing runs, and what is launched ends in time.
    pub fn pretended() -> Executor {
        Executor { state: ExecutorState::Pretended(PretendedExecutor::default()), ..Executor::default() }
    }

    /// Goes on with this connection, and returns its number.
    pub fn connect(&mut self, fresh: ExecutorLink) -> io::Result<u64> {
        let ExecutorLink { setup, stream, decoder, version, .. } = fresh;
        self.version = version;
        self.setup = Some(setup);
        self.incarnation += 1;
        self.state = ExecutorState::Connected(Link::new(stream, decoder)?);
        Ok(self.incarnation)
    }

    /// Orders about files go there.
    pub fn fetch_with(&mut self, files: Fetcher) {
        self.files = Some(files);
    }

    /// What the loop is to watch.
    pub fn watch(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let ExecutorState::Connected(link) = &self.state else { return None };
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, link.unsent() > 0);
        Some((link.as_fd(), interest))
    }

    /// When it is to be heard although nothing can be watched.
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            ExecutorState::Pretended(executor) => executor.due(),
            ExecutorState::Away | ExecutorState::Connected(_) => None,
        }
    }

    /// Takes in what the executor has reported, as letters to the nodes, and sends what waited for room.
    ///
    /// With the letters that came before it, an error says that the connection broke; [`Executor::reconnect`] makes
    /// another.
    pub fn exchange(&mut self, now: Instant) -> (Vec<Letter>, io::Result<()>) {
        let mut letters = Vec::new();
        let link = match &mut self.state {
            ExecutorState::Away => return (letters, Ok(())),
            ExecutorState::Pretended(executor) => {
                letters.extend(executor.reports(now).into_iter().filter_map(|report| self.routing.letter(report)));
                return (letters, Ok(()));
            }
            ExecutorState::Connected(link) => link,
        };
        // What arrived before a connection broke is taken in.
        let received = link.receive();
        let outcome = take_in(link, &mut self.routing, &mut letters).and(received).and_then(|is_open| match is_open {
            true => link.send(),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        (letters, outcome)
    }

    /// Starts the thread that makes later connections. By then the machine may have no process to spare.
    pub fn prepare_to_reconnect(&mut self) -> io::Result<()> {
        let (requests, requested) = mpsc::channel::<Reconnect>();
        let work = move || {
            for Reconnect { setup, inputs } in requested {
                // A loop that has stopped needs none.
                let _ = inputs.send(Input::ExecutorConnected(Box::new(reconnect(&setup))));
            }
        };
        std::thread::Builder::new().name("executor".to_owned()).spawn(|| end_process_on_panic(work))?;
        self.reconnects = Some(requests);
        Ok(())
    }

    /// Makes another connection in the background, which comes in as an input.
    pub fn reconnect(&mut self, inputs: Sender) {
        self.state = ExecutorState::Away;
        self.routing.forget_lists();
        if let (Some(reconnects), Some(setup)) = (&self.reconnects, &self.setup) {
            // The thread lives for as long as this does.
            let _ = reconnects.send(Reconnect { setup: setup.clone(), inputs });
        }
    }

    /// Tells the executor which nodes this process has.
    pub fn serve_nodes(&mut self, nodes: Vec<NodeId>) {
        self.tell(&[ExecutorFrame::Serve { nodes }]);
    }

    /// Orders for somebody who is not there are lost, as the protocol allows.
    pub fn order(&mut self, letters: Vec<Letter>) {
        let orders = letters.into_iter().filter_map(|letter| match letter.message {
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
            orders.for_each(|order| executor.take(order));
            return;
        }
        let version = self.version;
        let known = orders.filter(|order| {
            let is_known = order.since() <= version;
            if !is_known {
                tracing::warn!(version, "the executor is of an older version and does not know an order: restart it when its tasks have ended");
            }
            is_known
        });
        let orders: Vec<ExecutorFrame> = known.map(ExecutorFrame::Order).collect();
        if !orders.is_empty() {
            self.tell(&orders);
        }
    }

    fn tell(&mut self, frames: &[ExecutorFrame]) {
        let ExecutorState::Connected(link) = &mut self.state else { return };
        for frame in frames {
            if let Err(error) = link.queue(frame) {
                tracing::error!(%error, "a frame for the executor cannot be written");
            }
        }
        // The next exchange finds a connection that broke.
        if let Err(error) = link.send() {
            tracing::warn!(%error, "the executor does not take orders");
        }
    }
}

/// Ends an executor and its tasks, if one is there.
pub fn shut_down(config: &ExecutorConfig) {
    if let Ok(mut stream) = crate::executor::connect(&config.socket) {
        let mut frame = Vec::new();
        if frames::encode(&ExecutorFrame::Shutdown, &mut frame).is_ok() && stream.write_all(&frame).is_ok() {
            // It closes the connection when it is done.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    }
}

/// The reports that have arrived, as letters.
fn take_in(link: &mut Link, routing: &mut ExecutorRouting, letters: &mut Vec<Letter>) -> io::Result<()> {
    while let Some(reply) = link.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
        match reply {
            ExecutorReply::Report(report) => letters.extend(routing.letter(report)),
            ExecutorReply::Note(note) => tracing::warn!("{note}"),
            ExecutorReply::Hello(_) => {}
        }
    }
    Ok(())
}

fn greet(mut stream: UnixStream) -> io::Result<(UnixStream, Decoder, u32, Enforcement)> {
    let mut decoder = Decoder::default();
    loop {
        match next_reply(&mut decoder)? {
            Some(ExecutorReply::Hello(Hello { version, pid, enforcement, wire })) => {
                let common = WIRE.common(wire).ok_or_else(|| {
                    io::Error::other(format!(
                        "the executor (pid {pid}) is of Amalgam {version} and speaks {wire}, and we {WIRE}; use the program that \
                         started it until its tasks have ended, or end them with `kill {pid}`"
                    ))
                })?;
                return Ok((stream, decoder, common, enforcement));
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
            Err(error) => tracing::error!(%error, "no executor can be used"),
        }
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::{ExecutorReport, ToExecutor};

    #[test]
    fn reports_that_came_before_a_broken_frame_are_taken_in() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut executor = Executor::over(Link::new(ours, Decoder::default()).unwrap());
        executor.routing.note(&ToExecutor::List { node: NodeId(1) });
        let mut frames = Vec::new();
        let report = ExecutorReply::Report(ExecutorReport::Executing { attempts: vec![] });
        frames::encode(&report, &mut frames).unwrap();
        frames.extend([0xff; 8]);
        theirs.write_all(&frames).unwrap();
        drop(theirs);
        let (letters, outcome) = executor.exchange(Instant::ZERO);
        assert_eq!((letters.len(), outcome.unwrap_err().kind()), (1, io::ErrorKind::InvalidData));
    }
}
