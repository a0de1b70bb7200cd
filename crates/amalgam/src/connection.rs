//! The flags for the server's address and token.

use clap::Args;
use std::path::PathBuf;

/// Where the server is. Without these, the one that runs on this machine is found by its state directory.
#[derive(Args, Clone, Debug, Default)]
pub struct Connection {
    /// The server's address, such as https://head:7433, or http://127.0.0.1:7433 or unix:PATH on this machine; AMALGAM_SERVER may
    /// hold it
    // Not an `env` of the argument: agents have a `--server` of their own, which is not at this address.
    #[arg(long, global = true, value_name = "URL", help_heading = "Connection")]
    pub server: Option<String>,
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
