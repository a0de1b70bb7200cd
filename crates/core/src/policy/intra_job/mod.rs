//! What a job asks for, and in which order it uses what it gets.

mod breadth_first;

pub use breadth_first::BreadthFirst;
