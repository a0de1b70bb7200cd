//! What the programs with a command line have in common: how they fail, what they print and how, the values that their
//! arguments take, and the client of the HTTP interface.

pub mod client;
pub mod failure;
pub mod files;
pub mod output;
pub mod process;
pub mod refusal;
pub mod show;
pub mod values;
