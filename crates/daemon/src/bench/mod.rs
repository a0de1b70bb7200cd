//! Floors: what this machine can do at best, measured in the same run as the figures that are compared with it.

pub mod decisions;
pub mod disk_floor;
pub mod launch_floor;
mod on_core;
pub mod placement;

pub use on_core::OnCore;
