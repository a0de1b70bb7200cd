//! What a job asks for, and in which order it uses what it gets.

mod breadth_first;
mod critical_path;
mod tetris;

pub use breadth_first::BreadthFirst;
pub use critical_path::CriticalPath;
pub use tetris::Tetris;
