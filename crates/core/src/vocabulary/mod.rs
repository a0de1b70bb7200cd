//! Basic types that all other modules use: time, ids, resources, jobs, constraints.

pub mod allocation_time;
pub mod byte_string;
pub mod chance;
pub mod chosen;
pub mod clashes;
pub mod closed_reason;
pub mod constraints;
pub mod exchange;
pub mod execution;
pub mod federation;
pub mod files;
pub mod fingerprint;
pub mod gpus;
pub mod hosts;
pub mod ids;
pub mod job;
pub mod launch_size;
pub mod load;
pub mod names;
pub mod prediction;
pub mod progress;
pub mod queue_settings;
mod reads;
pub mod recurring;
pub mod resources;
mod spans;
pub mod time;
pub mod token;
pub mod views;
pub mod waits;
pub mod work;

pub use allocation_time::{AllocationTime, AtNode};
pub use byte_string::ByteString;
pub use chance::Chance;
pub use chosen::{Chosen, RequestedTaskActions, TaskAction};
pub use closed_reason::ClosedReason;
pub use constraints::{Attribute, Attributes, Constraint, ConstraintError, NO_TAINT, Operator, TAINT, unmet};
pub use exchange::{Exchange, ResourceTime};
pub use execution::{
    Devices, EndReason, Ended, Estimated, LaunchOrder, OUTPUT_UNWRITTEN, Stream, TaskShape, TaskTemplate, Usage,
};
pub use federation::{ClusterId, Federation, GlobalId, JobNumbers, Partition, Seat};
pub use files::{Digest, EndedFiles, Fetched, InputFile, InputSpec, OutputFile, StoredFile};
pub use fingerprint::Fingerprint;
pub use gpus::{SharedGpu, WHOLE_GPU};
pub use hosts::HostList;
pub use ids::{
    AskId, AttemptId, ClientId, EntryId, Epoch, GrantId, HostId, JobId, NodeId, ProbeId, QueueId, TaskId, UserId,
};
pub use job::{ExecutionType, IndexRange, Isolation, Items, JobSpec, Program, QueueSpec, StageSpec, TaskSet, Workdir};
pub use load::Load;
pub use names::{BadName, Named};
pub use prediction::{Crowd, Late, Line, Margins, PredictedStart, Prediction, Route};
pub use progress::{Sample, WHOLE};
pub use queue_settings::{QueueSettings, Removable};
pub use reads::{Block, Blocks, Piece, Reads};
pub use recurring::{PastRuns, Recurring};
pub use resources::{Kinds, ResourceSpec, Resources, Totals};
pub use spans::Spans;
pub use time::{ClockOffset, Duration, Instant};
pub use token::{Allocation, Generation, Key, Mac, Sealing, Tag, Token};
pub use views::{ClassTable, Distance, NodeView, NodeViews, QueueView, QueuedEntry, RoomScale, RunningEntry};
pub use waits::{Age, NodeWaits, WaitMatrix};
pub use work::{AllowanceRequest, JobWork, Work};
