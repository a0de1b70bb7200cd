//! The stages of a job: their counts, rates and expected ends, and why their tasks do not run.

use super::Job;
use super::amounts::named;
use super::ends::{describe_end, task_name};
use crate::api::{AttemptCounts, MeanOf, StageDetail, TaskCounts, Timestamp};
use amalgam_core::job_manager::{JobManager, OpenAttempt};
use amalgam_core::progress::{Estimate, EstimateSource, Stage};
use amalgam_core::vocabulary::{Duration, Instant, Isolation};
use amalgam_core::why::{Why, counted};

impl Job<'_> {
    /// For each stage, a failed stage that it depends on, directly or indirectly.
    pub(super) fn broken_by(&self) -> Vec<Option<u32>> {
        let Some(manager) = self.manager else { return Vec::new() };
        let mut broken: Vec<Option<u32>> = Vec::with_capacity(self.job.spec.stages.len());
        for spec in &self.job.spec.stages {
            let failed = |before: &u32| {
                let stage = manager.dag().stage(*before);
                if stage.failed + stage.cancelled > 0 { Some(*before) } else { broken[*before as usize] }
            };
            broken.push(spec.after.iter().find_map(failed));
        }
        broken
    }

    /// `ran` contains the run times of its running attempts so far; `broken_by` is a failed stage that it depends on.
    pub(super) fn stage(
        &self,
        number: usize,
        counts: Option<TaskCounts>,
        ran: &[Duration],
        broken_by: Option<u32>,
    ) -> StageDetail {
        let spec = &self.job.spec.stages[number];
        let progress = self.manager.map(|manager| &manager.dag().stages[number]);
        let tasks = counts.unwrap_or_else(|| self.counts_without_manager(spec.tasks.len().into()));
        let name = |stage: &u32| self.job.spec.stages[*stage as usize].name.clone();
        let estimate = progress.map(|stage| &stage.estimate);
        let spent = progress.map(|stage| stage.spent).unwrap_or_default();
        StageDetail {
            name: spec.name.clone(),
            after: spec.after.iter().map(name).collect(),
            command: spec.program.command.clone(),
            rate: progress.and_then(|stage| rate(stage, &tasks, self.now)),
            mean_seconds: estimate.and_then(Estimate::expected).map(Duration::as_secs_f64),
            mean_of: estimate.and_then(Estimate::source).map(mean_of),
            p50_seconds: estimate.and_then(|estimate| estimate.percentile(50)).map(Duration::as_secs_f64),
            expected_end: estimate
                .and_then(Estimate::expected)
                .and_then(|mean| expected_end(mean, ran, tasks.waiting + tasks.queued, self.now)),
            reasons: progress.map(|stage| self.stage_reasons(number, stage, broken_by)).unwrap_or_default(),
            resources: named(&self.job.resources[number], &self.dispatch.kinds),
            constraints: spec.constraints.iter().map(ToString::to_string).collect(),
            retries: spec.retries,
            retry_delay_seconds: spec.first_retry_delay().as_secs_f64(),
            gang: spec.gang,
            at_once: spec.at_once,
            priority: spec.priority_in(&self.job.spec),
            timeout_seconds: spec.timeout.or(self.job.default_timeout).map(Duration::as_secs_f64),
            wall_seconds: spent.wall.as_secs_f64(),
            cpu_seconds: spent.cpu.as_secs_f64(),
            max_memory_bytes: spent.max_memory_bytes,
            dropped_bytes: progress.map_or(0, |stage| stage.dropped_bytes),
            output_unwritten: progress.and_then(Stage::why_output_unwritten).map(str::to_owned),
            container: spec.program.container.clone(),
            isolation: spec.program.isolation.unwrap_or(Isolation::None).word().to_owned(),
            tasks,
        }
    }

    fn stage_reasons(&self, number: usize, stage: &Stage, broken_by: Option<u32>) -> Vec<String> {
        if stage.abandoned && stage.waiting() > 0 {
            let who = if stage.waiting() < stage.total { "the rest " } else { "" };
            return vec![format!("{who}never runs: {}", self.why_abandoned(number, broken_by))];
        }
        if stage.inputs_missing == 0 || stage.waiting() == 0 {
            return Vec::new();
        }
        let Some(manager) = self.manager else { return Vec::new() };
        let spec = &self.job.spec.stages[number];
        let open = spec.after.iter().filter(|before| !manager.dag().stage(**before).is_complete());
        let stages = open.map(|before| self.job.spec.stages[*before as usize].name.clone()).collect();
        vec![self.dispatch.describe_why(&Why::AfterStages { stages })]
    }

    fn why_abandoned(&self, number: usize, broken_by: Option<u32>) -> String {
        if let Some(cancellation) = self.dispatch.cancellation(self.job.id) {
            return format!("the job was cancelled by {} at {}", cancellation.by, Timestamp::from(cancellation.at));
        }
        if let Some(before) = broken_by {
            let spec = &self.job.spec.stages[before as usize];
            let failure = self.manager.and_then(|manager| manager.dag().stage(before).first_failure());
            let timeout = spec.timeout.or(self.job.default_timeout);
            let how = match failure {
                None => "was cancelled in part".to_owned(),
                Some((_, reason)) if spec.tasks.len() == 1 => format!("failed ({})", describe_end(&reason, timeout)),
                Some((place, reason)) => {
                    format!("failed ({} {})", task_name(spec, place), describe_end(&reason, timeout))
                }
            };
            return format!("its dependency stage {} {how}", spec.name);
        }
        let failed = self.manager.map_or(0, |manager| manager.dag().failed_tasks());
        match self.job.spec.max_fails {
            Some(most) if failed > u64::from(most) => {
                format!("{} failed, and the job allows {most}", counted(failed, "task"))
            }
            _ if self.job.spec.stages[number].gang => "its tasks start together, and one of them failed".to_owned(),
            _ => "the job was cancelled".to_owned(),
        }
    }
}

