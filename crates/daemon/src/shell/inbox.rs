//! What the loop waits for: inputs of other threads, the executor, and time. One thread reads them all, since every
//! hand-over between threads costs a launch a wake-up.

use super::{Input, Stopped};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The loop's end; dropping it stops the senders.
pub struct Inbox {
    shared: Arc<Shared>,
}

/// The other threads' end; the loop learns when the last of them is dropped.
pub struct Sender {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Readable while the loop is to wake up.
    bell: OwnedFd,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Input>,
    /// The loop waits for the bell.
    asleep: bool,
    stopped: bool,
    senders: usize,
}

/// What ended a wait.
pub struct Awake {
    pub inputs: Vec<Input>,
    /// The descriptor beside the bell is ready, or broken.
    pub ready: bool,
    /// No sender is left, and all that they sent was taken.
    pub deserted: bool,
}

pub fn inbox() -> io::Result<(Sender, Inbox)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared { state: Mutex::default(), bell });
    let inbox = Inbox { shared };
    Ok((inbox.sender(), inbox))
}

impl Sender {
    pub fn send(&self, input: Input) -> Result<(), Stopped> {
        let mut state = self.shared.lock();
        if state.stopped {
            return Err(Stopped);
        }
        state.waiting.push_back(input);
        let ring = std::mem::take(&mut state.asleep);
        drop(state);
        if ring {
            self.shared.ring();
        }
        Ok(())
    }
}

impl Clone for Sender {
    fn clone(&self) -> Sender {
        self.shared.lock().senders += 1;
        Sender { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.senders -= 1;
        let is_last = state.senders == 0;
        drop(state);
        if is_last {
            self.shared.ring();
        }
    }
}

impl Inbox {
    /// Another sender. The loop must not keep one, or it would never be deserted.
    pub fn sender(&self) -> Sender {
        self.shared.lock().senders += 1;
        Sender { shared: Arc::clone(&self.shared) }
    }

    /// Sleeps until there is an input, `other` is ready for what is given with it, or `patience` is over. Takes `most`
    /// inputs at most; what is left ends the next wait at once.
    pub fn wait(&self, patience: Option<Duration>, other: Option<(BorrowedFd<'_>, PollFlags)>, most: usize) -> Awake {
        let mut state = self.shared.lock();
        let has_some = !state.waiting.is_empty() || state.senders == 0;
        state.asleep = !has_some;
        drop(state);
        let patience = if has_some { Some(Duration::ZERO) } else { patience };
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let bell = PollFd::new(&self.shared.bell, PollFlags::IN);
        let (rung, ready) = match other {
            None => {
                let mut watched = [bell];
                // An interrupted wait is one that ended early.
                let _ = poll(&mut watched, timeout.as_ref());
                (!watched[0].revents().is_empty(), false)
            }
            Some((other, interest)) => {
                let mut watched = [bell, PollFd::from_borrowed_fd(other, interest)];
                let _ = poll(&mut watched, timeout.as_ref());
                (!watched[0].revents().is_empty(), !watched[1].revents().is_empty())
            }
        };
        if rung {
            let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        }
        let mut state = self.shared.lock();
        state.asleep = false;
        let taken = state.waiting.len().min(most);
        let inputs = state.waiting.drain(..taken).collect();
        Awake { inputs, ready, deserted: state.senders == 0 && state.waiting.is_empty() }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        // Whoever waits for an answer to one of these learns that there will be none.
        let lost = std::mem::take(&mut state.waiting);
        drop(state);
        drop(lost);
    }
}

impl Shared {
    fn ring(&self) {
        // It fails only when it was rung more often than fits a `u64`.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Nothing can panic while it is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread::spawn;

    #[test]
    fn inputs_and_a_descriptor_end_the_wait_and_the_last_sender_leaves_it_deserted() {
        let (sender, inbox) = inbox().unwrap();
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let executor = Some((ours.as_fd(), PollFlags::IN));
        let awake = inbox.wait(Some(Duration::from_millis(1)), executor, 9);
        assert!(awake.inputs.is_empty() && !awake.ready && !awake.deserted);

        let another = sender.clone();
        let late = spawn(move || (0..3).try_for_each(|_| another.send(Input::MasterDisconnected)));
        let mut taken = 0;
        while taken < 3 {
            let awake = inbox.wait(None, executor, 2);
            assert!(awake.inputs.len() <= 2 && !awake.ready && !awake.deserted);
            taken += awake.inputs.len();
        }
        late.join().unwrap().unwrap();

        theirs.write_all(b"x").unwrap();
        assert!(inbox.wait(None, executor, 9).ready);

        let last = spawn(move || drop(sender));
        while !inbox.wait(None, None, 9).deserted {}
        last.join().unwrap();
        let another = inbox.sender();
        drop(inbox);
        assert!(another.send(Input::MasterDisconnected).is_err());
    }
}
