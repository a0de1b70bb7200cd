//! The real cluster around core's state machines.

pub mod api;
pub mod auth;
pub mod bench;
pub mod executor;
pub mod frames;
pub mod http;
pub mod store;
