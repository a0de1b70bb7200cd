//! The simulator's place: it will drive core's roles as the daemons do, with an agenda for a clock and a network that
//! may lose, delay and repeat what the delivery assumption of `core::protocol` permits. Nothing of it exists yet; the
//! seeds in `crates/core/tests/faults.rs` are its forerunner.
