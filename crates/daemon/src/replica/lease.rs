//! Election of the active master: the process that created the leader's key, as long as its lease lasts.

use super::etcd::{Etcd, EtcdError, Found, is_absent, put};
use super::{Keys, ReplicaError};
use crate::config::StoreConfig;
use crate::service_manager::Watchdog;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a standby checks for an active master.
const LOOK: Duration = Duration::from_millis(200);
/// etcd may be starting too, and have no leader of its own yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of being the active master. Another process may take over at any time after the lease. Writes are guarded
/// by the revision in etcd, never by the clock.
#[derive(Debug)]
pub struct Leadership {
    pub(super) etcd: Arc<Etcd>,
    pub(super) keys: Keys,
    /// Revision of the leader's key, which no other process's key has.
    pub(super) revision: i64,
    /// Duration of the lease after each renewal.
    pub(super) lasts: Duration,
    lease: i64,
    /// The latest end of the lease, counted from before the request to etcd.
    until: Instant,
}

/// Gives up the leadership.
#[derive(Debug)]
pub struct Resignation {
    etcd: Arc<Etcd>,
    lease: i64,
    resigned: Arc<AtomicBool>,
}

impl Resignation {
    /// Lets a standby take over at once. Nothing may be written afterwards.
    pub fn resign(self) {
        self.resigned.store(true, Ordering::Release);
        if let Err(error) = self.etcd.revoke(self.lease) {
            tracing::warn!(%error, "a standby takes over when the lease ends");
        }
    }
}

/// Waits until there is no active master, and becomes it. `stands_by` is called once, with the active master's
/// description of itself, if there is one.
///
/// # Errors
/// If etcd does not answer within [`PATIENCE`] at first. A process that already stands by continues to ask.
pub fn take_over(
    config: &StoreConfig,
    keys: Keys,
    says: &str,
    stands_by: impl FnOnce(&str),
) -> Result<Leadership, ReplicaError> {
    let etcd = Arc::new(Etcd::new(config)?);
    let mut stands_by = Some(stands_by);
    let started = Instant::now();
    let mut is_away = false;
    // A standby waits here for as long as there is an active master.
    let mut watchdog = Watchdog::new().unwrap_or_default();
    loop {
        watchdog.turned();
        match campaign(&etcd, &keys, config.lease, says) {
            Ok(Ok(leadership)) => return Ok(leadership),
            Ok(Err(active)) => {
                is_away = false;
                if let Some(stands_by) = stands_by.take() {
                    stands_by(&String::from_utf8_lossy(&active.value));
                }
            }
            Err(error) if stands_by.is_some() && started.elapsed() >= PATIENCE => return Err(error.into()),
            // Log each failure period once.
            Err(error) if !std::mem::replace(&mut is_away, true) => {
                tracing::warn!(%error, "cannot find out whether there is an active master; trying again");
            }
            Err(_) => {}
        }
        thread::sleep(LOOK);
    }
}

/// Becomes the active master, or returns the key of the one that is.
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
    // The answer is not enough: if the first endpoint did it and failed to answer, the second one found the key.
    match etcd.get(&leader)? {
        Some(own) if own.lease == lease => {
            let lasts = Duration::from_secs(lasts);
            let (etcd, keys, revision) = (Arc::clone(etcd), keys.clone(), own.create_revision);
            Ok(Ok(Leadership { etcd, keys, revision, lasts, lease, until: asked + lasts }))
        }
        Some(active) => {
            // Best effort: the lease also ends on its own.
            let _ = etcd.revoke(lease);
            Ok(Err(active))
        }
        None => Err(EtcdError::Strange { call: "a transaction", what: "the leader's key, which was just created" }),
    }
}

impl Leadership {
    /// Renews the lease from its own thread until it is lost or given up. `lost` is called with the reason, and should
    /// end the process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn keep(&self, lost: impl FnOnce(ReplicaError) + Send + 'static) -> std::io::Result<Resignation> {
        let resigned = Arc::new(AtomicBool::new(false));
        let resignation =
            Resignation { etcd: Arc::clone(&self.etcd), lease: self.lease, resigned: Arc::clone(&resigned) };
        let (etcd, lease, lasts, mut until) = (Arc::clone(&self.etcd), self.lease, self.lasts, self.until);
        let keep = move || {
            let mut pause = lasts / 3;
            let why = loop {
                thread::sleep(pause);
                // After a long pause of this process the lease has certainly ended.
                if Instant::now() >= until {
                    break ReplicaError::Lost;
                }
                let asked = Instant::now();
                match etcd.keep_alive(lease) {
                    Ok(true) => (until, pause) = (asked + lasts, lasts / 3),
                    Ok(false) => break ReplicaError::Lost,
                    Err(error) if Instant::now() >= until => break ReplicaError::Away(error),
                    Err(error) => {
                        tracing::warn!(%error, "cannot renew the lease; trying again");
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
