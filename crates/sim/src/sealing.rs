//! The keys with which simulated processes sign and verify tokens.

use amalgam_core::vocabulary::{Chance, Epoch, Key, Mac, Sealing};

/// For a process that signs no tokens.
pub const NOTHING: Sealing = Sealing { root: Key([0; 32]), mac: Mac::MIXING };

/// The key of one incarnation of the server.
pub fn of_life(seed: u64, epoch: Epoch) -> Sealing {
    let mut chance = Chance::new(seed, &format!("tokens of life {}", epoch.0));
    Sealing { root: Key(std::array::from_fn(|_| chance.below(u64::from(u8::MAX) + 1) as u8)), ..NOTHING }
}
