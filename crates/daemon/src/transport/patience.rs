//! How long a daemon tries to join another one. It writes the reason of a failure to its diagnostics once, and again
//! when the reason changes.

use super::{Introduction, JoinError, Joined, Secrets, join};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two tries to reach a peer: the first one, and the maximum.
pub const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Maximum pause between two tries if the peer refuses the connection.
const RETRY_REFUSED: Duration = Duration::from_secs(30);
/// Interval at which a token file is checked during a pause. A changed file ends the pause.
const GLANCE: Duration = Duration::from_secs(1);

/// How long to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// For the first start, which an operator may be watching. Tries for this duration if the peer cannot be reached,
    /// and without limit if the peer does not accept the token of a file that can change. Lasting obstacles fail
    /// immediately.
    AtFirst(Duration),
    /// For a daemon that can work without the peer. Tries for this duration. Lasting obstacles fail immediately.
    Briefly(Duration),
}

/// Tries to join, with increasing pauses. A token file is read again for each try.
///
/// # Errors
/// As for [`join`], when `patience` has passed or the obstacle is lasting.
pub async fn join_patiently(
    address: &str,
    secrets: &Secrets,
    introduction: impl Fn() -> Introduction,
    patience: Patience,
) -> Result<Joined, JoinError> {
    let started = Instant::now();
    let mut pauses = Pauses::new();
    loop {
        let error = match join(address, secrets, &introduction).await {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        let is_over = match patience {
            Patience::AtFirst(long) if error.is_of_network() => started.elapsed() >= long,
            Patience::AtFirst(_) => !secrets.may_change(),
            Patience::Briefly(long) => started.elapsed() >= long,
        };
        if is_over || error.is_lasting() {
            return Err(error);
        }
        pauses.pause(&error, secrets).await;
    }
}

/// Tries to join without limit, whatever the error: otherwise the running tasks would be lost, and an operator may
/// repair the other side.
pub async fn join_for_ever(address: &str, secrets: &Secrets, introduction: impl Fn() -> Introduction) -> Joined {
    let mut pauses = Pauses::new();
    loop {
        match join(address, secrets, &introduction).await {
            Ok(joined) => return joined,
            Err(error) => pauses.pause(&error, secrets).await,
        }
    }
}

/// The pauses between tries.
struct Pauses {
    next: Duration,
    last_reason: String,
}

impl Pauses {
    fn new() -> Pauses {
        Pauses { next: RETRY.0, last_reason: String::new() }
    }

    async fn pause(&mut self, error: &JoinError, secrets: &Secrets) {
        let why = error.to_string();
        if why != self.last_reason {
            tracing::warn!("still trying: {why}");
            self.last_reason = why;
        }
        let most = if error.is_of_network() { RETRY.1 } else { RETRY_REFUSED };
        let pause = jittered(self.next.min(most));
        self.next = (self.next * 2).min(most);
        let (end, version) = (Instant::now() + pause, secrets.version());
        while Instant::now() < end && secrets.version() == version {
            sleep(GLANCE.min(end - Instant::now())).await;
        }
        if secrets.version() != version {
            self.next = RETRY.0;
        }
    }
}

/// A random duration between 3/4 and 5/4 of `pause`, so that many refused peers do not all try again at the same time.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    // Without a random number, the pause has its nominal length.
    let _ = getrandom::fill(&mut byte);
    pause * 3 / 4 + pause / 2 * u32::from(byte[0]) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_vary_between_three_and_five_quarters_of_their_nominal_length() {
        let pause = Duration::from_secs(8);
        let drawn: Vec<Duration> = (0..100).map(|_| jittered(pause)).collect();
        assert!(drawn.iter().all(|drawn| (pause * 3 / 4..=pause * 5 / 4).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().min() < drawn.iter().max());
    }
}
