//! Fetches a file from the node that has it.

use super::{Answer, Greeting, HANDSHAKE, PATIENCE, Pass, READER, Request, SOURCE, STORED, bound, read, write};
use crate::auth;
use crate::channel::Channel;
use crate::files::{FillError, Incoming, time_of};
use crate::versions::WIRE;
use amalgam_core::vocabulary::{Fetched, StoredFile};
use std::io::{self, Write};
use std::time::Duration;
use tokio::time::timeout;

/// How long a node is waited for to accept a connection. Then the file is fetched through the server.
const CONNECT: Duration = Duration::from_secs(2);

pub(crate) enum Visited {
    /// The bytes of the file follow.
    Open(Channel, Opened),
    Absent,
}

/// What is known before the first byte.
pub(crate) struct Opened {
    written: i64,
}

/// Asks for a file from an offset on.
///
/// # Errors
/// If nothing accepts the pass there.
pub(crate) async fn visit(address: &str, pass: &Pass, offset: u64) -> io::Result<Visited> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
    let mut channel = timeout(CONNECT, Channel::connect_encrypted(address)).await.map_err(late)??;
    timeout(HANDSHAKE, request(&mut channel, pass, offset)).await.map_err(late)?.map(|opened| match opened {
        Some(opened) => Visited::Open(channel, opened),
        None => Visited::Absent,
    })
}

async fn request(channel: &mut Channel, pass: &Pass, offset: u64) -> io::Result<Option<Opened>> {
    let greeting: Greeting = read(channel).await?;
    let version = WIRE.common(greeting.versions).ok_or_else(|| {
        io::Error::other(format!("it supports protocol {}, and this program supports {WIRE}", greeting.versions))
    })?;
    let nonce = auth::new_nonce().map_err(io::Error::other)?;
    let proof = auth::prove(&pass.secret, READER, &bound(channel, &greeting.nonce)?);
    write(channel, &Request { version, pass: pass.number, nonce, proof, offset }).await?;
    match read(channel).await? {
        Answer::Sending { proof, written } if auth::verify(&pass.secret, SOURCE, &bound(channel, &nonce)?, &proof) => {
            Ok(Some(Opened { written }))
        }
        Answer::Sending { .. } => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "it cannot prove that it has the pass"))
        }
        Answer::Refused { why } => Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("it refuses: {why}"))),
        Answer::Absent => Ok(None),
    }
}

/// Receives the rest of the file, verifies and stores it. Blocks. What arrived before the source stopped is returned.
pub(crate) fn receive(
    channel: Channel,
    opened: &Opened,
    file: StoredFile,
    mut incoming: Incoming,
) -> io::Result<(Fetched, Option<Incoming>)> {
    let before = incoming.bytes();
    let blocking = channel.into_blocking().and_then(|channel| channel.set_patience(PATIENCE).map(|()| channel));
    let Ok(mut channel) = blocking else { return Ok((Fetched::Unreachable, Some(incoming))) };
    incoming.written = time_of(opened.written);
    match incoming.fill(&mut channel, file.bytes.saturating_sub(before)) {
        Ok(()) => {}
        Err(FillError::Disk(error)) => return Err(error),
        Err(FillError::Source(error)) => {
            let (offset, bytes) = (incoming.bytes(), file.bytes);
            tracing::warn!(file = %file.digest, offset, bytes, %error, "a node stopped sending a file");
            let is_silent = incoming.bytes() == before;
            return Ok((if is_silent { Fetched::Unreachable } else { Fetched::CutShort }, Some(incoming)));
        }
    }
    let is_right = incoming.keep(Some(file.digest))?.is_some();
    if is_right {
        // From now on this node can send it. The source may be gone.
        let _ = channel.write_all(&[STORED]);
    }
    let _ = channel.finish();
    Ok((if is_right { Fetched::Done } else { Fetched::Wrong }, None))
}
