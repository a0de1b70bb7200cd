//! Who is the active one: whoever made the leader's key, for as long as its lease lasts.

use super::etcd::{Etcd, EtcdError, Found, is_absent, put};
use super::{Keys, ReplicaError};
use crate::config::StoreConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A standby looks so often whether there is an active one.
const LOOK: Duration = Duration::from_millis(200);
/// etcd may be starting as well, and has no leader of its own then.
const PATIENCE: Duration = Duration::from_secs(10);

/// That this process is the active one. Another may take its place at any time after the lease: what etcd takes from this one is
/// checked by the revision, and never by the clock.
#[derive(Debug)]
pub struct Leadership {
    pub(super) etcd: Arc<Etcd>,
    pub(super) keys: Keys,
    /// Of the leader's key: nobody else's has the same.
    pub(super) revision: i64,
    /// How long it lasts after it was kept alive.
    pub(super) lasts: Duration,
    lease: i64,
    /// At the latest; counted from before etcd was asked.
    until: Instant,
}

/// Gives the leadership up.
#[derive(Debug)]
pub struct Resignation {
    etcd: Arc<Etcd>,
    lease: i64,
    resigned: Arc<AtomicBool>,
}

impl Resignation {
    /// A standby takes over at once. Nothing may be written any more.
    pub fn resign(self) {
        self.resigned.store(true, Ordering::Release);
        if let Err(error) = self.etcd.revoke(self.lease) {
            tracing::warn!(%error, "a standby takes over when the lease ends");
        }
    }
}

/// Waits until there is no active one, and becomes it. `stands_by` is called once, with what the active one says of itself, where
/// there is one.
///
/// # Errors
/// When etcd does not answer within [`PATIENCE`] at first. Whoever stands by already goes on asking.
pub fn take_over(
    config: &StoreConfig,
    keys: Keys,
    says: &str,
    stands_by: impl FnOnce(&str),
) -> Result<Leadership, ReplicaError> {
    let etcd = Arc::new(Etcd::new(&config.endpoints, config.lease / 3));
    let mut stands_by = Some(stands_by);
    let started = Instant::now();
    let mut is_away = false;
    loop {
        match campaign(&etcd, &keys, config.lease, says) {
            Ok(Ok(leadership)) => return Ok(leadership),
            Ok(Err(active)) => {
                is_away = false;
                if let Some(stands_by) = stands_by.take() {
                    stands_by(&String::from_utf8_lossy(&active.value));
                }
            }
            Err(error) if stands_by.is_some() && started.elapsed() >= PATIENCE => return Err(error.into()),
            // Once for as long as it lasts.
            Err(error) if !std::mem::replace(&mut is_away, true) => {
                tracing::warn!(%error, "it cannot be seen whether there is an active master; trying again");
            }
            Err(_) => {}
        }
        thread::sleep(LOOK);
    }
}

/// Becomes the active one, or says who is.
fn campaign(
    etcd: &Arc<Etcd>,
    keys: &Keys,
    lasts: Duration,
    says: &str,
) -> Result<Result<Leadership, Found>, EtcdError> {
    let leader = keys.leader();
    if let Some(active) = etcd.get(&leader)? {
        return Ok(Err(active));
    }
    let asked = Instant::now();
    let (lease, lasts) = etcd.grant(lasts.as_secs().max(1))?;
    etcd.transact(is_absent(&leader), vec![put(&leader, says.as_bytes(), Some(lease))])?;
    // Not by the answer: where the first endpoint did it and did not say so, the second found the key there.
    match etcd.get(&leader)? {
        Some(own) if own.lease == lease => {
            let lasts = Duration::from_secs(lasts);
            let (etcd, keys, revision) = (Arc::clone(etcd), keys.clone(), own.create_revision);
            Ok(Ok(Leadership { etcd, keys, revision, lasts, lease, until: asked + lasts }))
        }
        Some(active) => {
            // Best effort: it ends by itself.
            let _ = etcd.revoke(lease);
            Ok(Err(active))
        }
        None => Err(EtcdError::Strange { call: "a transaction", what: "the leader's key, which was just made" }),
    }
}

impl Leadership {
    /// Keeps the lease alive from a thread of its own, until it is lost or given up. `lost` is told why; it should end the process.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn keep(&self, lost: impl FnOnce(ReplicaError) + Send + 'static) -> std::io::Result<Resignation> {
        let resigned = Arc::new(AtomicBool::new(false));
        let resignation =
            Resignation { etcd: Arc::clone(&self.etcd), lease: self.lease, resigned: Arc::clone(&resigned) };
        let (etcd, lease, lasts, mut until) = (Arc::clone(&self.etcd), self.lease, self.lasts, self.until);
        let keep = move || {
            let mut pause = lasts / 3;
            let why = loop {
                thread::sleep(pause);
                // After a pause of this process nobody has to be asked.
                if Instant::now() >= until {
                    break ReplicaError::Lost;
                }
                let asked = Instant::now();
                match etcd.keep_alive(lease) {
                    Ok(true) => (until, pause) = (asked + lasts, lasts / 3),
                    Ok(false) => break ReplicaError::Lost,
                    Err(error) if Instant::now() >= until => break ReplicaError::Away(error),
                    Err(error) => {
                        tracing::warn!(%error, "the lease could not be kept alive; trying again");
                        pause = lasts / 20;
                    }
                }
            };
            if !resigned.load(Ordering::Acquire) {
                lost(why);
            }
        };
        thread::Builder::new().name("lease".to_owned()).spawn(keep)?;
        Ok(resignation)
    }
}
