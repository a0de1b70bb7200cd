//! Experiments of the papers under the default preset.

use super::board::Variant;
use super::entry::{Asked, Entry};
use super::score::JUDGED;
use crate::baselines;
use crate::extent::Extent;
use crate::paper::{self, Row};
use amalgam_cli::failure::Result;
use serde::Deserialize;

/// A figure of `amalgam-lab paper`, and what is asked of the default preset in it. It has no halves and no variants.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    figure: String,
    asked: Vec<Wanted>,
}

/// Either `most` or `least` is asked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    metric: String,
    /// Only of cases with one of these in their name; of all by default.
    #[serde(default)]
    of: Vec<String>,
    most: Option<f64>,
    least: Option<f64>,
}

/// The numbers of which something is asked, and the others.
pub struct Numbers {
    pub asked: Vec<Entry>,
    pub others: Vec<Entry>,
    /// What was cut.
    pub cut: Option<String>,
}

impl Experiment {
    /// # Errors
    /// The folder or a file of traces is missing, or a file is damaged.
    pub fn run(&self, extent: &Extent) -> Result<Numbers> {
        let (rows, cut) = paper::rows(&self.figure, extent)?;
        let cut = cut.map(|cut| format!("{}: {cut}", self.name));
        let (asked, others): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| self.asked.iter().any(|wanted| wanted.metric == row.metric));
        let entries = |rows: Vec<&Row>| rows.into_iter().map(|row| self.entry(row)).collect::<Vec<Entry>>();
        let judged = |row: &&Row| apart(&row.case).1 == JUDGED;
        let missing = self.asked.iter().filter(|wanted| !rows.iter().filter(judged).any(|row| wanted.concerns(row)));
        let missing = missing.map(|wanted| {
            let of = (self.name.clone(), Variant::Plain, JUDGED.to_owned());
            Entry::new(of, wanted.metric.clone(), (None, None), wanted.asked())
        });
        Ok(Numbers { asked: entries(asked).into_iter().chain(missing).collect(), others: entries(others), cut })
    }

    fn entry(&self, row: &Row) -> Entry {
        let (workload, scheduler) = apart(&row.case);
        let asked =
            self.asked.iter().find(|wanted| scheduler == JUDGED && wanted.concerns(row)).and_then(Wanted::asked);
        let of = (format!("{}, {workload}", self.name), Variant::Plain, scheduler.to_owned());
        Entry::new(of, row.metric.clone(), (Some(row.ours), None), asked)
    }
}

impl Wanted {
    fn concerns(&self, row: &Row) -> bool {
        let is_of = |part: &String| row.case.split(", ").any(|one| one == part);
        self.metric == row.metric && (self.of.is_empty() || self.of.iter().any(is_of))
    }

    fn asked(&self) -> Option<Asked> {
        self.most.map(Asked::Most).or(self.least.map(Asked::Least))
    }
}

/// The workload and the scheduler in the name of a case, which is the last part if no part is a preset.
fn apart(case: &str) -> (String, &str) {
    let parts: Vec<&str> = case.split(", ").collect();
    let is_preset = |part: &&str| baselines::parse(part).is_ok();
    let at = parts.iter().position(is_preset).unwrap_or(parts.len() - 1);
    let workload = parts.iter().enumerate().filter(|(number, _)| *number != at).map(|(_, part)| *part);
    (workload.collect::<Vec<_>>().join(", "), parts[at])
}

#[cfg(test)]
mod tests {
    use super::super::board::Board;
    use super::*;

    #[test]
    fn the_scheduler_of_a_case_is_the_preset_in_its_name() {
        assert_eq!(apart("amalgam, load 0.8"), ("load 0.8".to_owned(), "amalgam"));
        assert_eq!(apart("1.2 s, only-G"), ("1.2 s".to_owned(), "only-G"));
        assert_eq!(apart("NYH, sparrow"), ("NYH".to_owned(), "sparrow"));
    }

    #[test]
    fn something_is_asked_of_the_default_preset_and_of_no_other() {
        let row = |case: &str, ours| Row::of(case, "share", None, &[ours]);
        let wanted = |most, least| Wanted { metric: "share".to_owned(), of: vec!["load 0.8".to_owned()], most, least };
        let of = |wanted| Experiment { name: "one".to_owned(), figure: String::new(), asked: vec![wanted] };
        let met = |wanted, row| of(wanted).entry(&row).met;
        assert_eq!(met(wanted(Some(1.0), None), row("amalgam, load 0.8", 1.5)), Some(false));
        assert_eq!(met(wanted(None, Some(1.0)), row("amalgam, load 0.8", 1.5)), Some(true));
        assert_eq!(met(wanted(Some(1.0), None), row("amalgam, load 0.6", 1.5)), None);
        assert_eq!(met(wanted(Some(1.0), None), row("drf, load 0.8", 1.5)), None);
        for experiment in &Board::load().experiments {
            assert!(paper::is_known(&experiment.figure), "{}", experiment.name);
            assert!(experiment.asked.iter().all(|wanted| wanted.most.is_some() != wanted.least.is_some()));
        }
    }
}
