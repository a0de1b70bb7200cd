//! Fetches files from other nodes into a node's store, in the background, and reports each result to the node's agent.

use super::{Handle, Input};
use crate::files::{FileStore, Incoming, PIECE, Piece, PieceAsk, Rest, Source, time_of};
use amalgam_core::hosting::Envelope;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToNode};
use amalgam_core::vocabulary::{Digest, Fetched, NodeId, StoredFile};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Pause before a piece is requested again, and the number of repetitions.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1_000 });
const PAUSES: u32 = 3;

/// How long the start of a file is kept for a fetch of the rest.
const KEPT: Duration = Duration::from_secs(90);

/// Accepts orders about files from the loop.
#[derive(Clone)]
pub struct Fetcher(mpsc::UnboundedSender<ToExecutor>);

impl Fetcher {
    /// Accepts orders about files, and returns other orders.
    pub fn take(&self, order: ToExecutor) -> Option<ToExecutor> {
        match order {
            ToExecutor::Fetch { .. } | ToExecutor::Drop { .. } => {
                // If the receiver is gone, the process is ending.
                let _ = self.0.send(order);
                None
            }
            other => Some(other),
        }
    }
}

/// A fetcher for the loop, and the receiver of its orders.
pub fn fetcher() -> (Fetcher, FileOrders) {
    let (orders, ordered) = mpsc::unbounded_channel();
    (Fetcher(orders), FileOrders(ordered))
}

pub struct FileOrders(mpsc::UnboundedReceiver<ToExecutor>);

