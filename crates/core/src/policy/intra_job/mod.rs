//! Policies within a job: what it asks for, and the order in which it uses grants.

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
