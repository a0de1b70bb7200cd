//! Lower bounds of this machine, measured in the same run as the figures that are compared with them.

pub mod completion;
pub mod decisions;
pub mod disk_floor;
pub mod launch_floor;
pub mod loopback_floor;
mod on_core;
pub mod placement;
pub mod tls_floor;
pub mod waiting;

use amalgam_core::vocabulary::{Key, Sealing};
use amalgam_daemon::sealing::HMAC;
pub use on_core::OnCore;

/// The key of the masters' tokens in benchmarks: as fast as any other.
const SEALING: Sealing = Sealing { root: Key([0; 32]), mac: HMAC };
