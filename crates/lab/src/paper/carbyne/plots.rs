//! Plots of a figure's page: distributions of completion times, gains and fairness.

use super::experiment::{CaseRuns, Run};
use super::rows::factors;
use super::scenario::FigureScenario;
use amalgam_sim::report::{Figure, Spread};
use std::collections::BTreeMap;

pub fn of(cases: &[CaseRuns], set_up: &FigureScenario) -> Vec<Figure> {
    let mut plots = Vec::new();
    let mut groups: BTreeMap<(&str, &str), Vec<&CaseRuns>> = BTreeMap::new();
    for of in cases {
        groups.entry((&of.workload, &of.setting)).or_default().push(of);
    }
    for ((workload, setting), of_group) in groups {
        let parts = [workload, setting].into_iter().filter(|part| !part.is_empty());
        let group = parts.map(|part| format!(", {part}")).collect::<String>();
        let jct = |of: &&CaseRuns| (of.scheduler.clone(), all(of, |run| run.jct_s.iter().copied().flatten().collect()));
        plots.push(Figure::Distributions(
            format!("Completion times{group}"),
            "seconds".to_owned(),
            of_group.iter().map(jct).collect(),
        ));
        let gains: Vec<(String, Vec<f64>)> = gains(&of_group, set_up);
        if !gains.is_empty() {
            plots.push(Figure::Distributions(format!("Gains of jobs{group}"), "factor".to_owned(), gains));
        }
        let jain = |of: &&CaseRuns| Spread::of(&of.scheduler, all(of, |run| run.jain.clone()));
        let spreads = of_group.iter().map(jain).collect();
        plots.push(Figure::Boxes(format!("Jain's index of minutes{group}"), "index".to_owned(), spreads));
        plots.extend(course(&of_group, &group));
    }
    plots
}

fn all(of: &CaseRuns, values: impl Fn(&Run) -> Vec<f64>) -> Vec<f64> {
    of.runs.iter().flat_map(values).collect()
}

fn gains(of_group: &[&CaseRuns], set_up: &FigureScenario) -> Vec<(String, Vec<f64>)> {
    let mut gains = Vec::new();
    for of in of_group.iter().filter(|of| set_up.schedulers.contains(&of.scheduler)) {
        for base in of_group.iter().filter(|base| set_up.baselines.contains(&base.scheduler)) {
            let factors = of.runs.iter().zip(&base.runs).flat_map(|(run, base)| factors(run, base)).collect();
            gains.push((format!("{} over {}", of.scheduler, base.scheduler), factors));
        }
    }
    gains
}

/// The watched job, with the first seed.
fn course(of_group: &[&CaseRuns], group: &str) -> Option<Figure> {
    let line = |of: &&CaseRuns| {
        let running = &of.runs.first()?.running;
        // Drawn as steps.
        let steps = running.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]).collect::<Vec<_>>();
        (!steps.is_empty()).then(|| (of.scheduler.clone(), steps))
    };
    let lines: Vec<_> = of_group.iter().filter_map(line).collect();
    let heading = format!("Running tasks of one job{group}");
    (!lines.is_empty()).then(|| Figure::OverTime(heading, "tasks".to_owned(), lines))
}
