//! CPU time of a thread, on a machine with other load.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Measures the part of a period in which this thread had a core.
pub struct OnCore {
    started: Instant,
    ran: Duration,
}

impl OnCore {
    pub fn start() -> OnCore {
        OnCore { started: Instant::now(), ran: thread_time() }
    }

    pub fn share(&self) -> f64 {
        (self.elapsed().as_secs_f64() / self.started.elapsed().as_secs_f64()).min(1.0)
    }

    /// The time on a core since the start.
    pub fn elapsed(&self) -> Duration {
        thread_time().saturating_sub(self.ran)
    }
}

/// The time that this thread had a core so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