impl FileOrders {
    /// Executes orders as long as the loop runs. The agent limits the number of concurrent fetches. Without a source,
    /// all nodes have their files in the same state directory.
    pub async fn carry_out(mut self, state: PathBuf, source: Option<Arc<dyn Source>>, handle: Handle) {
        let under_way = Arc::new(Mutex::new(HashSet::new()));
        let starts = Arc::new(Starts::default());
        while let Some(order) = self.0.recv().await {
            match order {
                ToExecutor::Drop { node, files } => {
                    // Remove it immediately: a fetch that is ordered later must not be undone.
                    files.iter().for_each(|digest| FileStore::of(&state, node).remove(digest));
                }
                ToExecutor::Fetch { node, file, from } => {
                    if !lock(&under_way).insert((node, file.digest, from)) {
                        continue;
                    }
                    let (state, source, handle) = (state.clone(), source.clone(), handle.clone());
                    let (under_way, starts) = (Arc::clone(&under_way), Arc::clone(&starts));
                    tokio::spawn(async move {
                        let outcome = fetch(&state, node, file, from, source.as_deref(), &starts).await;
                        lock(&under_way).remove(&(node, file.digest, from));
                        let end = Box::new((file.digest, from, outcome));
                        let message = Message::ToNode(ToNode::Executor(ExecutorReport::Fetched { node, end }));
                        let envelope = Envelope { from: Address::Executor(node), to: Address::Node(node), message };
                        let _ = handle.send(Input::Mail(vec![envelope]));
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

/// The starts of files whose source stopped sending. The rest may come from another one.
#[derive(Default)]
struct Starts(Mutex<HashMap<(NodeId, Digest), Start>>);

struct Start {
    incoming: Incoming,
    /// The nodes that sent it.
    from: Vec<NodeId>,
    since: Instant,
}

impl Starts {
    fn take(&self, node: NodeId, digest: Digest) -> Option<Start> {
        lock(&self.0).remove(&(node, digest))
    }

    /// Keeps the start for some time, unless a longer one is there.
    fn keep(self: &Arc<Self>, node: NodeId, digest: Digest, incoming: Incoming, from: Vec<NodeId>) {
        let is_longest = |start: &Start| start.incoming.bytes() >= incoming.bytes();
        if incoming.bytes() == 0 || lock(&self.0).get(&(node, digest)).is_some_and(is_longest) {
            return;
        }
        lock(&self.0).insert((node, digest), Start { incoming, from, since: Instant::now() });
        let starts = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            if let Some(starts) = starts.upgrade() {
                lock(&starts.0).retain(|_, start| start.since.elapsed() < KEPT);
            }
        });
    }
}

async fn fetch(
    state: &Path,
    node: NodeId,
    file: StoredFile,
    from: NodeId,
    source: Option<&dyn Source>,
    starts: &Arc<Starts>,
) -> Fetched {
    let store = FileStore::of(state, node);
    let no_room = |error: io::Error| Fetched::NoRoom(FileStore::of(state, node).trouble(&error));
    let Some(source) = source else {
        let other = FileStore::of(state, from);
        return match away_from_the_loop(move || store.link_from(&other, &file)).await {
            Ok(true) => Fetched::Done,
            Ok(false) => Fetched::Absent,
            Err(error) => no_room(error),
        };
    };
    let (incoming, mut senders) = match starts.take(node, file.digest) {
        Some(Start { incoming, from, .. }) => (Ok(incoming), from),
        None => (away_from_the_loop(move || store.incoming()).await, Vec::new()),
    };
    let received = match incoming {
        Ok(incoming) => receive(incoming, file, from, source).await,
        Err(error) => Err(error),
    };
    let (outcome, rest) = match received {
        Ok(received) => received,
        Err(error) => return no_room(error),
    };
    if !senders.contains(&from) {
        senders.push(from);
    }
    if let Some(incoming) = rest {
        starts.keep(node, file.digest, incoming, senders);
        return outcome;
    }
    if outcome != Fetched::Wrong {
        return outcome;
    }
    // Each of them may have sent the wrong part, and verifies its copy.
    let mut outcome = outcome;
    for sender in senders {
        let ask = PieceAsk { node: sender, digest: file.digest, offset: 0, limit: 1, is_suspect: true };
        if source.piece(ask).await == Piece::Absent && sender == from {
            outcome = Fetched::Spoiled;
        }
    }
    outcome
}

/// Receives the rest of a file. Returns what has arrived if a later fetch can continue from there.
async fn receive(
    incoming: Incoming,
    file: StoredFile,
    from: NodeId,
    source: &dyn Source,
) -> io::Result<(Fetched, Option<Incoming>)> {
    match source.rest(file, from, incoming).await {
        Rest::Ended(ended) => ended,
        Rest::NotDirect(incoming) => receive_pieces(incoming, file, from, source).await,
    }
}

/// Receives a file piece by piece, so that it is never completely in memory.
async fn receive_pieces(
    mut incoming: Incoming,
    file: StoredFile,
    from: NodeId,
    source: &dyn Source,
) -> io::Result<(Fetched, Option<Incoming>)> {
    let before = incoming.bytes();
    let mut offset = before;
    // An empty file is requested for its time.
    while offset < file.bytes || file.bytes == 0 {
        let ask = PieceAsk { node: from, digest: file.digest, offset, limit: PIECE, is_suspect: false };
        let piece = match next_piece(source, ask, before).await {
            Piece::First { bytes, written } if offset == 0 => {
                incoming.written = time_of(written);
                Piece::Bytes(bytes)
            }
            piece => piece,
        };
        let piece = match piece {
            Piece::Bytes(piece) if piece.is_empty() && file.bytes == 0 => break,
            Piece::Bytes(piece) if piece.is_empty() || piece.len() > PIECE as usize => {
                return Ok((Fetched::Wrong, None));
            }
            Piece::Bytes(piece) => piece,
            Piece::First { .. } => return Ok((Fetched::Wrong, None)),
            Piece::Absent => return Ok((Fetched::Absent, Some(incoming))),
            Piece::Unreachable if offset > before => return Ok((Fetched::CutShort, Some(incoming))),
            Piece::Unreachable => return Ok((Fetched::Unreachable, Some(incoming))),
        };
        offset += piece.len() as u64;
        incoming = away_from_the_loop(move || -> io::Result<Incoming> {
            incoming.write(&piece)?;
            Ok(incoming)
        })
        .await?;
    }
    let kept = away_from_the_loop(move || incoming.keep(Some(file.digest))).await?;
    Ok((if kept.is_some() { Fetched::Done } else { Fetched::Wrong }, None))
}

/// Requests the next piece. A node that has sent pieces, from `before` on, and does not answer now is asked again before another
/// one is.
async fn next_piece(source: &dyn Source, ask: PieceAsk, before: u64) -> Piece {
    let mut pauses = if ask.offset > before { PAUSES } else { 0 };
    loop {
        match source.piece(ask).await {
            Piece::Unreachable if pauses > 0 => tokio::time::sleep(PAUSE).await,
            piece => return piece,
        }
        pauses -= 1;
    }
}

/// Runs the work on a thread that may wait for the disk.
async fn away_from_the_loop<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Left;
    use amalgam_core::vocabulary::Digest;
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::time::SystemTime;

    /// A source with scripted answers, in order.
    struct Scripted(Mutex<VecDeque<Piece>>);

    impl Source for Scripted {
        fn piece(&self, _: PieceAsk) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>> {
            let next = lock(&self.0).pop_front().expect("no further requests");
            Box::pin(async move { next })
        }
    }

    fn fetched(state: &Path, file: StoredFile, pieces: &[Piece]) -> Fetched {
        let source = Scripted(Mutex::new(pieces.iter().cloned().collect()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let starts = Arc::new(Starts::default());
        let outcome = runtime.block_on(fetch(state, NodeId(1), file, NodeId(2), Some(&source), &starts));
        assert!(lock(&source.0).is_empty());
        outcome
    }

    #[test]
    fn a_file_is_received_in_pieces_and_errors_are_detected() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("o"), "abcdef").unwrap();
        let there = FileStore::of(state.path(), NodeId(2));
        let file = there.put(&Left::find(state.path(), "o").unwrap(), false).unwrap();
        let bytes = |text: &str| Piece::Bytes(text.as_bytes().to_vec());
        let here = FileStore::of(state.path(), NodeId(1));
        for (pieces, outcome) in [
            // The sender is asked to verify its copy.
            (vec![bytes("abc"), bytes("dex"), bytes("a")], Fetched::Wrong),
            (vec![bytes("abc"), bytes("dex"), Piece::Unreachable], Fetched::Wrong),
            (vec![bytes("abc"), bytes("dex"), Piece::Absent], Fetched::Spoiled),
            (vec![bytes("abc"), bytes(""), Piece::Absent], Fetched::Spoiled),
            (vec![bytes("abc"), Piece::Absent], Fetched::Absent),
            (vec![Piece::Unreachable], Fetched::Unreachable),
            ([vec![bytes("abc")], vec![Piece::Unreachable; 4]].concat(), Fetched::CutShort),
        ] {
            assert_eq!(fetched(state.path(), file, &pieces), outcome);
            assert_eq!(here.list(), [], "{outcome:?}");
        }
        // A transfer continues after a short silence.
        let silence = vec![Piece::Unreachable; 3];
        let pieces = [vec![bytes("abc")], silence.clone(), vec![bytes("de")], silence, vec![bytes("f")]].concat();
        assert_eq!(fetched(state.path(), file, &pieces), Fetched::Done);
        assert!(here.has(&file.digest, 6));
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        here.remove(&file.digest);
        let dated = [Piece::first(b"abc".to_vec(), written), bytes("def")];
        assert_eq!(fetched(state.path(), file, &dated), Fetched::Done);
        let apart = here.written(&file.digest).unwrap().duration_since(written).unwrap();
        assert!(here.has(&file.digest, 6) && apart < Duration::from_millis(1), "{apart:?}");
        // An empty file has a time, too, and the time may be invalid.
        std::fs::write(state.path().join("e"), "").unwrap();
        let empty = there.put(&Left::find(state.path(), "e").unwrap(), false).unwrap();
        let nonsense = Piece::First { bytes: Vec::new(), written: i64::MIN };
        assert_eq!(fetched(state.path(), empty, &[nonsense]), Fetched::Done);
        here.remove(&empty.digest);
        assert_eq!(fetched(state.path(), empty, &[Piece::first(Vec::new(), written)]), Fetched::Done);
        assert!(here.written(&empty.digest).unwrap().duration_since(written).unwrap() < Duration::from_millis(1));
        assert_eq!(
            fetched(state.path(), file, &[bytes("abc"), Piece::first(b"def".to_vec(), written), Piece::Absent]),
            Fetched::Spoiled
        );
    }

    #[test]
    fn the_rest_of_a_file_comes_from_another_node_from_where_the_first_one_stopped() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("o"), "abcdef").unwrap();
        let there = FileStore::of(state.path(), NodeId(2));
        let file = there.put(&Left::find(state.path(), "o").unwrap(), false).unwrap();
        let (starts, here) = (Arc::new(Starts::default()), FileStore::of(state.path(), NodeId(1)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let fetched = |from: u32, pieces: &[Piece]| {
            let source = Scripted(Mutex::new(pieces.iter().cloned().collect()));
            let outcome = runtime.block_on(fetch(state.path(), NodeId(1), file, NodeId(from), Some(&source), &starts));
            assert!(lock(&source.0).is_empty());
            outcome
        };
        let bytes = |text: &str| Piece::Bytes(text.as_bytes().to_vec());
        assert_eq!(fetched(2, &[vec![bytes("abc")], vec![Piece::Unreachable; 4]].concat()), Fetched::CutShort);
        assert_eq!(fetched(3, &[Piece::Unreachable]), Fetched::Unreachable, "it was not cut short by this one");
        assert_eq!(fetched(4, &[bytes("d"), Piece::Absent]), Fetched::Absent);
        assert_eq!(fetched(5, &[bytes("ef")]), Fetched::Done);
        assert!(here.has(&file.digest, 6));
        // All that sent a part of a wrong file verify their copies, and it is fetched again as a whole.
        here.remove(&file.digest);
        assert_eq!(fetched(2, &[bytes("abX"), Piece::Absent]), Fetched::Absent);
        assert_eq!(fetched(3, &[bytes("def"), Piece::Absent, bytes("a")]), Fetched::Wrong);
        assert_eq!(fetched(3, &[bytes("abcdef")]), Fetched::Done);
    }

    #[test]
    fn an_unusable_store_is_reported_with_its_path_and_the_reason() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("files"), "in the way").unwrap();
        let file = StoredFile { digest: Digest([7; 32]), bytes: 3 };
        let Fetched::NoRoom(why) = fetched(state.path(), file, &[]) else { panic!("the store is usable") };
        assert!(why.contains("files/1 cannot be used"), "{why}");
    }
}
