//! Settings of a queue that can be changed while the cluster runs.

use super::{Duration, QueueSpec};
use serde::{Deserialize, Serialize};

/// What was set of a queue; `None` leaves what is configured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct QueueSettings {
    /// In the units of [`QueueSpec`].
    pub weight: Option<u32>,
    pub guaranteed: Option<u32>,
    pub maximum: Option<u32>,
    pub user_limit: Option<u32>,
    pub max_running_jobs: Option<Removable<u32>>,
    pub default_timeout: Option<Removable<Duration>>,
}

/// A value that a queue need not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Removable<T> {
    Absent,
    Value(T),
}

impl<T> Removable<T> {
    pub fn value(self) -> Option<T> {
        match self {
            Removable::Absent => None,
            Removable::Value(value) => Some(value),
        }
    }
}

impl<T> From<Option<T>> for Removable<T> {
    fn from(value: Option<T>) -> Removable<T> {
        value.map_or(Removable::Absent, Removable::Value)
    }
}

impl QueueSettings {
    pub fn is_empty(&self) -> bool {
        *self == QueueSettings::default()
    }

    /// These, with those that `later` sets instead.
    pub fn merged(self, later: QueueSettings) -> QueueSettings {
        QueueSettings {
            weight: later.weight.or(self.weight),
            guaranteed: later.guaranteed.or(self.guaranteed),
            maximum: later.maximum.or(self.maximum),
            user_limit: later.user_limit.or(self.user_limit),
            max_running_jobs: later.max_running_jobs.or(self.max_running_jobs),
            default_timeout: later.default_timeout.or(self.default_timeout),
        }
    }

    /// The queue with these settings.
    pub fn applied(self, spec: &QueueSpec) -> QueueSpec {
        QueueSpec {
            weight: self.weight.unwrap_or(spec.weight),
            guaranteed: self.guaranteed.unwrap_or(spec.guaranteed),
            maximum: self.maximum.unwrap_or(spec.maximum),
            user_limit: self.user_limit.unwrap_or(spec.user_limit),
            max_running_jobs: self.max_running_jobs.map_or(spec.max_running_jobs, Removable::value),
            default_timeout: self.default_timeout.map_or(spec.default_timeout, Removable::value),
            ..spec.clone()
        }
    }
}
