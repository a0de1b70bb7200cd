//! Calls over the server's socket on this machine. `ureq` has this interface for connections of other kinds.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport};

/// Connects to a socket, whatever the URL says.
#[derive(Debug)]
pub struct LocalConnector {
    pub socket: PathBuf,
}

impl Connector for LocalConnector {
    type Out = LocalTransport;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<LocalTransport>, Error> {
        let stream = UnixStream::connect(&self.socket).map_err(|error| {
            let what = format!("cannot connect to {}: {error}", self.socket.display());
            Error::Io(io::Error::new(error.kind(), what))
        })?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(LocalTransport { stream, buffers }))
    }
}

pub struct LocalTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl fmt::Debug for LocalTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTransport").finish_non_exhaustive()
    }
}

/// The time limit as sockets take it: `None` for no limit.
fn limit(timeout: &NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|limit| *limit)
}

/// A socket reports a passed time limit as if it were non-blocking.
fn failed(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

impl Transport for LocalTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        self.stream.set_write_timeout(limit(&timeout))?;
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output).map_err(|error| failed(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.for_read();
        self.stream.set_read_timeout(limit(&timeout))?;
        let input = self.buffers.input_append_buf();
        let length = loop {
            match self.stream.read(input) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| failed(error, timeout))?,
            }
        };
        self.buffers.input_appended(length);
        Ok(length > 0)
    }

    fn is_open(&mut self) -> bool {
        // A connection that was idle may have been closed by the server, which makes it readable.
        let closed = self.stream.set_nonblocking(true).is_ok()
            && !matches!(self.stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        !closed && self.stream.set_nonblocking(false).is_ok()
    }
}

/// Gives an address that is never used: the socket has a path.
#[derive(Debug)]
pub struct NoAddress;

impl Resolver for NoAddress {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Ok(addresses)
    }
}
