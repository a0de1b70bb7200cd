//! Which version of the wire brought each message (ADR 63).
//!
//! A peer of an older version is not sent what it does not know. The lists are exhaustive: a new message does not compile before
//! its version is written here, which is [`VERSION`] after it was increased.

use super::{ExecutorReport, Message, ToClient, ToExecutor, ToGlobalMaster, ToJobHost, ToJobManager, ToMaster, ToNode};
use crate::vocabulary::TaskTemplate;

/// The version of the messages that this program sends.
pub const VERSION: u32 = 33;

/// An older peer would ignore the isolation or container of a task and run it without.
fn of_template(template: &TaskTemplate) -> u32 {
    if template.program.is_isolated() || template.program.container.is_some() { 33 } else { 32 }
}

impl Message {
    /// The version of the wire that brought this message.
    pub fn since(&self) -> u32 {
        match self {
            Message::ToMaster(message) => message.since(),
            Message::ToGlobalMaster(message) => message.since(),
            Message::ToJobHost(message) => message.since(),
            Message::ToJobManager(message) => message.since(),
            Message::ToNode(message) => message.since(),
            Message::ToExecutor(message) => message.since(),
            Message::ToClient(message) => message.since(),
        }
    }

    /// Takes away what this version of the wire did not have: a field that came later gets the value that it has where it is
    /// missing. For the replay of an older journal.
    pub fn reduce_to(&mut self, version: u32) {
        if let Message::ToMaster(ToMaster::Freed { unfinished, .. }) = self {
            *unfinished &= version >= 33;
        }
    }
}

impl ToMaster {
    fn since(&self) -> u32 {
        match self {
            ToMaster::Submit { .. }
            | ToMaster::Control { .. }
            | ToMaster::ControlTasks { .. }
            | ToMaster::Update { .. }
            | ToMaster::Drain { .. }
            | ToMaster::RemoveNode { .. }
            | ToMaster::Register(..)
            | ToMaster::Report(..)
            | ToMaster::Waits(..)
            | ToMaster::Room { .. }
            | ToMaster::Moved { .. }
            | ToMaster::CannotLaunch { .. }
            | ToMaster::NodeFailed { .. }
            | ToMaster::TaskFails { .. }
            | ToMaster::Freed { .. }
            | ToMaster::Demand { .. }
            | ToMaster::AllowanceRequest { .. }
            | ToMaster::Introduce(..)
            | ToMaster::Return { .. }
            | ToMaster::Promote { .. }
            | ToMaster::JobEnded { .. } => 32,
            ToMaster::Label { .. }
            | ToMaster::SetQueue { .. }
            | ToMaster::Reconfigure { .. }
            | ToMaster::MakeRoom { .. }
            | ToMaster::Keep { .. } => 33,
            ToMaster::Launch(proposed) => of_template(&proposed.launch.template),
        }
    }
}

impl ToGlobalMaster {
    fn since(&self) -> u32 {
        match self {
            ToGlobalMaster::OfJobs(message) => message.since(),
            ToGlobalMaster::ClusterUpdate(..) => 32,
        }
    }
}

impl ToJobHost {
    fn since(&self) -> u32 {
        match self {
            ToJobHost::Known { .. } | ToJobHost::Kinds { .. } | ToJobHost::Forget { .. } | ToJobHost::Has { .. } => 32,
        }
    }
}

impl ToJobManager {
    fn since(&self) -> u32 {
        match self {
            ToJobManager::Start { .. }
            | ToJobManager::Share { .. }
            | ToJobManager::Allowance { .. }
            | ToJobManager::Act(..)
            | ToJobManager::ActOnTasks { .. }
            | ToJobManager::Updated { .. }
            | ToJobManager::Nodes { .. }
            | ToJobManager::Waits { .. }
            | ToJobManager::Granted { .. }
            | ToJobManager::Yields { .. }
            | ToJobManager::Started { .. }
            | ToJobManager::Progress { .. }
            | ToJobManager::Lacks { .. }
            | ToJobManager::InPlace { .. }
            | ToJobManager::Finished { .. }
            | ToJobManager::Promoted { .. }
            | ToJobManager::NotTaken { .. }
            | ToJobManager::NotPassed { .. }
            | ToJobManager::Ready { .. }
            | ToJobManager::Live { .. }
            | ToJobManager::Forgotten
            | ToJobManager::Generation { .. }
            | ToJobManager::NodesReturned { .. }
            | ToJobManager::NodeLost { .. } => 32,
        }
    }
}

impl ToNode {
    fn since(&self) -> u32 {
        match self {
            ToNode::Executor(report) => report.since(),
            ToNode::Launch(launch) | ToNode::LaunchInstead { launch, .. } => of_template(&launch.template),
            ToNode::Welcome(..)
            | ToNode::Greeting(..)
            | ToNode::ResendEnds { .. }
            | ToNode::RegisterAgain
            | ToNode::Steer(..)
            | ToNode::Expire { .. }
            | ToNode::Move { .. }
            | ToNode::StartTask { .. }
            | ToNode::Promote { .. }
            | ToNode::SetTimeout { .. }
            | ToNode::Probe(..)
            | ToNode::Cancel { .. }
            | ToNode::Claim(..)
            | ToNode::Stop { .. }
            | ToNode::Holder { .. }
            | ToNode::Acknowledge { .. }
            | ToNode::Disown { .. }
            | ToNode::Forget { .. } => 32,
            ToNode::Preempt { .. } => 33,
        }
    }
}

impl ToExecutor {
    /// The version of the wire that brought this message.
    pub fn since(&self) -> u32 {
        match self {
            ToExecutor::Launch(order) => of_template(&order.template),
            ToExecutor::Signal { .. }
            | ToExecutor::Promote { .. }
            | ToExecutor::SetTimeout { .. }
            | ToExecutor::Yield { .. }
            | ToExecutor::Resume { .. }
            | ToExecutor::Acknowledge { .. }
            | ToExecutor::List { .. }
            | ToExecutor::Fetch { .. }
            | ToExecutor::Measure { .. }
            | ToExecutor::Drop { .. } => 32,
        }
    }
}

impl ToClient {
    fn since(&self) -> u32 {
        match self {
            ToClient::Submitted { .. } | ToClient::Done | ToClient::AsBefore | ToClient::Refused(..) => 32,
        }
    }
}

impl ExecutorReport {
    fn since(&self) -> u32 {
        match self {
            ExecutorReport::Started { .. }
            | ExecutorReport::Finished { .. }
            | ExecutorReport::Executing { .. }
            | ExecutorReport::Stored { .. }
            | ExecutorReport::Fetched { .. }
            | ExecutorReport::Measured { .. } => 32,
        }
    }
}
