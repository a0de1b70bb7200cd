//! The lines of records.

use super::{Kind, Line, Names, about_attempt, about_job};
use crate::role::{Record, Trigger};
use crate::vocabulary::AllocationTime;
use crate::why::{Why, counted};

/// The line that a record adds to the story of its job; `None` if it adds none.
pub fn of_record(record: &Record, names: &dyn Names) -> Option<Line> {
    of_job_record(record, names)
        .or_else(|| of_start_record(record, names))
        .or_else(|| of_run_record(record, names))
        .or_else(|| of_duplicate_record(record, names))
}

/// Records about the job, its stages and tasks, without a node.
fn of_job_record(record: &Record, names: &dyn Names) -> Option<Line> {
    match record {
        Record::Blocked { why, .. } => about_job(Kind::Blocked, why.describe(names.kinds(), |node| names.node(node))),
        Record::StageReady { job, stage, .. } => about_job(
            Kind::StageReady,
            format!("stage {} is ready: its dependencies are met", names.stage(*job, *stage)),
        ),
        Record::Deferred { job, stage, tasks, left } => {
            let why = Why::CanWait { stage: names.stage(*job, *stage), tasks: *tasks, left: *left };
            about_job(Kind::CanWait, why.describe(names.kinds(), |node| names.node(node)))
        }
        Record::GangStarts { job, stage, tasks } => {
            let text = format!(
                "{} of stage {}, all that have not succeeded, are in place and start",
                counted(u64::from(*tasks), "task"),
                names.stage(*job, *stage)
            );
            about_job(Kind::GangStarted, text)
        }
        Record::EstimatesJudged { believed: false, .. } => about_job(
            Kind::Estimates,
            "ran far longer than stated, as its user's last jobs did: that user's next jobs are guaranteed",
        ),
        Record::EstimatesJudged { believed: true, .. } => {
            about_job(Kind::Estimates, "ran about as long as stated: its user's next jobs may be opportunistic again")
        }
        Record::Retried { task, failures, retries, delay, costs_none } => {
            let cost = match costs_none {
                true => "which costs none of its retries".to_owned(),
                false => format!("{failures} of {retries} retries used"),
            };
            let when = if delay.as_micros() == 0 { String::new() } else { format!(" in {delay}") };
            let text = format!("{} is tried again{when} ({cost})", names.task(*task));
            Some(Line { kind: Kind::Retried, text, task: Some(*task), attempt: None, node: None, allocation: None })
        }
        Record::Stale { attempt, .. } => Some(Line {
            kind: Kind::Stale,
            text: format!(
                "a message about attempt {attempt} arrived after its end, for example after a duplicate or from a reconnected node; it is ignored"
            ),
            task: None,
            attempt: Some(*attempt),
            node: None,
            allocation: None,
        }),
        _ => None,
    }
}

/// Records about an attempt from its launch to its start.
fn of_start_record(record: &Record, names: &dyn Names) -> Option<Line> {
    match record {
        Record::Queued { task, attempt, node } => {
            let text = format!("{} waits at {} for room", names.task(*task), names.node(*node));
            about_attempt(Kind::Queued, *task, *attempt, *node, text)
        }
        Record::AwaitsGang { task, attempt, node } => {
            let text =
                format!("{} is on {} and waits for the others of its gang", names.task(*task), names.node(*node));
            about_attempt(Kind::AwaitsGang, *task, *attempt, *node, text)
        }
        Record::AwaitsFiles { task, attempt, node, files, bytes } => {
            let files = counted(u64::from(*files), "file");
            let text = format!("{} lacks {files} of {bytes} bytes that {} reads", names.node(*node), names.task(*task));
            about_attempt(Kind::AwaitsFiles, *task, *attempt, *node, text)
        }
        Record::FilesArrived { task, attempt, node } => {
            let text = format!("all input files of {} are on {}", names.task(*task), names.node(*node));
            about_attempt(Kind::FilesArrived, *task, *attempt, *node, text)
        }
        Record::Started { task, attempt, node, waited, allocation, .. } => {
            let parts = allocation.map(|time| in_parts(&time)).unwrap_or_default();
            let text =
                format!("{} started on {}, {waited} after its launch{parts}", names.task(*task), names.node(*node));
            Some(Line { allocation: *allocation, ..about_attempt(Kind::Started, *task, *attempt, *node, text)? })
        }
        Record::WaitedInVain { task, attempt, node, waited, expected } => {
            let text = format!("it waited {waited} on {} and did not start; expected: {expected}", names.node(*node));
            about_attempt(Kind::GivenUp, *task, *attempt, *node, text)
        }
        Record::Prediction { task, attempt, node, prediction, start, .. } => {
            let (least, most) = (prediction.least, prediction.most);
            let text = format!("it waited {}; predicted: {least} to {most}", start.waited);
            about_attempt(Kind::Predicted, *task, *attempt, *node, text)
        }
        Record::LaunchRefused { task, attempt, node, why } => {
            let text = format!("a launch of {} on {} is refused: {why}", names.task(*task), names.node(*node));
            about_attempt(Kind::Refused, *task, *attempt, *node, text)
        }
        Record::TokenRefused { task, attempt, node, why } => {
            let text = format!("{} refused a launch of {}: {why}", names.node(*node), names.task(*task));
            about_attempt(Kind::TokenRefused, *task, *attempt, *node, text)
        }
        _ => None,
    }
}

