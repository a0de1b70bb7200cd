//! The scheduler without IO. See ARCHITECTURE.md for the picture.

pub mod protocol;
pub mod vocabulary;
