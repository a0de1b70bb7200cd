//! A TLS connection whose calls block, for threads that move whole files.

use super::Channel;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio_rustls::TlsStream;

/// Bytes that one system call reads at most. The TLS library by itself reads 4 KiB at a time.
const READ: usize = 128 << 10;
/// Bytes that are encrypted before they are written.
const WRITE: usize = 256 << 10;

pub(crate) struct Blocking(Side);

enum Side {
    Client(Box<StreamOwned<ClientConnection, Socket>>),
    Server(Box<StreamOwned<ServerConnection, Socket>>),
}

impl Channel {
    /// Uses the connection on a thread that may wait, from where the last read ended.
    ///
    /// # Errors
    /// If the connection is not encrypted.
    pub(crate) fn into_blocking(self) -> io::Result<Blocking> {
        let Channel::Tls(stream) = self else {
            return Err(io::Error::other("the connection is not encrypted"));
        };
        let side = match *stream {
            TlsStream::Client(stream) => {
                let (socket, mut connection) = stream.into_inner();
                connection.set_buffer_limit(Some(WRITE));
                Side::Client(Box::new(StreamOwned::new(connection, Socket::new(socket)?)))
            }
            TlsStream::Server(stream) => {
                let (socket, mut connection) = stream.into_inner();
                connection.set_buffer_limit(Some(WRITE));
                Side::Server(Box::new(StreamOwned::new(connection, Socket::new(socket)?)))
            }
        };
        Ok(Blocking(side))
    }
}

impl Blocking {
    /// A read or a write fails if it waits for this long.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        let socket = match &self.0 {
            Side::Client(stream) => stream.sock.0.get_ref(),
            Side::Server(stream) => stream.sock.0.get_ref(),
        };
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))
    }

    /// Tells the peer that nothing follows.
    pub fn finish(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Side::Client(stream) => stream.conn.send_close_notify(),
            Side::Server(stream) => stream.conn.send_close_notify(),
        }
        self.flush()
    }
}

impl Read for Blocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Side::Client(stream) => stream.read(buffer),
            Side::Server(stream) => stream.read(buffer),
        }
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Side::Client(stream) => stream.write(bytes),
            Side::Server(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Side::Client(stream) => stream.flush(),
            Side::Server(stream) => stream.flush(),
        }
    }
}

/// A socket that is read in large parts.
struct Socket(BufReader<TcpStream>);

impl Socket {
    fn new(socket: tokio::net::TcpStream) -> io::Result<Socket> {
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        Ok(Socket(BufReader::with_capacity(READ, socket)))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}
