//! The real cluster around core's state machines.

pub mod bench;
pub mod executor;
pub mod frames;
pub mod store;
