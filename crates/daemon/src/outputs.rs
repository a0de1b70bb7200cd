//! The declared outputs of a job as the public interface shows them.

use crate::api::OutputFile;
use crate::http::{FoundFile, OutputFilter};
use amalgam_core::hosting::Roles;
use amalgam_core::vocabulary::{JobId, NodeId, TaskId};

/// A stage, a position in it, and the number of a file of that task.
pub type From = (u32, u32, usize);

/// Parses the cursor of a list.
pub fn cursor(text: &str) -> Option<From> {
    let mut parts = text.split('.');
    let from = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(from)
}

/// Up to `limit` outputs, ordered by task and name, and the start of the next page. `None` for an unknown job.
pub fn list(
    roles: &Roles,
    job: JobId,
    filter: OutputFilter,
    from: From,
    limit: usize,
) -> Option<(Vec<OutputFile>, Option<From>)> {
    let dispatch = roles.dispatch()?;
    let (admitted, _) = dispatch.job(job)?;
    let name_of = |node: NodeId| dispatch.names.of(node).map_or_else(|| node.to_string(), str::to_owned);
    let mut items = Vec::new();
    let Some(manager) = roles.jobs.get(&job) else { return Some((items, None)) };
    let (first_stage, first_index, first_file) = from;
    for left in manager.outputs_from((first_stage, first_index)) {
        let TaskId { stage, index, .. } = left.task;
        let is_wanted =
            filter.stage.is_none_or(|wanted| wanted == stage) && filter.index.is_none_or(|wanted| wanted == index);
        if !is_wanted {
            continue;
        }
        let skipped = if (stage, index) == (first_stage, first_index) { first_file } else { 0 };
        for (number, file) in left.files.iter().enumerate().skip(skipped) {
            if items.len() == limit {
                return Some((items, Some((stage, index, number))));
            }
            items.push(OutputFile {
                task: left.task.to_string(),
                stage: admitted.spec.stages.get(stage as usize).map(|stage| stage.name.clone()).unwrap_or_default(),
                index,
                attempt: left.attempt.to_string(),
                name: file.name.clone(),
                bytes: file.bytes,
                sha256: file.digest.to_string(),
                nodes: manager.holders(&left, &file.digest).into_iter().map(name_of).collect(),
            });
        }
    }
    Some((items, None))
}

/// The output of a task with this name.
pub fn find(roles: &Roles, task: TaskId, name: &str) -> Option<FoundFile> {
    let manager = roles.jobs.get(&task.job)?;
    let left = manager.outputs_from((task.stage, task.index)).next().filter(|left| left.task == task)?;
    let file = left.files.iter().find(|file| file.name == name)?;
    Some(FoundFile { digest: file.digest, bytes: file.bytes, nodes: manager.holders(&left, &file.digest) })
}
