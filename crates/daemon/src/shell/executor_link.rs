//! The connection to the executor: made before anything else, kept, and made again when the executor died.

use super::{Handle, Input, end_process_on_panic};
use crate::executor::{Enforcement, ExecutorConfig, ExecutorError, ExecutorFrame, ExecutorReply, ensure_running};
use crate::frames::{self, Decoder};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
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
    pub enforcement: Enforcement,
}

impl ExecutorLink {
    /// Reaches the executor, or starts one. To be called before other threads start.
    pub fn open(setup: ExecutorSetup) -> Result<ExecutorLink, ExecutorError> {
        let stream = ensure_running(&setup.program, &setup.arguments, &setup.config)?;
        let (stream, decoder, enforcement) =
            greet(stream).map_err(|error| ExecutorError::System { what: "understand the executor", error })?;
        Ok(ExecutorLink { setup, stream, decoder, enforcement })
    }

    pub fn setup(&self) -> &ExecutorSetup {
        &self.setup
    }

    /// Serves the loop from a thread of its own, for as long as the process lives.
    pub fn serve(self, handle: Handle) -> io::Result<()> {
        let ExecutorLink { setup, mut stream, mut decoder, .. } = self;
        handle.routes().set_executor(Some(stream.try_clone()?));
        let keep_reading = move || {
            for incarnation in 1.. {
                if handle.send(Input::ExecutorConnected { incarnation }).is_err() {
                    return;
                }
                let end = read_reports(&mut stream, &mut decoder, &handle);
                handle.routes().set_executor(None);
                if handle.send(Input::ExecutorDisconnected).is_err() {
                    return;
                }
                tracing::warn!(?end, "the connection to the executor broke");
                (stream, decoder) = reconnect(&setup);
                handle.routes().set_executor(stream.try_clone().ok());
            }
        };
        std::thread::Builder::new().name("executor".to_owned()).spawn(move || {
            crate::priority::answer_soon();
            end_process_on_panic(keep_reading);
        })?;
        Ok(())
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

fn greet(mut stream: UnixStream) -> io::Result<(UnixStream, Decoder, Enforcement)> {
    let mut decoder = Decoder::default();
    loop {
        match next_reply(&mut decoder)? {
            Some(ExecutorReply::Hello(hello)) => return Ok((stream, decoder, hello.enforcement)),
            Some(ExecutorReply::Report(_)) => return Err(io::ErrorKind::InvalidData.into()),
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

fn read_reports(stream: &mut UnixStream, decoder: &mut Decoder, handle: &Handle) -> io::Result<()> {
    loop {
        let mut reports = Vec::new();
        while let Some(reply) = next_reply(decoder)? {
            if let ExecutorReply::Report(report) = reply {
                reports.push(report);
            }
        }
        if !reports.is_empty() && handle.send(Input::ExecutorReports(reports)).is_err() {
            return Ok(());
        }
        fill(stream, decoder)?;
    }
}

fn reconnect(setup: &ExecutorSetup) -> (UnixStream, Decoder) {
    loop {
        let opened = ensure_running(&setup.program, &setup.arguments, &setup.config);
        match opened.map(greet) {
            Ok(Ok((stream, decoder, _))) => return (stream, decoder),
            Ok(Err(error)) => tracing::error!(%error, "the executor is not understood"),
            Err(error) => tracing::error!(%error, "no executor can be started"),
        }
        std::thread::sleep(RETRY);
    }
}
