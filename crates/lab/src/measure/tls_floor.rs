//! The time to send bytes over one TLS 1.3 connection on loopback, between two threads that do nothing else: the lower bound of
//! transfers between nodes of one machine.

use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "bench";
/// Bytes that are passed to the TLS library at once, and that it reads from the socket at once. By itself it reads 4 KiB.
const PART: usize = 256 << 10;

/// Sends `bytes` zeros from memory to memory.
///
/// # Errors
/// If loopback cannot be used.
pub fn memory_to_memory(bytes: u64) -> io::Result<Duration> {
    stream(bytes, io::repeat(0), |part| {
        std::hint::black_box(part);
        Ok(())
    })
}

/// Sends a file to another one, and writes that to the disk.
///
/// # Errors
/// If the files or loopback cannot be used.
pub fn file_to_file(from: &Path, to: &Path) -> io::Result<Duration> {
    let source = File::open(from)?;
    let (bytes, mut target) = (source.metadata()?.len(), File::create(to)?);
    let started = Instant::now();
    stream(bytes, source, |part| target.write_all(part))?;
    target.sync_all()?;
    Ok(started.elapsed())
}

fn stream(
    bytes: u64,
    mut source: impl Read + Send,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Duration> {
    let (server, client) = configurations().map_err(io::Error::other)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::scope(|threads| {
        let sender = threads.spawn(move || -> io::Result<()> {
            let (socket, _) = listener.accept()?;
            let mut connection = ServerConnection::new(server).map_err(io::Error::other)?;
            connection.set_buffer_limit(Some(PART));
            let mut out = StreamOwned::new(connection, socket);
            let (mut part, mut left) = (vec![0; PART], bytes);
            while left > 0 {
                let wanted = left.min(PART as u64) as usize;
                let length = source.read(&mut part[..wanted])?;
                if length == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                out.write_all(&part[..length])?;
                left -= length as u64;
            }
            out.flush()
        });
        let socket = Socket(BufReader::with_capacity(PART, TcpStream::connect(address)?));
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let mut connection = StreamOwned::new(ClientConnection::new(client, name).map_err(io::Error::other)?, socket);
        while connection.conn.is_handshaking() {
            connection.conn.complete_io(&mut connection.sock)?;
        }
        let started = Instant::now();
        let (mut part, mut received) = (vec![0; PART], 0);
        while received < bytes {
            let length = connection.read(&mut part)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(&part[..length])?;
            received += length as u64;
        }
        let time = started.elapsed();
        sender.join().map_err(|_| io::Error::other("the sending thread has failed"))??;
        Ok(time)
    })
}

fn configurations() -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), Box<dyn std::error::Error + Send + Sync>> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let certificate = made.cert.der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13])?;
    let server = server.with_no_client_auth().with_single_cert(vec![certificate.clone()], key.into())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let client = client.with_root_certificates(roots).with_no_client_auth();
    Ok((Arc::new(server), Arc::new(client)))
}

/// A socket that is read in large parts.
struct Socket(BufReader<TcpStream>);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_arrives_over_tls() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&from, &bytes).unwrap();
        assert!(file_to_file(&from, &to).unwrap() > Duration::ZERO);
        assert!(std::fs::read(&to).unwrap() == bytes);
        assert!(memory_to_memory(1_000_003).unwrap() > Duration::ZERO);
    }
}
