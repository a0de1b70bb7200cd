//! Where a task goes.

mod next_fit;

pub use next_fit::NextFit;
