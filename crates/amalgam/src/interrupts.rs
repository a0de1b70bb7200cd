//! Signals to a `run`: the first cancels its job, the second exits at once. Neither waits for a server that hangs.

use crate::client::Client;
use crate::failure::Result;
use crate::show;
use amalgam_daemon::api::Action;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::mem::MaybeUninit;
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Time limit for the answer to a submission after a signal.
const SUBMISSION_PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for the server's answer to the cancellation.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for the last message: standard error may be blocked too.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The job that signals cancel, and the first signal received.
pub struct Interrupts(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// `None` until the submission is answered.
    job: Mutex<Option<Watched>>,
    submitted: Condvar,
    /// 0 until a signal arrives.
    first: AtomicI32,
}

#[derive(Clone)]
struct Watched {
    client: Client,
    job: u64,
    /// Whether the job ends with this process anyway.
    is_ours: bool,
}

impl Interrupts {
    /// From now on signals concern the job that is about to be submitted.
    pub fn heed() -> Result<Interrupts> {
        // A program such as `nohup` ignores these signals so that its child survives them.
        let unless_ignored = [SIGHUP, SIGQUIT].into_iter().filter(|signal| !is_ignored(*signal));
        let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(unless_ignored))?;
        let shared = Arc::new(Shared::default());
        let heeding = shared.clone();
        thread::spawn(move || heeding.heed(signals));
        Ok(Interrupts(shared))
    }

    /// Call it once the submission is answered.
    pub fn watch(&self, client: &Client, job: u64, is_ours: bool) {
        let watched = Watched { client: client.clone(), job, is_ours };
        *self.0.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(watched);
        self.0.submitted.notify_all();
    }

    /// The exit code of a program that the first signal killed.
    pub fn code(&self) -> Option<u8> {
        match self.0.first.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(code(signal)),
        }
    }
}

impl Shared {
    fn heed(self: Arc<Shared>, mut signals: Signals) {
        let mut signals = signals.forever();
        let Some(first) = signals.next() else { return };
        self.first.store(first, Ordering::Relaxed);
        let cancelling = self.clone();
        thread::spawn(move || cancelling.cancel(first));
        if let Some(second) = signals.next() {
            leave(second, self.left_behind());
        }
    }

    /// Returns if the job's end will end the process.
    fn cancel(&self, signal: i32) {
        let guard = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.submitted.wait_timeout_while(guard, SUBMISSION_PATIENCE, |job| job.is_none());
        let (watched, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(Watched { client, job, .. }) = watched.clone() else {
            drop(watched);
            leave(signal, self.left_behind());
        };
        drop(watched);
        show::note(&format!("cancelling job {job}; interrupt again to exit without waiting for its end"));
        if let Err(failure) = client.within(CANCEL_PATIENCE).act(vec![job], Action::Cancel) {
            show::note(&failure.to_string());
            leave(signal, self.left_behind());
        }
    }

    /// What happens to the job without us, if the user has to know.
    fn left_behind(&self) -> Option<String> {
        match &*self.job.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Some(
                "the server has not answered the submission: the job may run all the same; `amalgam list` shows it"
                    .to_owned(),
            ),
            Some(watched) if watched.is_ours => None,
            Some(Watched { job, .. }) => Some(may_still_run(*job)),
        }
    }
}

/// A note about a job that may continue without us.
pub fn may_still_run(job: u64) -> String {
    format!("job {job} may still run: `amalgam info {job}` shows it, `amalgam cancel {job}` ends it")
}

fn leave(signal: i32, last_words: Option<String>) -> ! {
    let (sender, receiver) = channel();
    if let Some(words) = last_words {
        thread::spawn(move || {
            show::note(&words);
            let _ = sender.send(());
        });
        let _ = receiver.recv_timeout(LAST_WORDS);
    }
    process::exit(code(signal).into())
}

fn code(signal: i32) -> u8 {
    128 + u8::try_from(signal).unwrap_or(0)
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: there is room for the answer, and nothing is changed.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: all zeroes are a valid action, and the call fills it.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
