//! The connection between a standby and the active server of its cluster, which sends it the files that all its servers have.

use super::server::{Certificated, Gate};
use super::{Answer, Hello, Introduction, Joined, Link, Obstacle, Terms, Validity, Wire};
use crate::auth::TokenEntry;
use crate::authority::SharedFiles;
use crate::shell::Parcel;
use amalgam_core::vocabulary::{self, Instant};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval at which the files are checked for changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// An accepted standby.
pub(super) struct Standby {
    name: String,
    certified: Certificated,
    link: Link,
    state_dir: PathBuf,
}

impl Gate {
    /// Accepts a server that has authenticated itself with a certificate.
    ///
    /// # Errors
    /// If the connection breaks.
    pub(super) async fn let_in_standby(
        &self,
        mut link: Link,
        hello: Hello,
        (entry, certified): (TokenEntry, Option<Certificated>),
    ) -> io::Result<Option<Standby>> {
        let (Introduction::Standby { name }, Some(certified)) = (hello.introduction, certified) else {
            return Ok(None);
        };
        let (Some(certifier), Some(lease)) = (&self.certifier, self.lease) else {
            let refused = Answer::Refused { why: NO_STORE.to_owned(), obstacle: Obstacle::Lasting };
            link.write(&refused).await?;
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, NO_STORE));
        };
        let longest_silence = Some(vocabulary::Duration::from_micros(lease.as_micros() as u64));
        let (terms, proof) = (Terms::Standby, [0; 32]);
        link.write(&Answer::Accepted { incarnation: 0, terms, proof, longest_silence }).await?;
        link.trust();
        link.version = hello.version;
        link.validity = Validity::of(&self.secrets, &entry);
        link.pulse = Some(lease / super::server::PULSES);
        Ok(Some(Standby { name, certified, link, state_dir: certifier.state_dir().to_owned() }))
    }

    /// Sends the files now and whenever they change, until the connection breaks.
    pub(super) async fn serve_standby(&self, standby: Standby) {
        let Standby { name, certified, link, state_dir } = standby;
        tracing::info!(name, "a standby connected");
        let (_parcels_in, parcels) = mpsc::unbounded_channel::<Parcel>();
        let (wire_in, wire) = mpsc::unbounded_channel();
        let mut conversation = link.converse(parcels, wire, || Instant::ZERO);
        let mut sent = None;
        let mut look = tokio::time::interval(INTERVAL);
        let end = loop {
            tokio::select! {
                next = conversation.next() => match next {
                    Ok(Wire::Stored(authority)) => self.note_stored(Some(&certified), &authority),
                    Ok(_) => {}
                    Err(error) => break error,
                },
                _ = look.tick() => {
                    let state_dir = state_dir.clone();
                    match tokio::task::spawn_blocking(move || SharedFiles::read(&state_dir)).await {
                        Ok(Ok(files)) if sent.as_ref() != Some(&files) => {
                            sent = Some(files.clone());
                            let _ = wire_in.send(Wire::Shared(files).into());
                        }
                        Ok(Ok(_)) | Err(_) => {}
                        Ok(Err(error)) => tracing::error!("{error}; a standby does not get it; {}", error.remedy()),
                    }
                }
            }
        };
        tracing::info!(name, %end, "a standby disconnected");
    }
}

pub(super) const NO_STORE: &str =
    "this server has no standby: write [store] with the endpoints of an etcd into the configurations of both";

/// Passes the files of the active server to `take`, which returns the fingerprint of the authority that signs now, or `None` if the
/// connection is to end. Returns when it has ended.
pub async fn serve_as_standby<Taken: Future<Output = Option<String>>>(
    joined: Joined,
    mut take: impl FnMut(SharedFiles) -> Taken,
) -> io::Error {
    let (_parcels_in, parcels) = mpsc::unbounded_channel::<Parcel>();
    let (wire_in, wire) = mpsc::unbounded_channel();
    let mut conversation = joined.link.converse(parcels, wire, || Instant::ZERO);
    loop {
        match conversation.next().await {
            Ok(Wire::Shared(files)) => match take(files).await {
                Some(signer) => drop(wire_in.send(Wire::Stored(signer).into())),
                None => return io::Error::other("the files were received"),
            },
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

impl super::Certifier {
    fn state_dir(&self) -> &Path {
        self.authority.state_dir()
    }
}
