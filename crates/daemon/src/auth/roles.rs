//! What a daemon is that connects to a server or to a job host.

use amalgam_core::vocabulary::{BadName, Named};
use serde::{Deserialize, Serialize};

/// A daemon that has credentials of its own, for nothing but its role.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DaemonRole {
    /// The agent of the node with a name.
    Agent,
    /// The job host with a number.
    JobHost,
}

impl DaemonRole {
    pub const ALL: [DaemonRole; 2] = [DaemonRole::Agent, DaemonRole::JobHost];

    /// The key in token files.
    pub fn key(self) -> &'static str {
        match self {
            DaemonRole::Agent => "agent",
            DaemonRole::JobHost => "job_host",
        }
    }

    /// For people, and in certificates.
    pub fn title(self) -> &'static str {
        match self {
            DaemonRole::Agent => "agent",
            DaemonRole::JobHost => "job host",
        }
    }

    /// # Errors
    /// If no daemon of this role can have the name.
    pub fn check(self, name: &str) -> Result<(), BadName> {
        match self {
            DaemonRole::Agent => Named::Node.check(name),
            DaemonRole::JobHost => match name.parse::<u16>() {
                Ok(number) if number > 0 && number.to_string() == name => Ok(()),
                _ => Err(BadName {
                    problem: "it is not the number of a job host".to_owned(),
                    remedy: "write a number from 1",
                }),
            },
        }
    }
}
