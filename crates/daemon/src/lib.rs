//! The real cluster around core's state machines.

pub mod agent;
pub mod api;
pub mod auth;
mod backend;
pub mod bench;
pub mod config;
mod descriptors;
pub mod executor;
pub mod files;
pub mod frames;
pub mod global;
pub mod hollow;
pub mod http;
pub mod jobs;
pub mod journal;
mod lock;
pub mod node_setup;
mod priority;
pub mod private;
pub mod sealing;
mod seat;
pub mod server;
pub mod shell;
pub mod store;
mod story;
pub mod transport;
mod views;
