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
    /// The global master with a number, of a federation.
    Global,
    /// A server with a name that shares its records with the others of its cluster: a standby, or the active one.
    Server,
}

impl DaemonRole {
    pub const ALL: [DaemonRole; 4] = [DaemonRole::Agent, DaemonRole::JobHost, DaemonRole::Global, DaemonRole::Server];

    /// The key in token files.
    pub fn key(self) -> &'static str {
        match self {
            DaemonRole::Agent => "agent",
            DaemonRole::JobHost => "job_host",
            DaemonRole::Global => "global",
            DaemonRole::Server => "server",
        }
    }

    /// For people, and in certificates.
    pub fn title(self) -> &'static str {
        match self {
            DaemonRole::Agent => "agent",
            DaemonRole::JobHost => "job host",
            DaemonRole::Global => "global master",
            DaemonRole::Server => "server",
        }
    }

    /// The flag of `amalgam token` that names such a daemon.
    pub fn flag(self) -> String {
        match self {
            // `--server` names the address of one.
            DaemonRole::Server => "--server-name".to_owned(),
            role => format!("--{}", role.key().replace('_', "-")),
        }
    }

    /// # Errors
    /// If no daemon of this role can have the name.
    pub fn check(self, name: &str) -> Result<(), BadName> {
        match self {
            DaemonRole::Agent | DaemonRole::Server => Named::Node.check(name),
            DaemonRole::JobHost => match name.parse::<u16>() {
                Ok(number) if number > 0 && number.to_string() == name => Ok(()),
                _ => Err(BadName {
                    problem: "it is not the number of a job host".to_owned(),
                    remedy: "write a number from 1",
                }),
            },
            DaemonRole::Global => match name.parse::<u8>() {
                Ok(number) if number.to_string() == name => Ok(()),
                _ => Err(BadName {
                    problem: "it is not the number of a global master".to_owned(),
                    remedy: "write a number from 0",
                }),
            },
        }
    }
}
