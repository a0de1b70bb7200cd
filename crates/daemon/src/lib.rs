//! The daemons: what surrounds the roles in a real cluster.

pub mod api;
pub mod auth;
pub mod http;