/// Records about the run of an attempt.
fn of_run_record(record: &Record, names: &dyn Names) -> Option<Line> {
    match record {
        Record::Adopted { task, attempt, node } => {
            let text = format!("{} found running on {} and taken over", names.task(*task), names.node(*node));
            about_attempt(Kind::Adopted, *task, *attempt, *node, text)
        }
        Record::Stopping { task, attempt, node, reason } => {
            let text = format!("{} on {} is stopped: {reason}", names.task(*task), names.node(*node));
            about_attempt(Kind::Stopping, *task, *attempt, *node, text)
        }
        Record::Preempting { task, attempt, node, by } => {
            let (task_name, node_name) = (names.task(*task), names.node(*node));
            let text =
                format!("{task_name} on {node_name} is preempted for the guaranteed attempt {by} of job {}", by.job);
            about_attempt(Kind::Preempting, *task, *attempt, *node, text)
        }
        Record::Reclaiming { task, attempt, node, by } => {
            let (task_name, node_name) = (names.task(*task), names.node(*node));
            let text = format!(
                "{task_name} on {node_name} is preempted for job {by}: this job holds more than it is entitled to, and that one less"
            );
            about_attempt(Kind::Preempting, *task, *attempt, *node, text)
        }
        Record::Yielding { task, attempt, node, by } => {
            let (task_name, node_name) = (names.task(*task), names.node(*node));
            let text = format!(
                "{task_name} on {node_name} yields its CPU to the guaranteed attempt {by} of job {}, and continues with \
                 what is left",
                by.job
            );
            about_attempt(Kind::Yielding, *task, *attempt, *node, text)
        }
        Record::Resumed { task, attempt, node, after } => {
            let text = format!("{} on {} has its CPU again, after {after}", names.task(*task), names.node(*node));
            about_attempt(Kind::Resumed, *task, *attempt, *node, text)
        }
        Record::Orphaned { task, attempt, node } => {
            let text =
                format!("an attempt of {} on {} has no owner and is stopped", names.task(*task), names.node(*node));
            about_attempt(Kind::Orphaned, *task, *attempt, *node, text)
        }
        _ => None,
    }
}

/// Records about attempts that run beside a slow or waiting one.
fn of_duplicate_record(record: &Record, names: &dyn Names) -> Option<Line> {
    match record {
        Record::Duplicated { task, attempt, node, trigger } => {
            let why = match trigger {
                Trigger::Explored => "it waits, and may start sooner there",
                _ => "it would start sooner there",
            };
            let text = format!("{} is launched on {}, too: {why}", names.task(*task), names.node(*node));
            about_attempt(Kind::Duplicated, *task, *attempt, *node, text)
        }
        Record::Straggles { task, attempt, node, part, left, elsewhere, takes } => {
            let text = format!(
                "{} is slow on {}: {:.0} % done, and {left} left; it is also launched on {}, where it is expected to \
                 take {takes} in total",
                names.task(*task),
                names.node(*node),
                f64::from(*part) / 1e4,
                names.node(*elsewhere)
            );
            about_attempt(Kind::Straggles, *task, *attempt, *node, text)
        }
        Record::SlowInput { task, attempt, node, waited, writer, from, elsewhere } => {
            let text = format!(
                "{} has waited at {} for {waited} for a file that {} has: {}, which wrote it, runs again on {}",
                names.task(*task),
                names.node(*node),
                names.node(*from),
                names.task(*writer),
                names.node(*elsewhere)
            );
            about_attempt(Kind::SlowInput, *task, *attempt, *node, text)
        }
        Record::Overtaken { task, attempt, node, by } => {
            let text = format!(
                "attempt {by} of {} finished before the slow one on {}, which is stopped",
                names.task(*task),
                names.node(*node)
            );
            about_attempt(Kind::Overtaken, *task, *attempt, *node, text)
        }
        _ => None,
    }
}

fn in_parts(time: &AllocationTime) -> String {
    let AllocationTime { queue, processing, communication, node } = time;
    format!(
        "; of {} since it could run: {queue} in the queue, {processing} processing, {communication} communication, {node} at \
         the node",
        time.total()
    )
}