/// Task counts of a job by stage. Tasks whose processes have not started are queued, even if they wait at a node.
pub(super) fn task_counts(manager: &JobManager) -> Vec<TaskCounts> {
    let mut counts: Vec<TaskCounts> = manager.dag().stages.iter().map(stage_counts).collect();
    for open in manager.open_attempts().filter(|open| open.started_at.is_none()) {
        let stage = &mut counts[open.task.stage as usize];
        stage.running -= 1;
        stage.queued += 1;
    }
    counts
}

/// Task counts from the DAG, in which launched tasks count as running.
fn stage_counts(stage: &Stage) -> TaskCounts {
    let waiting = u64::from(stage.waiting());
    let mut counts = TaskCounts {
        total: u64::from(stage.total),
        running: u64::from(stage.running),
        succeeded: u64::from(stage.succeeded),
        failed: u64::from(stage.failed),
        cancelled: u64::from(stage.cancelled),
        ..TaskCounts::default()
    };
    match (stage.abandoned, stage.inputs_missing) {
        (true, _) => counts.cancelled += waiting,
        (false, 0) => counts.queued = waiting,
        (false, _) => counts.waiting = waiting,
    }
    counts
}

/// Attempts of a job by type and state.
pub fn attempt_counts(manager: &JobManager) -> AttemptCounts {
    let mut counts = AttemptCounts::default();
    for OpenAttempt { opportunistic, started_at, .. } in manager.open_attempts() {
        match (started_at, opportunistic) {
            (None, _) => counts.at_nodes += 1,
            (Some(_), false) => counts.guaranteed += 1,
            (Some(_), true) => counts.opportunistic += 1,
        }
    }
    for stage in &manager.dag().stages {
        counts.preempted += u64::from(stage.preempted);
        counts.shed += u64::from(stage.shed);
    }
    counts
}

fn rate(stage: &Stage, tasks: &TaskCounts, now: Instant) -> Option<f64> {
    let seconds = now.since(stage.first_launch?).as_secs_f64();
    let ended = tasks.succeeded + tasks.failed;
    (ended > 0 && seconds > 0.0 && tasks.running > 0).then(|| ended as f64 / seconds)
}

fn mean_of(source: EstimateSource) -> MeanOf {
    match source {
        EstimateSource::FinishedTasks => MeanOf::FinishedTasks,
        EstimateSource::JobFile => MeanOf::JobFile,
        EstimateSource::EarlierRuns => MeanOf::EarlierRuns,
    }
}

/// For each stage, the run times of its running attempts so far.
pub(super) fn running_for(manager: &JobManager, now: Instant) -> Vec<Vec<Duration>> {
    let mut stages = vec![Vec::new(); manager.dag().stages.len()];
    for OpenAttempt { task, started_at, .. } in manager.open_attempts() {
        stages[task.stage as usize].extend(started_at.map(|at| now.since(at)));
    }
    stages
}

/// The end of a stage if each of its tasks takes `mean` in total, and waiting tasks start as running ones end. A
/// running task that has exceeded `mean` is assumed to end now.
fn expected_end(mean: Duration, ran: &[Duration], waiting: u64, now: Instant) -> Option<Timestamp> {
    let mut left: Vec<u64> = ran.iter().map(|ran| mean.0.saturating_sub(ran.0)).collect();
    left.sort_unstable();
    let places = left.len() as u64;
    let rounds = waiting.checked_div(places)?;
    let last = match waiting % places {
        0 => left.last()?.saturating_add(mean.0.saturating_mul(rounds)),
        rest => left[rest as usize - 1].saturating_add(mean.0.saturating_mul(rounds + 1)),
    };
    Some(Timestamp(now.0.saturating_add(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_end_of_a_stage_follows_from_the_remaining_run_times() {
        let seconds = Duration::from_secs;
        let end = |ran: &[u64], waiting: u64| {
            let ran: Vec<Duration> = ran.iter().map(|ran| seconds(*ran)).collect();
            expected_end(seconds(10), &ran, waiting, Instant(5_000_000)).map(|end| (end.0 - 5_000_000) / 1_000_000)
        };
        assert_eq!(end(&[], 3), None, "no task runs");
        assert_eq!(end(&[1], 0), Some(9));
        assert_eq!(end(&[9], 0), Some(1));
        assert_eq!(end(&[2, 9], 0), Some(8), "the last end counts");
        assert_eq!(end(&[25], 0), Some(0), "it is late already");
        assert_eq!(end(&[2, 9], 1), Some(11), "it starts when the first task ends");
        assert_eq!(end(&[2, 9], 2), Some(18));
        assert_eq!(end(&[2, 9], 3), Some(21));
    }
}
