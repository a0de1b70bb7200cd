//! The connection of a job host to the server, to which it sends the entries of its log.

use super::{Joined, Secrets, Terms, Wire};
use crate::shell::{Handle, Input};
use crate::store::{Entry, History, StoreError};
use std::io;
use std::ops::ControlFlow;
use tokio::sync::{mpsc, oneshot};

/// Size in bytes of the pieces in which the log is sent.
const PIECE: usize = 1 << 20;

/// Passes messages between this process's loop and the server, and sends the log to the server, until the connection
/// breaks.
pub async fn serve_as_job_host(joined: Joined, handle: &Handle, history: &History, secrets: &Secrets) -> io::Error {
    let Joined { terms, incarnation, mut link, .. } = joined;
    let Terms::JobHost { heard, .. } = terms else {
        return io::Error::other("unexpected answer: the server did not accept this process as a job host");
    };
    // New entries are queued from now on, and sent after the older entries below.
    let (parcels_in, parcels) = mpsc::unbounded_channel();
    handle.routes().set_server(Some(parcels_in));
    let end = async {
        if let Err(error) = catch_up(heard, handle, history, &mut link).await {
            return error;
        }
        if let Err(error) = tell_present(handle, &mut link).await {
            return error;
        }
        if handle.send(Input::MasterConnected { incarnation }).is_err() {
            return io::Error::other("this process is stopping");
        }
        let (wire_in, wire) = mpsc::unbounded_channel();
        let clock = handle.clock();
        let mut conversation = link.converse(parcels, wire, move || clock.now());
        let end = loop {
            match conversation.next().await {
                Ok(Wire::Mail(envelopes)) => {
                    if handle.send(Input::Mail(envelopes)).is_err() {
                        break io::Error::other("this process is stopping");
                    }
                }
                Ok(Wire::Certificate(certified)) => {
                    if let Some(answer) = secrets.renew(*certified) {
                        let _ = wire_in.send(answer.into());
                    }
                }
                Ok(Wire::Keys(keys)) => secrets.allow(keys),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let _ = handle.send(Input::MasterDisconnected);
        end
    }
    .await;
    handle.routes().set_server(None);
    end
}

/// Sends the log from entry `heard` on. If the log no longer has that entry, sends the full state instead.
async fn catch_up(heard: u64, handle: &Handle, history: &History, link: &mut super::Link) -> io::Result<()> {
    let clock = handle.clock();
    let mut from = heard;
    loop {
        let (history, log_end) = (history.clone(), history.end());
        let piece = tokio::task::spawn_blocking(move || piece_of(&history, from)).await.map_err(io::Error::other)?;
        let (first, entries) = piece.map_err(io::Error::other)?;
        if entries.is_empty() && from == log_end {
            return Ok(());
        }
        if first != from || entries.is_empty() {
            let (answer, answered) = oneshot::channel();
            let stopping = |_| io::Error::other("this process is stopping");
            handle.send(Input::ReportAll(answer)).map_err(|_| io::Error::other("this process is stopping"))?;
            let (next, changes) = answered.await.map_err(stopping)?;
            link.write(&Wire::All { now: clock.now(), next, changes }).await?;
            from = next;
            continue;
        }
        from += entries.len() as u64;
        link.write(&Wire::Log { now: clock.now(), first, entries }).await?;
    }
}

/// Sends the state that the log does not contain, or contains only as records, which are not used for recovery.
async fn tell_present(handle: &Handle, link: &mut super::Link) -> io::Result<()> {
    let present = handle.ask(|roles, _| roles.present()).await;
    let present = present.map_err(|_| io::Error::other("this process is stopping"))?;
    link.write(&Wire::Present { now: handle.clock().now(), present }).await
}

/// The next entries of the log from `from` on, and the number of the first of them.
fn piece_of(history: &History, from: u64) -> Result<(u64, Vec<Entry>), StoreError> {
    let (mut first, mut entries, mut bytes) = (from, Vec::new(), 0);
    history.scan(None, from, |number, entry| {
        if entries.is_empty() {
            first = number;
        }
        bytes += entry.payload.len();
        entries.push(entry.to_owned());
        if bytes < PIECE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok((first, entries))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Link, STRANGERS_FRAME};
    use super::*;
    use crate::channel::Channel;
    use crate::sealing::new_sealing;
    use crate::shell::{Clock, Committer, EventRing, Metrics, Shell, encode};
    use crate::store::{Options, Store};
    use amalgam_core::hosting::{Fact, Managers, Roles};
    use amalgam_core::job_manager::JobManagerSettings;
    use amalgam_core::preset::Preset;
    use amalgam_core::role::{Change, Record};
    use amalgam_core::vocabulary::{Epoch, HostId, Instant, Kinds, NodeId};
    use std::sync::Arc;
    use tokio::net::{TcpListener, TcpStream};

    /// Two ends of a connection.
    async fn links() -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        let link = |stream| {
            let mut link = Link::new(Channel::Plain(stream), STRANGERS_FRAME).unwrap();
            link.trust();
            link
        };
        (link(ours), link(theirs))
    }

    /// A job host whose log has had 10 entries, of which the first 6 are deleted.
    pub(in super::super) fn host(dir: &std::path::Path) -> (Handle, History) {
        let options = Options { history_bytes: 0, ..Options::default() };
        let (mut store, _) = Store::open(dir, options).unwrap();
        let entry = |_| encode(Instant(7), &Fact::Record(Record::NodeJoined { node: NodeId(1), program: None }));
        let append = |store: &mut Store, count: u32| {
            let entries: Vec<Entry> = (0..count).map(entry).collect();
            store.append(&entries.iter().map(Entry::as_ref).collect::<Vec<_>>()).unwrap();
            store.commit().unwrap();
        };
        append(&mut store, 6);
        store.write_snapshot([]).unwrap();
        append(&mut store, 4);
        let epoch = Epoch::of_host(HostId(1), 1).unwrap();
        let roles = Roles::new(Preset::APOLLO, epoch, JobManagerSettings::default(), new_sealing().unwrap());
        let mut roles = roles.with_managers(Managers::Here);
        roles.recover_job_managers(Vec::new());
        let history = store.history();
        let events = Arc::new(EventRing::starting_at(store.next_sequence()));
        let committer = Committer::new(Some(store), events, Arc::new(Metrics::default())).reporting_log();
        let (shell, handle) =
            Shell::new(roles, Clock::starting_at_least(Instant::ZERO), committer, None, None).unwrap();
        std::thread::spawn(|| shell.run().unwrap());
        (handle, history)
    }

    #[tokio::test]
    async fn the_server_gets_the_rest_of_the_log_or_the_full_state_if_entries_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (handle, history) = host(dir.path());
        let (mut ours, mut theirs) = links().await;
        catch_up(7, &handle, &history, &mut ours).await.unwrap();
        let output = theirs.read::<Wire>().await.unwrap();
        assert!(matches!(output, Wire::Log { first: 7, ref entries, .. } if entries.len() == 3));
        catch_up(10, &handle, &history, &mut ours).await.unwrap();
        catch_up(2, &handle, &history, &mut ours).await.unwrap();
        // Nothing was sent when `heard` was the end of the log.
        let Wire::All { next: 10, changes, .. } = theirs.read::<Wire>().await.unwrap() else {
            panic!("expected the full state")
        };
        assert_eq!(changes, [Change::KindsNamed { kinds: Kinds::new() }]);
    }
}
