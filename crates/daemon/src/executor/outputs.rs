//! What tasks declare to leave: hashed and stored by a thread of its own, for a large file takes seconds, and other tasks
//! start and end meanwhile.

use super::prepare::node_fault;
use crate::files::{FileStore, PutError};
use amalgam_core::vocabulary::{
    AttemptId, EndReason, EndedFiles, LaunchOrder, OutputFile, StoredFile, files::name_for,
};
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

pub struct Outputs {
    state: PathBuf,
    /// Of the thread, once there is one.
    orders: Option<Sender<LaunchOrder>>,
    done: (Sender<Stored>, Receiver<Stored>),
    /// Counts what is done, for the loop to wait on.
    bell: Arc<OwnedFd>,
}

/// What an attempt left, or why it has not ended well after all.
pub struct Stored {
    pub attempt: AttemptId,
    pub files: Result<Box<EndedFiles>, EndReason>,
}

impl Outputs {
    pub fn new(state: &Path) -> io::Result<Outputs> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Outputs { state: state.to_owned(), orders: None, done: channel(), bell: Arc::new(bell) })
    }

    /// Rings when something is done.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Begins to store what an attempt left that ended well.
    pub fn store(&mut self, order: LaunchOrder) -> Result<(), EndReason> {
        let orders = match self.orders.take() {
            Some(orders) => orders,
            None => self.start().map_err(|error| node_fault("start a thread to store its output", &error))?,
        };
        // Its thread ends with this process only.
        let _ = self.orders.insert(orders).send(order);
        Ok(())
    }

    pub fn take_done(&self) -> Vec<Stored> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        self.done.1.try_iter().collect()
    }

    fn start(&self) -> io::Result<Sender<LaunchOrder>> {
        let (orders, ordered) = channel::<LaunchOrder>();
        let (state, done, bell) = (self.state.clone(), self.done.0.clone(), Arc::clone(&self.bell));
        // It blocks all signals, as the thread that starts it does.
        std::thread::Builder::new().name("outputs".to_owned()).spawn(move || {
            for order in ordered {
                let _ = done.send(Stored { attempt: order.attempt, files: store_all(&state, &order) });
                let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(orders)
    }
}

fn store_all(state: &Path, order: &LaunchOrder) -> Result<Box<EndedFiles>, EndReason> {
    let directory = super::own_dir(state, order.attempt);
    let store = FileStore::of(state, order.node);
    let mut outputs = Vec::new();
    for name in &order.template.outputs {
        let name = name_for(name, order.index);
        let kept = store.put(&directory.join(&name), order.template.keeps_outputs);
        let StoredFile { digest, bytes } = kept.map_err(|error| match error {
            PutError::Missing => EndReason::NoOutput(format!(
                "it exited with 0 and left no `{name}`, which its stage declares as an output; write it in the working \
                 directory, or remove it from `outputs`"
            )),
            PutError::NotAFile => EndReason::NoOutput(format!(
                "its output `{name}` is no regular file; declared outputs are files, and links to none"
            )),
            PutError::Io(error) => {
                EndReason::NodeFault(format!("this node cannot keep its output `{name}`: {}", store.trouble(&error)))
            }
        })?;
        outputs.push(OutputFile { name, digest, bytes });
    }
    Ok(Box::new(EndedFiles { outputs, missing: Vec::new() }))
}
