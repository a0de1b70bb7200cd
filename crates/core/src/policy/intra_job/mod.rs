//! What a job asks for, and in which order it uses what it gets.

mod alone;
mod altruistic;
mod breadth_first;
mod critical_path;
pub mod dagps;
mod packing;
mod plan;
mod remaining;
mod shift;
mod tetris;

pub use altruistic::{Altruistic, PlanOrder};
pub use breadth_first::BreadthFirst;
pub use critical_path::CriticalPath;
pub use plan::{Order, Plan, Schedule, StageWork, pack, plan};
pub use tetris::Tetris;
