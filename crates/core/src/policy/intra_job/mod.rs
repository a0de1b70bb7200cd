//! What a job asks for, and in which order it uses what it gets.

mod breadth_first;
mod critical_path;

pub use breadth_first::BreadthFirst;
pub use critical_path::CriticalPath;
