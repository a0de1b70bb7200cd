//! The flags for the server's address and token.

use crate::contexts::NO_CONTEXT;
use clap::Args;
use std::path::PathBuf;

/// Where the server is. Without these, it is that of the current context of `amalgam login`, or else the one that runs on this machine.
#[derive(Args, Clone, Debug, Default)]
pub struct Connection {
    /// The server's address, such as https://head:7433, or http://127.0.0.1:7433 or unix:PATH on this machine; AMALGAM_SERVER may
    /// hold it
    // Not an `env` of the argument: agents have a `--server` of their own, which is not at this address.
    #[arg(long, global = true, value_name = "URL", help_heading = "Connection")]
    pub server: Option<String>,
    /// A server that you have logged in to with `amalgam login`, or - for none; AMALGAM_CONTEXT may hold it
    #[arg(long, global = true, value_name = "NAME", help_heading = "Connection")]
    pub context: Option<String>,
    /// A file with your token; AMALGAM_TOKEN may hold the token itself
    #[arg(long, env = "AMALGAM_TOKEN_FILE", global = true, value_name = "FILE", help_heading = "Connection")]
    pub token_file: Option<PathBuf>,
    /// A copy of ca.pem in the server's state directory, by which https:// servers are verified
    #[arg(long, env = "AMALGAM_CA_FILE", global = true, value_name = "FILE", help_heading = "Connection")]
    pub ca_file: Option<PathBuf>,
    /// The server's state directory
    #[arg(long, env = "AMALGAM_STATE", global = true, value_name = "DIR", help_heading = "Connection")]
    pub state_dir: Option<PathBuf>,
}

impl Connection {
    /// Whether a flag names a server, which is a mistake for verbs that work on files of this machine.
    pub fn names_server(&self) -> bool {
        self.server.is_some() || self.names_context()
    }

    /// Whether a flag names a context, and not none.
    pub fn names_context(&self) -> bool {
        self.context.as_deref().is_some_and(|name| name != NO_CONTEXT)
    }
}
