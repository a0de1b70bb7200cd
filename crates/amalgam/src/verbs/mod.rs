//! One file for each verb: its arguments and its code.

pub mod act;
pub mod agent;
pub mod config;
pub mod dev;
pub mod doctor;
pub mod executor;
pub mod global;
pub mod info;
pub mod jobs;
pub mod list;
pub mod logs;
pub mod node;
pub mod outputs;
pub mod queue;
pub mod run;
pub mod server;
pub mod shell;
pub mod sim;
pub mod story;
pub mod submit;
pub mod token;
pub mod top;
pub mod update;
pub mod usage;
pub mod wait;
pub mod workload;
