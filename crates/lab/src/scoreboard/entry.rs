//! One number of a scoreboard, and what is asked of it.

use super::board::Variant;
use serde::Serialize;

/// The stable output format.
#[derive(Serialize, PartialEq, Debug)]
pub struct Entry {
    workload: String,
    variant: Variant,
    preset: String,
    pub metric: String,
    /// `None` if no job succeeded.
    pub value: Option<f64>,
    /// The value divided by the best one of the row, for times.
    of_best: Option<f64>,
    /// Of `of_best` for times, otherwise of the value: the most, or the least of what should be large.
    asked: Option<f64>,
    pub met: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
pub enum Asked {
    Most(f64),
    Least(f64),
}

impl Entry {
    /// `of`: the workload, its variant and the preset. `values`: the value, and for times the value divided by the best one of the row.
    pub fn new(
        of: (String, Variant, String),
        metric: String,
        values: (Option<f64>, Option<f64>),
        asked: Option<Asked>,
    ) -> Entry {
        let ((workload, variant, preset), (value, of_best)) = (of, values);
        let compared = of_best.or(value);
        let met = asked.map(|asked| compared.is_some_and(|found| asked.is_met_by(found)));
        let asked = asked.map(|(Asked::Most(limit) | Asked::Least(limit))| limit);
        Entry { workload, variant, preset, metric, value, of_best, asked, met }
    }

    /// What was asked and missed, as a sentence; `None` if it was met.
    pub fn miss(&self) -> Option<String> {
        let asked = self.asked.filter(|_| self.met == Some(false))?;
        let found = self.of_best.or(self.value).map_or_else(|| "nothing".to_owned(), |found| format!("{found:.2}"));
        Some(format!("{}, {}: {found}, asked {asked}", self.workload, self.metric))
    }

    /// Workload, preset, metric, value and what is asked, as text for people.
    pub fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let asked = self.asked.map_or_else(|| "-".to_owned(), |asked| asked.to_string());
        vec![self.workload.clone(), self.preset.clone(), self.metric.clone(), number(self.value), asked]
    }
}

impl Asked {
    fn is_met_by(self, found: f64) -> bool {
        match self {
            Asked::Most(limit) => found <= limit,
            Asked::Least(limit) => found >= limit,
        }
    }
}
