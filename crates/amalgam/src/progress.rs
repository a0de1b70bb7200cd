//! Progress of a job: bars on a terminal, otherwise a line for each change, and nothing for a single running task.

use crate::following::{Plain, Sink};
use crate::show;
use amalgam_core::vocabulary::Stream;
use amalgam_daemon::api::{JobDetail, JobState, StageDetail, TaskCounts, Timestamp};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io;

/// Jobs with more stages are shown as one line.
const MAX_BARS: usize = 12;

pub enum Progress {
    Bars(Bars),
    Lines(Lines),
}

impl Progress {
    /// The kind that suits standard error.
    pub fn new() -> Progress {
        if show::is_watched() { Progress::Bars(Bars::default()) } else { Progress::Lines(Lines::default()) }
    }

    pub fn update(&mut self, job: &JobDetail) {
        match self {
            Progress::Bars(bars) => bars.update(job),
            Progress::Lines(lines) => lines.update(job),
        }
    }

    /// Removes the bars, except those that remain of interest.
    pub fn finish(&mut self) {
        if let Progress::Bars(bars) = self {
            bars.stages.values().filter(|bar| !bar.is_finished()).for_each(ProgressBar::abandon);
        }
    }

    /// A destination for output that does not garble the bars.
    pub fn sink(&self) -> Box<dyn Sink + Send> {
        match self {
            Progress::Bars(bars) => Box::new(BesideBars(bars.screen.clone())),
            Progress::Lines(_) => Box::new(Plain),
        }
    }
}

struct BesideBars(MultiProgress);

impl Sink for BesideBars {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0.suspend(|| Plain.write(stream, bytes))
    }
}

pub struct Bars {
    screen: MultiProgress,
    stages: BTreeMap<String, ProgressBar>,
    style: ProgressStyle,
}

impl Default for Bars {
    fn default() -> Bars {
        let template = if show::shows_colour() {
            "{prefix:16!} {bar:28.green/black} {pos:>7}/{len} {msg}"
        } else {
            "{prefix:16!} {bar:28} {pos:>7}/{len} {msg}"
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Bars {
            screen: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)),
            stages: BTreeMap::new(),
            style,
        }
    }
}

impl Bars {
    fn update(&mut self, job: &JobDetail) {
        // A single task is visible by its output. It gets a line only while it waits.
        if job.summary.tasks.total <= 1 {
            return self.update_single(job);
        }
        for stage in
            job.stages.iter().filter(|stage| job.stages.len() <= MAX_BARS || stage.tasks.running > 0).take(MAX_BARS)
        {
            let (screen, style) = (&self.screen, &self.style);
            let bar = self.stages.entry(stage.name.clone()).or_insert_with(|| {
                let bar = screen.add(ProgressBar::new(stage.tasks.total));
                bar.set_style(style.clone());
                bar.set_prefix(show::visible(&stage.name).into_owned());
                bar
            });
            bar.set_length(stage.tasks.total);
            bar.set_position(stage.tasks.ended());
            bar.set_message(message(stage));
        }
    }

    fn update_single(&mut self, job: &JobDetail) {
        let reason = job.reasons.first().or(job.summary.reason.as_ref());
        match (job.summary.state, reason) {
            (JobState::Pending | JobState::Held, Some(reason)) => {
                let screen = &self.screen;
                let bar = self.stages.entry(String::new()).or_insert_with(|| screen.add(ProgressBar::new_spinner()));
                bar.set_message(format!("waiting: {}", show::visible(reason)));
                bar.tick();
            }
            _ => self.stages.values().filter(|bar| !bar.is_finished()).for_each(ProgressBar::finish_and_clear),
        }
    }
}

/// `3 running, 1 failed, 12.5/s, 40s left`
fn message(stage: &StageDetail) -> String {
    let mut parts = Vec::new();
    if stage.tasks.running > 0 {
        parts.push(format!("{} running", stage.tasks.running));
    }
    if stage.tasks.failed > 0 {
        parts.push(format!("{} failed", stage.tasks.failed));
    }
    if stage.tasks.cancelled > 0 {
        parts.push(format!("{} cancelled", stage.tasks.cancelled));
    }
    if let Some(rate) = stage.rate {
        parts.push(format!("{}/s", show::number((rate * 10.0).round() / 10.0)));
    }
    if let Some(end) = stage.expected_end.filter(|_| stage.tasks.ended() < stage.tasks.total) {
        parts.push(format!("{} left", show::between(Timestamp::now(), Some(end))));
    }
    if let (true, Some(reason)) = (parts.is_empty(), stage.reasons.first()) {
        parts.push(format!("waiting: {}", show::visible(reason)));
    }
    parts.join(", ")
}

/// The last printed line of each stage.
#[derive(Default)]
pub struct Lines {
    printed: BTreeMap<String, &'static str>,
    reason: Option<String>,
}

impl Lines {
    fn update(&mut self, job: &JobDetail) {
        if job.summary.state == JobState::Pending && job.summary.reason.is_some() && job.summary.reason != self.reason {
            self.reason.clone_from(&job.summary.reason);
            let reason = show::visible(self.reason.as_deref().unwrap_or_default());
            show::note(&format!("job {}: waiting: {reason}", job.summary.id));
        }
        if job.summary.tasks.total <= 1 {
            return;
        }
        for stage in &job.stages {
            let state = state(stage);
            if self.printed.insert(stage.name.clone(), state) != Some(state) && state != "waiting" {
                show::note(&line(&show::visible(&stage.name), state, &stage.tasks));
            }
        }
    }
}

fn line(stage: &str, state: &str, tasks: &TaskCounts) -> String {
    let failed = if tasks.failed > 0 { format!(", {} failed", tasks.failed) } else { String::new() };
    format!("{stage}: {state}, {}/{} done{failed}", tasks.succeeded, tasks.total)
}

fn state(stage: &StageDetail) -> &'static str {
    let tasks = &stage.tasks;
    match () {
        () if tasks.ended() == tasks.total && tasks.cancelled > 0 => "cancelled",
        () if tasks.ended() == tasks.total && tasks.failed > 0 => "failed",
        () if tasks.ended() == tasks.total => "succeeded",
        () if tasks.running > 0 || tasks.ended() > 0 => "running",
        () => "waiting",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stages_line_counts_what_is_done_and_what_failed() {
        let counts = |succeeded, failed| TaskCounts { total: 3, succeeded, failed, ..TaskCounts::default() };
        assert_eq!(line("rd", "failed", &counts(1, 2)), "rd: failed, 1/3 done, 2 failed");
        assert_eq!(line("rd", "succeeded", &counts(3, 0)), "rd: succeeded, 3/3 done");
    }
}
