//! What the command lines of this project are made of: how they fail, what they print and how, the values that their
//! arguments take, the variables that they read, and the client of the HTTP interface.

pub mod client;
pub mod environment;
pub mod failure;
pub mod files;
pub mod output;
pub mod process;
pub mod refusal;
pub mod show;
pub mod values;
