//! The declared outputs of tasks. A thread of its own hashes and stores them: a large file takes seconds, during which
//! other tasks start and end.

use super::accounts::Account;
use super::prepare::node_fault;
use super::sys::ActsAs;
use crate::files::{FileStore, Left, PutError};
use amalgam_core::vocabulary::{AttemptId, EndReason, LaunchOrder, OutputFile, StoredFile, files::name_for};
use rustix::event::EventfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

pub struct Outputs {
    state: PathBuf,
    /// Sends orders to the thread, once it is started.
    orders: Option<Sender<Storing>>,
    done: (Sender<Stored>, Receiver<Stored>),
    /// An eventfd on which the loop waits for results.
    bell: Arc<OwnedFd>,
}

/// An attempt whose outputs are to be stored, and the account that it ran as if it is not this process's own.
type Storing = (LaunchOrder, Option<Arc<Account>>);

/// The stored outputs of an attempt, and the failure if not all could be stored.
pub struct Stored {
    pub attempt: AttemptId,
    pub outputs: Vec<OutputFile>,
    pub failure: Option<EndReason>,
}

impl Outputs {
    pub fn new(state: &Path) -> io::Result<Outputs> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Outputs { state: state.to_owned(), orders: None, done: channel(), bell: Arc::new(bell) })
    }

    /// Readable when [`Outputs::take_done`] has results.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Starts to store the outputs of an attempt that has succeeded.
    pub fn store(&mut self, order: LaunchOrder, account: Option<Arc<Account>>) -> Result<(), EndReason> {
        let orders = match self.orders.take() {
            Some(orders) => orders,
            None => self.start().map_err(|error| node_fault("start a thread to store the task's outputs", &error))?,
        };
        // The thread runs as long as this process, so this does not fail.
        let _ = self.orders.insert(orders).send((order, account));
        Ok(())
    }

    pub fn take_done(&self) -> Vec<Stored> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        self.done.1.try_iter().collect()
    }

    fn start(&self) -> io::Result<Sender<Storing>> {
        let (orders, ordered) = channel::<Storing>();
        let (state, done, bell) = (self.state.clone(), self.done.0.clone(), Arc::clone(&self.bell));
        // The thread inherits the blocked signals of the loop's thread, which handles them.
        std::thread::Builder::new().name("outputs".to_owned()).spawn(move || {
            for (order, account) in ordered {
                let (outputs, failure) = store_all(&state, &order, account.as_deref());
                let _ = done.send(Stored { attempt: order.attempt, outputs, failure });
                let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(orders)
    }
}

/// Stores the outputs. Returns the stored ones, and the failure if not all could be stored. If a file is missing, all
/// files stay in the working directory.
fn store_all(state: &Path, order: &LaunchOrder, account: Option<&Account>) -> (Vec<OutputFile>, Option<EndReason>) {
    let directory = super::own_dir(state, order.attempt);
    let store = FileStore::of(state, order.node);
    let mut stored = Vec::new();
    let names: Vec<String> = order.template.outputs.iter().map(|name| name_for(name, order.index)).collect();
    for name in &names {
        if let Err(error) = Left::find(&directory, name) {
            return (stored, Some(failure(name, error, &store)));
        }
    }
    for name in names {
        let kept = Left::find(&directory, &name).and_then(|left| {
            let file = open(&left, account)?;
            store.put_opened(&left, file, order.template.keeps_outputs)
        });
        match kept {
            Ok(StoredFile { digest, bytes }) => stored.push(OutputFile { name, digest, bytes }),
            Err(error) => return (stored, Some(failure(&name, error, &store))),
        }
    }
    (stored, None)
}

/// Opens a file with the rights of the task's user: another process of the user may have replaced it by a link.
fn open(left: &Left, account: Option<&Account>) -> Result<File, PutError> {
    let _acts = account.map(|account| ActsAs::user(account.credentials())).transpose().map_err(PutError::Io)?;
    left.open()
}

fn failure(name: &str, error: PutError, store: &FileStore) -> EndReason {
    let why = match error {
        PutError::Io(error) => {
            return EndReason::NodeFault(format!(
                "this node cannot store the output `{name}`: {}",
                store.trouble(&error)
            ));
        }
        PutError::Missing => format!(
            "the task exited with 0 and did not write `{name}`, which its stage declares as an output; write it in the \
             working directory, or remove it from `outputs`"
        ),
        PutError::NotAFile => {
            format!("the output `{name}` is not a regular file; write a file, not a link or a directory")
        }
        PutError::Linked => format!(
            "the output `{name}` is behind a link to a directory, and files elsewhere are not stored; write it in the \
             working directory itself"
        ),
        PutError::Unreadable(error) => format!("cannot read the output `{name}`: {error}"),
    };
    EndReason::NoOutput(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId, NodeId, TaskId, TaskTemplate};
    use std::fs;

    fn order(outputs: &[&str]) -> LaunchOrder {
        let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
        LaunchOrder {
            attempt: AttemptId { job: JobId(1), epoch: Epoch(1), number: 1 },
            task: TaskId { job: JobId(1), ..TaskId::default() },
            node: NodeId(1),
            node_name: "node".to_owned(),
            hosts: None,
            shared_gpu: None,
            template: Arc::new(TaskTemplate { outputs, ..TaskTemplate::default() }),
            index: 0,
            item: None,
            devices: Vec::new(),
            inputs: Arc::default(),
            grant: None,
            expected: None,
        }
    }

    /// Stores these outputs of a task that wrote `a`, after `prepare` changed its directory. Returns the number of
    /// stored outputs, the failure, and whether `a` is still in the directory.
    fn stored(outputs: &[&str], prepare: impl Fn(&Path)) -> (usize, Option<EndReason>, bool) {
        let state = tempfile::tempdir().unwrap();
        let order = order(outputs);
        let own = crate::executor::own_dir(state.path(), order.attempt);
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("a"), "text").unwrap();
        prepare(&own);
        let (stored, failure) = store_all(state.path(), &order, None);
        assert_eq!(FileStore::of(state.path(), order.node).list().len(), stored.len(), "all stored files are returned");
        (stored.len(), failure, own.join("a").exists())
    }

    #[test]
    fn missing_and_invalid_outputs_are_failures_of_the_task() {
        let long = "b".repeat(300);
        let (in_link, in_loop) = (["a", "link/b"], ["a", "loop/b"]);
        let no_link = |_: &Path| {};
        let link = |own: &Path| {
            let outside = own.with_file_name("outside");
            fs::create_dir(&outside).unwrap();
            fs::write(outside.join("b"), "mine").unwrap();
            std::os::unix::fs::symlink(outside, own.join("link")).unwrap();
        };
        let turn = |own: &Path| std::os::unix::fs::symlink("loop", own.join("loop")).unwrap();
        for (number, failed, stayed) in [
            stored(&["a", &long], no_link),
            stored(&in_link, link),
            stored(&in_loop, turn),
            stored(&["a", "b"], no_link),
        ] {
            assert!(matches!(failed, Some(EndReason::NoOutput(_))), "{failed:?}");
            assert_eq!((number, stayed), (0, true), "no file is moved if another one is missing");
        }
        assert_eq!(stored(&["a"], no_link), (1, None, false));
    }

    #[test]
    fn outputs_stored_before_a_failure_are_returned() {
        let refused = |own: &Path| {
            // A directory has the name under which `b` would be stored: the output of `printf other | sha256sum`.
            fs::write(own.join("b"), "other").unwrap();
            let store = own.ancestors().nth(3).unwrap().join("files/1");
            let digest = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";
            fs::create_dir_all(store.join(digest).join("in the way")).unwrap();
        };
        let (number, failed, _) = stored(&["a", "b"], refused);
        assert_eq!(number, 1);
        assert!(matches!(failed, Some(EndReason::NodeFault(_))), "{failed:?}");
    }
}
