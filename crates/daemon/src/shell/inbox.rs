//! The loop's queue of inputs. The loop's thread waits for inputs of other threads, the executor's descriptor and a
//! timeout at once: a second thread would add a wake-up to every launch.

use super::{Input, Stopped};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The loop's end. After it is dropped, senders return [`Stopped`].
pub struct Inbox {
    shared: Arc<Shared>,
}

/// The other threads' end. When the last one is dropped, [`Awake::deserted`] is set.
pub struct Sender {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// An eventfd that is readable when the loop has to wake up.
    bell: OwnedFd,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Input>,
    /// Whether the loop waits for `bell`.
    asleep: bool,
    stopped: bool,
    senders: usize,
}

/// Result of a wait.
pub struct Awake {
    pub inputs: Vec<Input>,
    /// Whether the other descriptor is ready or has an error.
    pub ready: bool,
    /// Whether all senders are dropped and all their inputs have been taken.
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
    /// Creates a sender. The loop must not keep one, otherwise it does not notice that all others are dropped.
    pub fn sender(&self) -> Sender {
        self.shared.lock().senders += 1;
        Sender { shared: Arc::clone(&self.shared) }
    }

    /// Waits until there is an input, `other` is ready for its events, or `patience` has passed. Returns at most `most`
    /// inputs. If more are left, the next wait returns immediately.
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
                // An interrupted wait just returns early.
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
        // Dropping the inputs closes the channels of their answers, so that waiting threads get an error.
        let lost = std::mem::take(&mut state.waiting);
        drop(state);
        drop(lost);
    }
}

impl Shared {
    fn ring(&self) {
        // The write fails only if the eventfd's counter would exceed a `u64`; the descriptor is readable then.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Ignores poisoning: no code that holds the lock can panic.
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
    fn a_wait_ends_with_an_input_a_ready_descriptor_or_the_last_senders_drop() {
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
