//! Where a node sends its files to other nodes.

use super::{
    Answer, Expected, Greeting, HANDSHAKE, PASS_LIFE, PATIENCE, Pass, READER, Request, SOURCE, STORED, TO_DISK,
};
use super::{Visit, bound, read, write};
use crate::auth;
use crate::channel::{Blocking, Certificate, Channel};
use crate::files::{FileStore, filling, micros_of};
use crate::strangers::Strangers;
use crate::versions::WIRE;
use amalgam_core::node::{Turn, Uploads};
use amalgam_core::vocabulary::{NodeId, StoredFile};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Maximum number of transfers at once, small files included.
const MOST_AT_ONCE: usize = 64;

/// Where a node listens for other nodes that fetch its files.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FilesAddress {
    pub listen: Listen,
    /// The address that other nodes are told, if it is not the one that it listens at.
    pub advertise: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Listen {
    Nowhere,
    /// At the address from which it is connected to the server, with a port that the system chooses.
    #[default]
    TowardServer,
    At(SocketAddr),
}

/// A node's place for files that other nodes fetch.
pub struct Port {
    certificate: Certificate,
    at: FilesAddress,
    listening: Mutex<Option<Listening>>,
    sender: Arc<Sender>,
}

struct Listening {
    address: SocketAddr,
    /// The address that other nodes are told.
    advertised: String,
    accepting: AbortHandle,
}

impl Port {
    /// # Errors
    /// If the system returns no random numbers.
    pub fn new(state: PathBuf, node: NodeId, at: FilesAddress) -> io::Result<Port> {
        let (expected, uploads) = Default::default();
        let sender =
            Arc::new(Sender { state, node, expected, uploads, places: Arc::new(Semaphore::new(MOST_AT_ONCE)) });
        Ok(Port { certificate: Certificate::of_process()?, at, listening: Mutex::default(), sender })
    }

    /// Listens, if it does not yet. `local` is this machine's address on its connection to the server, if there is one.
    ///
    /// # Errors
    /// Names the address and why it cannot be used.
    pub async fn listen(&self, local: Option<IpAddr>) -> io::Result<()> {
        let wanted = match (self.at.listen, local) {
            (Listen::Nowhere, _) | (Listen::TowardServer, None) => return Ok(()),
            (Listen::TowardServer, Some(ip)) => SocketAddr::new(ip, 0),
            (Listen::At(address), _) => address,
        };
        let is_there = |listening: &Listening| {
            listening.address.ip() == wanted.ip() && [0, listening.address.port()].contains(&wanted.port())
        };
        let bound = match lock(&self.listening).as_ref().filter(|listening| is_there(listening)) {
            Some(listening) => Ok(listening.address),
            None => Err(()),
        };
        let address = match bound {
            Ok(address) => address,
            Err(()) => {
                let in_use = |error| io::Error::other(format!("cannot listen for files at {wanted}: {error}"));
                let listener = TcpListener::bind(wanted).await.map_err(in_use)?;
                let address = listener.local_addr()?;
                let accept = accept(listener, self.certificate.clone(), Arc::clone(&self.sender));
                let accepting = tokio::spawn(accept).abort_handle();
                let fresh = Listening { address, advertised: String::new(), accepting };
                if let Some(before) = lock(&self.listening).replace(fresh) {
                    before.accepting.abort();
                }
                address
            }
        };
        if let Some(listening) = lock(&self.listening).as_mut() {
            let ip = if address.ip().is_unspecified() { local.unwrap_or(address.ip()) } else { address.ip() };
            let told = || SocketAddr::new(ip, address.port()).to_string();
            listening.advertised = self.at.advertise.clone().unwrap_or_else(told);
            tracing::info!(%address, advertised = listening.advertised, "listening for nodes that fetch files");
        }
        Ok(())
    }

    /// The server announces a node that will fetch a file.
    pub async fn expect(&self, visit: Visit) -> Expected {
        let Some(address) = lock(&self.listening).as_ref().map(|listening| listening.advertised.clone()) else {
            return Expected::NotListening;
        };
        let (sender, file) = (Arc::clone(&self.sender), visit.file);
        let is_here = tokio::task::spawn_blocking(move || sender.store().holds(&file.digest, file.bytes)).await;
        if !is_here.unwrap_or(false) {
            return Expected::Absent;
        }
        let Ok(place) = Arc::clone(&self.sender.places).try_acquire_owned() else {
            return Expected::Busy(Vec::new());
        };
        if let Turn::Later(others) = lock(&self.sender.uploads).ask(file, visit.reader) {
            return Expected::Busy(others);
        }
        let uploads = Arc::clone(&self.sender.uploads);
        let slot = Slot { uploads, file, reader: visit.reader, is_complete: false, _place: place };
        let number = visit.pass.number;
        let admitted = Admitted { pass: visit.pass, slot, until: Instant::now() + PASS_LIFE };
        lock(&self.sender.expected).insert(number, admitted);
        let sender = Arc::downgrade(&self.sender);
        tokio::spawn(async move {
            tokio::time::sleep(PASS_LIFE).await;
            if let Some(sender) = sender.upgrade() {
                lock(&sender.expected).remove(&number);
            }
        });
        Expected::Ready { address }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(listening) = lock(&self.listening).take() {
            listening.accepting.abort();
        }
    }
}

