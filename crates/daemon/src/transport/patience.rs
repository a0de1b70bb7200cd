//! How long a daemon tries to be let in. What keeps it out is written to its log once, and again when that changes.

use super::{Introduction, JoinError, Joined, Secrets, join};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two tries to reach a peer: at first, and at most.
pub const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The most between two tries with a peer that is there and does not let us in.
const RETRY_REFUSED: Duration = Duration::from_secs(30);
/// How often a file of tokens is looked at, in which a fresh one ends a pause.
const GLANCE: Duration = Duration::from_secs(1);

/// For how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// The first time, when its operator may be looking on: so long for a peer that is not there, and for ever where the peer does
    /// not know the token of a file, as after its restart with an old copy. What nothing elsewhere can mend is told at once.
    AtFirst(Duration),
    /// For one that can go on without. Only what nothing elsewhere can mend is told at once.
    Briefly(Duration),
}

/// Tries again with longer and longer pauses. A file of tokens is read anew for each try.
///
/// # Errors
/// As of [`join`], when the patience is over.
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

/// Goes on whatever keeps it out: what runs here is lost if nobody does, and an operator may mend it at the other side.
pub async fn join_for_ever(address: &str, secrets: &Secrets, introduction: impl Fn() -> Introduction) -> Joined {
    let mut pauses = Pauses::new();
    loop {
        match join(address, secrets, &introduction).await {
            Ok(joined) => return joined,
            Err(error) => pauses.pause(&error, secrets).await,
        }
    }
}

/// Between tries.
struct Pauses {
    next: Duration,
    said: String,
}

impl Pauses {
    fn new() -> Pauses {
        Pauses { next: RETRY.0, said: String::new() }
    }

    async fn pause(&mut self, error: &JoinError, secrets: &Secrets) {
        let why = error.to_string();
        if why != self.said {
            tracing::warn!("still trying: {why}");
            self.said = why;
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

/// Between three and five quarters of it: many that were sent away at once do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    // Without a random number nothing but the spreading is lost.
    let _ = getrandom::fill(&mut byte);
    pause * 3 / 4 + pause / 2 * u32::from(byte[0]) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_around_what_they_should_be() {
        let pause = Duration::from_secs(8);
        let drawn: Vec<Duration> = (0..100).map(|_| jittered(pause)).collect();
        assert!(drawn.iter().all(|drawn| (pause * 3 / 4..=pause * 5 / 4).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().min() < drawn.iter().max());
    }
}
