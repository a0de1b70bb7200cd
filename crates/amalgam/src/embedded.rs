//! A cluster that lives as long as one `run`.

use crate::failure::{Failure, Result};

/// How large it is; like this machine where nothing is said.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct Size {
    /// How many nodes the cluster has [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// CPUs of each node [default: those of this machine]
    #[arg(long, value_name = "CPUS", value_parser = amalgam_workload::quantities::parse_cpu_millis)]
    pub cpus: Option<u32>,
    /// Memory of each node, such as 4GiB [default: that of this machine]
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_memory_mib)]
    pub memory: Option<u32>,
}

/// A running cluster. Dropping it stops it.
pub struct Embedded {
    /// `127.0.0.1:40123`.
    pub address: String,
    pub token: String,
}

pub fn start(_size: &Size) -> Result<Embedded> {
    Err(Failure::new(
        "no server is running, and this build cannot start a cluster of its own",
        "start a server, or name one with --server",
    ))
}
