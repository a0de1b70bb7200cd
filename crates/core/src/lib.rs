//! The scheduler without IO. See ARCHITECTURE.md for an overview.

pub mod dispatch;
pub mod global_master;
pub mod hosting;
pub mod job_host;
pub mod job_manager;
pub mod master;
pub mod node;
pub mod policy;
pub mod preset;
pub mod progress;
pub mod protocol;
pub mod role;
pub mod scheduling;
pub mod story;
pub mod vocabulary;
pub mod why;
