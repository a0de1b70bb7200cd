//! Draws constraints for the tasks of traces that have none, from two tables: the share of the tasks of each task
//! cluster that have each constraint, and the share of the tasks of each type that belong to each cluster. Megha draws
//! them in this way, after Sharma et al. (SoCC 2011).
//!
//! Departs: all tasks of a stage get the same constraints. All types are equally likely, because traces do not state
//! the types of jobs.

use super::error::WorkloadError;
use super::formats::fields;
use super::input;
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::{Constraint, Operator};
use std::path::Path;

/// The two tables, and the share of the stages that get constraints.
pub(crate) struct ConstraintTables {
    /// For each cluster, the probability of each constraint.
    of_cluster: Vec<Vec<f64>>,
    /// For each type, the share of each cluster.
    of_type: Vec<Vec<f64>>,
    constrained: f64,
}

impl ConstraintTables {
    /// Reads `task_constraint_percent.csv` and `task_cluster_occurrence.csv` of a folder.
    ///
    /// # Errors
    /// A table is missing, or the tables do not have the same clusters.
    pub fn read(directory: &Path, constrained: f64) -> Result<ConstraintTables, WorkloadError> {
        if !directory.is_dir() {
            let remedy = "name a folder with task_constraint_percent.csv and task_cluster_occurrence.csv";
            return Err(WorkloadError::new(format!("folder `{}` not found", directory.display()), remedy));
        }
        let of_cluster: Vec<Vec<f64>> = table(&directory.join("task_constraint_percent.csv"))?
            .into_iter()
            .map(|row| row.into_iter().map(|percent| percent / 100.0).collect())
            .collect();
        let occurrence_file = directory.join("task_cluster_occurrence.csv");
        let occurrences = table(&occurrence_file)?;
        if occurrences.len() != of_cluster.len() || occurrences.is_empty() {
            return Err(WorkloadError::in_file(&occurrence_file, "the tables do not have the same task clusters"));
        }
        let types = 0..occurrences[0].len();
        let of_type = types.map(|kind| occurrences.iter().map(|row| row[kind]).collect()).collect();
        Ok(ConstraintTables { of_cluster, of_type, constrained })
    }

    /// Draws the constraints of one stage.
    pub fn draw(&self, chance: &mut Chance) -> Vec<Constraint> {
        if chance.unit() >= self.constrained {
            return Vec::new();
        }
        let shares = &self.of_type[chance.below(self.of_type.len() as u64) as usize];
        let probabilities = &self.of_cluster[weighted(shares, chance)];
        let drawn = (1..).zip(probabilities).filter(|(_, probability)| chance.unit() < **probability);
        drawn
            .map(|(number, _)| Constraint {
                attribute: format!("c{number}"),
                operator: Operator::Equal,
                value: "1".to_owned(),
            })
            .collect()
    }
}

/// Draws an index with a probability in proportion to its weight.
fn weighted(weights: &[f64], chance: &mut Chance) -> usize {
    let mut left = chance.unit() * weights.iter().sum::<f64>();
    for (index, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return index;
        }
    }
    weights.len() - 1
}

/// Reads the numbers of a table. The first line has headings and the first column names. All rows have the same length.
fn table(file: &Path) -> Result<Vec<Vec<f64>>, WorkloadError> {
    let text = input::text(file)?;
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()).skip(1).filter(|(_, line)| !line.is_empty()) {
        let wrong = |problem: String| WorkloadError::in_file(file, format!("line {number}: {problem}"));
        let cells = line.split(',').skip(1).map(|cell| fields::amount(cell.trim(), "the share"));
        let row: Vec<f64> = cells.collect::<Result<_, _>>().map_err(wrong)?;
        if row.is_empty() || rows.first().is_some_and(|first| first.len() != row.len()) {
            return Err(wrong(format!("the row has {} shares", row.len())));
        }
        rows.push(row);
    }
    Ok(rows)
}