struct Sender {
    state: PathBuf,
    node: NodeId,
    expected: Mutex<HashMap<u64, Admitted>>,
    uploads: Arc<Mutex<Uploads>>,
    /// Limits the passes and transfers at once, each of which may take a thread.
    places: Arc<Semaphore>,
}

/// A pass that was not used yet.
struct Admitted {
    pass: Pass,
    slot: Slot,
    until: Instant,
}

/// A place among the files that are sent at once.
struct Slot {
    uploads: Arc<Mutex<Uploads>>,
    file: StoredFile,
    reader: NodeId,
    is_complete: bool,
    _place: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.uploads).end(self.file, self.reader, self.is_complete);
    }
}

/// A file that is sent now.
struct Upload {
    channel: Channel,
    file: File,
    slot: Slot,
    offset: u64,
}

async fn accept(listener: TcpListener, certificate: Certificate, sender: Arc<Sender>) {
    let mut strangers = Strangers::default();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // The process has most likely no file descriptors left.
            strangers.drop_oldest();
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let must_go = strangers.add(address.ip());
        let (sender, certificate) = (Arc::clone(&sender), certificate.clone());
        tokio::spawn(async move {
            let let_in = tokio::select! {
                let_in = timeout(HANDSHAKE, sender.let_in(stream, &certificate)) => let_in,
                _ = must_go => return tracing::warn!(%address, "too many connections without a pass; closed the oldest"),
            };
            match let_in {
                Ok(Ok(Some(upload))) => {
                    // The number of these threads is limited by the places.
                    tokio::task::spawn_blocking(move || send(upload, address));
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(%address, %error, "refused a connection that asked for a file"),
                Err(_) => tracing::warn!(%address, "a connection for files did not complete the handshake in time"),
            }
        });
    }
}

impl Sender {
    fn store(&self) -> FileStore {
        FileStore::of(&self.state, self.node)
    }

    /// `None` if the file is gone.
    async fn let_in(&self, stream: TcpStream, certificate: &Certificate) -> io::Result<Option<Upload>> {
        let mut channel = Channel::accept_encrypted(stream, certificate).await?;
        let nonce = auth::new_nonce().map_err(io::Error::other)?;
        write(&mut channel, &Greeting { versions: WIRE, nonce }).await?;
        let request: Request = read(&mut channel).await?;
        let admitted = match self.admit(&request, &bound(&channel, &nonce)?) {
            Ok(admitted) => admitted,
            Err(why) => {
                write(&mut channel, &Answer::Refused { why: why.clone() }).await?;
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        };
        let (store, digest) = (self.store(), admitted.slot.file.digest);
        let opened = tokio::task::spawn_blocking(move || store.open(&digest)).await.map_err(io::Error::other)??;
        let Some((file, written)) = opened else {
            write(&mut channel, &Answer::Absent).await?;
            return Ok(None);
        };
        let proof = auth::prove(&admitted.pass.secret, SOURCE, &bound(&channel, &request.nonce)?);
        write(&mut channel, &Answer::Sending { proof, written: micros_of(written) }).await?;
        Ok(Some(Upload { channel, file, slot: admitted.slot, offset: request.offset }))
    }

    /// Takes the pass of a request, which is then used.
    fn admit(&self, request: &Request, bound: &[u8]) -> Result<Admitted, String> {
        if !WIRE.contains(request.version) {
            return Err(format!("unsupported protocol version {}; this program supports {WIRE}", request.version));
        }
        let unknown = || {
            "the pass is wrong, was used or has expired; the server gives one for each transfer, to a node that asks for it".to_owned()
        };
        let mut expected = lock(&self.expected);
        let admitted = expected.get(&request.pass).ok_or_else(unknown)?;
        if Instant::now() > admitted.until || !auth::verify(&admitted.pass.secret, READER, bound, &request.proof) {
            return Err(unknown());
        }
        if request.offset > admitted.slot.file.bytes {
            return Err(format!("the file has {} bytes, fewer than {}", admitted.slot.file.bytes, request.offset));
        }
        expected.remove(&request.pass).ok_or_else(unknown)
    }
}

fn send(upload: Upload, address: SocketAddr) {
    let Upload { channel, file, mut slot, offset } = upload;
    let (reader, digest, count) = (slot.reader, slot.file.digest, slot.file.bytes - offset);
    let started = Instant::now();
    let sent = channel.into_blocking().and_then(|mut channel| {
        channel.set_patience(PATIENCE)?;
        filling::send(&file, offset, count, &mut channel)?;
        channel.set_patience(TO_DISK)?;
        is_stored(&mut channel)
    });
    let millis = started.elapsed().as_millis() as u64;
    match sent {
        Ok(is_complete) => {
            slot.is_complete = is_complete;
            tracing::info!(%reader, %address, file = %digest, offset, bytes = count, millis, is_complete, "sent a file");
        }
        Err(error) => tracing::warn!(%reader, %address, file = %digest, %error, "a node stopped receiving a file"),
    }
}

/// Whether the reader has verified and stored the file.
fn is_stored(channel: &mut Blocking) -> io::Result<bool> {
    let mut last = [0];
    let read = channel.read(&mut last)?;
    // The reader may be gone.
    let _ = channel.finish();
    Ok(read == 1 && last == [STORED])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
