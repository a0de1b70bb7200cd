//! The simulator: the roles of core, driven by an agenda instead of a clock, with a simulated network and simulated
//! executors.
//!
//! ```text
//!  agenda --next entry--> process: the roles of one process, in turns --messages-> network --> agenda
//!                            ^                                       \--orders--> executor --> agenda
//! ```
//!
//! All scheduling decisions are made by the roles, which are the same code that runs in the daemons.

mod agenda;
pub mod bench;
mod chaos;
mod checkers;
mod execution;
mod executor;
mod faults;
mod inputs;
mod metrics;
mod network;
mod node;
mod oracle;
mod parallel;
mod places;
mod process;
mod reference;
pub mod report;
mod sealing;
mod settings;
mod simulation;
pub mod statistics;
mod story;
mod subject;
#[cfg(test)]
mod testing;
mod view;

pub use chaos::{Coverage, Failure, Met, Report, TotalCoverage, run_seed, run_seed_with_story, run_seeds};
pub use execution::{ExecutionSettings, SlowNodes};
pub use faults::{Fault, Happening, Moment, Planned};
pub use metrics::{
    AcrossNodes, Against, Allocation, Altruism, Busy, Chain, Counters, Duplicates, Forecast, Gantt, GanttStage,
    Guarantees, Heat, Jain, JobResult, OfPreset, Outcome, QueueExchange, QueueGuarantee, Queueing, ReadFrom, Reading,
    Results, RunTimes, Stragglers, Utilization, WINDOW, Watched, Window,
};
pub use oracle::Oracle;
pub use parallel::in_order;
pub use places::ProcessId;
pub use reference::Reference;
pub use settings::{Costs, FileSettings, InputSettings, NetworkSettings, ONCE_ANOTHER_ENDED, Settings, Understating};
pub use simulation::{Simulation, capacity};
pub use story::Subject;
