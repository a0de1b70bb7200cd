//! Brings files from other nodes into a node's store, in the background, and tells the node's agent what became of each.

use super::{FileStore, Incoming, PIECE};
use crate::shell::{Handle, Input};
use amalgam_core::hosting::Letter;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToNode};
use amalgam_core::vocabulary::{Digest, Fetched, NodeId, StoredFile};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// A part of a file of another node, or why there is none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Piece {
    Bytes(Vec<u8>),
    Absent,
    Unreachable,
}

/// Where files of other nodes come from.
pub trait Source: Send + Sync {
    fn piece(
        &self,
        node: NodeId,
        digest: Digest,
        offset: u64,
        limit: u32,
    ) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>>;

    /// Whether the node keeps its files in the same state directory.
    fn is_here(&self, node: NodeId) -> bool;
}

/// Orders about files, from the loop.
#[derive(Clone)]
pub struct Fetcher(mpsc::UnboundedSender<ToExecutor>);

impl Fetcher {
    /// Takes the orders that are about files; the others come back.
    pub fn take(&self, order: ToExecutor) -> Option<ToExecutor> {
        match order {
            ToExecutor::Fetch { .. } | ToExecutor::Drop { .. } => {
                // When its other end is gone, the process is ending.
                let _ = self.0.send(order);
                None
            }
            other => Some(other),
        }
    }
}

/// One for the loop, and what it orders.
pub fn fetcher() -> (Fetcher, FileOrders) {
    let (orders, ordered) = mpsc::unbounded_channel();
    (Fetcher(orders), FileOrders(ordered))
}

pub struct FileOrders(mpsc::UnboundedReceiver<ToExecutor>);

impl FileOrders {
    /// Carries orders out for as long as the loop lives. How many fetches there are at once is the agent's to say.
    pub async fn carry_out(mut self, state: PathBuf, source: Arc<dyn Source>, handle: Handle) {
        let under_way = Arc::new(Mutex::new(HashSet::new()));
        while let Some(order) = self.0.recv().await {
            match order {
                ToExecutor::Drop { node, files } => {
                    // Here and now: a fetch that is ordered later must not be undone.
                    files.iter().for_each(|digest| FileStore::of(&state, node).remove(digest));
                }
                ToExecutor::Fetch { node, file, from } => {
                    if !lock(&under_way).insert((node, file.digest)) {
                        continue;
                    }
                    let (state, source, handle) = (state.clone(), Arc::clone(&source), handle.clone());
                    let under_way = Arc::clone(&under_way);
                    tokio::spawn(async move {
                        let outcome = fetch(&state, node, file, from, source.as_ref()).await;
                        lock(&under_way).remove(&(node, file.digest));
                        let end = Box::new((file.digest, outcome));
                        let message = Message::ToNode(ToNode::Executor(ExecutorReport::Fetched { node, end }));
                        let letter = Letter { from: Address::Executor(node), to: Address::Node(node), message };
                        let _ = handle.send(Input::Mail(vec![letter]));
                    });
                }
                _ => {}
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn fetch(state: &std::path::Path, node: NodeId, file: StoredFile, from: NodeId, source: &dyn Source) -> Fetched {
    let store = FileStore::of(state, node);
    let no_room = |error: io::Error| Fetched::NoRoom(FileStore::of(state, node).trouble(&error));
    if source.is_here(from) {
        let other = FileStore::of(state, from);
        return match away_from_the_loop(move || store.link_from(&other, &file)).await {
            Ok(true) => Fetched::Done,
            Ok(false) => Fetched::Absent,
            Err(error) => no_room(error),
        };
    }
    match receive(store, file, from, source).await {
        Ok(outcome) => outcome,
        Err(error) => no_room(error),
    }
}

/// Piece by piece, so that no file is ever in memory.
async fn receive(store: FileStore, file: StoredFile, from: NodeId, source: &dyn Source) -> io::Result<Fetched> {
    let mut incoming = away_from_the_loop(move || store.incoming()).await?;
    let mut offset = 0;
    while offset < file.bytes {
        let piece = match source.piece(from, file.digest, offset, PIECE).await {
            Piece::Bytes(piece) if piece.is_empty() || piece.len() > PIECE as usize => return Ok(Fetched::Wrong),
            Piece::Bytes(piece) => piece,
            Piece::Absent => return Ok(Fetched::Absent),
            Piece::Unreachable => return Ok(Fetched::Unreachable),
        };
        offset += piece.len() as u64;
        incoming = away_from_the_loop(move || -> io::Result<Incoming> {
            incoming.write(&piece)?;
            Ok(incoming)
        })
        .await?;
    }
    let kept = away_from_the_loop(move || incoming.keep(Some(file.digest))).await?;
    Ok(if kept.is_some() { Fetched::Done } else { Fetched::Wrong })
}

/// On a thread that may wait for the disk.
async fn away_from_the_loop<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Left;
    use std::collections::VecDeque;
    use std::path::Path;

    /// What a node that was asked says, in order.
    struct Scripted(Mutex<VecDeque<Piece>>);

    impl Source for Scripted {
        fn piece(&self, _: NodeId, _: Digest, _: u64, _: u32) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>> {
            let next = lock(&self.0).pop_front().expect("nothing more is asked");
            Box::pin(async move { next })
        }

        fn is_here(&self, _: NodeId) -> bool {
            false
        }
    }

    fn fetched(state: &Path, file: StoredFile, pieces: &[Piece]) -> Fetched {
        let source = Scripted(Mutex::new(pieces.iter().cloned().collect()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let outcome = runtime.block_on(fetch(state, NodeId(1), file, NodeId(2), &source));
        assert!(lock(&source.0).is_empty());
        outcome
    }

    #[test]
    fn a_file_comes_in_pieces_and_what_is_wrong_is_noticed() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("o"), "abcdef").unwrap();
        let there = FileStore::of(state.path(), NodeId(2));
        let file = there.put(&Left::find(state.path(), "o").unwrap(), false).unwrap();
        let bytes = |text: &str| Piece::Bytes(text.as_bytes().to_vec());
        let here = FileStore::of(state.path(), NodeId(1));
        for (pieces, outcome) in [
            (vec![bytes("abc"), bytes("dex")], Fetched::Wrong),
            (vec![bytes("abc"), bytes("")], Fetched::Wrong),
            (vec![bytes("abc"), Piece::Absent], Fetched::Absent),
            (vec![Piece::Unreachable], Fetched::Unreachable),
        ] {
            assert_eq!(fetched(state.path(), file, &pieces), outcome);
            assert_eq!(here.list(), [], "{outcome:?}");
        }
        assert_eq!(fetched(state.path(), file, &[bytes("abc"), bytes("def")]), Fetched::Done);
        assert!(here.has(&file.digest, 6));
    }

    #[test]
    fn what_cannot_be_kept_says_where_and_why() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("files"), "in the way").unwrap();
        let file = StoredFile { digest: Digest([7; 32]), bytes: 3 };
        let Fetched::NoRoom(why) = fetched(state.path(), file, &[]) else { panic!("it has no room") };
        assert!(why.contains("files/1 cannot be used"), "{why}");
    }
}
