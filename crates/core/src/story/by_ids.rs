//! Lines for readers who debug: things are named by their ids, and facts that users are not shown have lines, too.

use super::{Line, Names, of_change, of_record};
use crate::role::{Change, Record};
use crate::vocabulary::resources::CPU;
use crate::vocabulary::{GrantId, JobId, Kinds, NodeId, ResourceTime, TaskId};

struct Ids {
    kinds: Kinds,
}

impl Names for Ids {
    fn task(&self, task: TaskId) -> String {
        format!("task {task}")
    }

    fn node(&self, node: NodeId) -> String {
        node.to_string()
    }

    fn stage(&self, _: JobId, stage: u32) -> String {
        stage.to_string()
    }

    fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    fn partition(&self, _: NodeId) -> String {
        String::new()
    }

    fn dependency(&self, after: JobId) -> String {
        format!("its dependency job {after} did not succeed")
    }

    fn reports_guarantees(&self) -> bool {
        true
    }
}

/// A change by ids; `None` if it has no line.
pub fn change_by_ids(change: &Change) -> Option<String> {
    if let Change::Exchanged { job, exchange, .. } = change {
        let seconds = |time: &ResourceTime| time.seconds(CPU) / 1e3;
        let (given, received) = (seconds(&exchange.given), seconds(&exchange.received));
        return Some(format!("job {job}: gave {given} CPU seconds so far and received {received}"));
    }
    if let Change::JobAdmitted { job, .. } = change
        && let Some(line) = of_change(change, &Ids { kinds: Kinds::new() })
    {
        return Some(format!("job {} ({}): {}", job.id, job.spec.name, line.text));
    }
    let grant = match change {
        Change::Launched { grant, .. } | Change::Promoted { grant, .. } => *grant,
        _ => None,
    };
    of_change(change, &Ids { kinds: Kinds::new() }).map(|line| shown(&line, change.job(), grant))
}

/// A record by ids, or its debug output if it has no line.
pub fn record_by_ids(record: &Record) -> String {
    if let Record::Stale { from, attempt } = record {
        return format!("late message about {attempt} from {from:?} dropped");
    }
    let line = of_record(record, &Ids { kinds: Kinds::new() });
    line.map_or_else(|| internal(record), |line| shown(&line, record.job(), None))
}

fn shown(line: &Line, job: Option<JobId>, grant: Option<GrantId>) -> String {
    let of = match (job, line.task) {
        (Some(job), None) => format!("job {job}: "),
        _ => String::new(),
    };
    let by = match (line.attempt, grant) {
        (Some(attempt), Some(grant)) => format!(" [{attempt}, {grant}]"),
        (Some(attempt), None) => format!(" [{attempt}]"),
        (None, _) => String::new(),
    };
    format!("{of}{}{by}", line.text)
}

fn internal(record: &Record) -> String {
    match record {
        Record::Submitted { job, tasks } => format!("job {job}: its manager has {tasks} tasks"),
        Record::Allowed { job, most } => format!("job {job}: may hold {} CPU guaranteed", most.0[CPU] as f64 / 1e3),
        Record::StaleMessage { from } => format!("late message from {from:?} dropped"),
        Record::StaleGrant { from, grant } => format!("late message about {grant} from {from:?} dropped"),
        Record::Repartitioned { task, attempt, node } => {
            format!("task {task} gets room on {node}, which is internal to another global master [{attempt}]")
        }
        other => format!("{other:?}"),
    }
}
