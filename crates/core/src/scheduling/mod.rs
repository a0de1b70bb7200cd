//! The parts that roles are made of: queues of asks and of nodes' entries, views of nodes, the ledger, and the
//! schedulers that use them.

mod classes;
mod ledger;
mod local;
mod locality;
mod node_queue;
mod predicting;
mod published;
mod request_queue;
mod room_order;
mod scheduler;

pub use ledger::{Booking, BookingChange, ClaimError, Ledger, LedgerNews, NodeState, WithoutSlow};
pub use local::{Allowed, AskState, LocalScheduler, NextTask, NextTasks, PlacedTask, Step};
pub use locality::Delays;
pub use node_queue::{Lack, NodeQueue};
pub use request_queue::RequestQueue;
pub use scheduler::{Blocked, ConfirmInstead, Granting, Reclaim, Scheduler, SchedulerSettings, explain_fit};
