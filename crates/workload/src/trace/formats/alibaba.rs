//! `alibaba2017` and `alibaba2018`: the table `batch_task` of Alibaba's cluster traces. All rows with the same job name
//! or id are the stages of a job, in any order in the file.
//!
//! An instance is assumed to run as long as its task, from the task's start (in 2017: its creation) to its end. This is
//! an upper bound, because the instances of a task need not start together. CPU is in hundredths of a core. Memory is a
//! fraction of a machine's memory, whose size Alibaba does not publish: see the option `machine-memory`.

use super::{TraceFormat, fields};
use crate::quantities::parse_memory_mib;
use crate::trace::RunTimes;
use crate::trace::demand::resources;
use crate::trace::error::WorkloadError;
use crate::trace::options::{Key, flag};
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::ResourceSpec;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const FORMAT_2017: TraceFormat = TraceFormat {
    name: "alibaba2017",
    about: "batch_task of Alibaba's trace of 2017 (.csv)",
    keys: &KEYS_2017,
    read: read_2017,
};

pub(super) const FORMAT_2018: TraceFormat = TraceFormat {
    name: "alibaba2018",
    about: "batch_task of Alibaba's trace of 2018, with DAGs (.csv)",
    keys: &KEYS_2018,
    read: read_2018,
};

const KEYS_2017: [Key; 1] =
    [Key { name: "machine-memory", default: "256GiB", meaning: "assumed memory of one machine; 64 cores at 4 GiB" }];

const KEYS_2018: [Key; 2] = [
    Key { name: "machine-memory", default: "384GiB", meaning: "assumed memory of one machine; 96 cores at 4 GiB" },
    Key { name: "complete", default: "false", meaning: "keep only jobs whose dependencies are all in the file" },
];

/// The columns of a row that the tables of both years have.
struct Row<'a> {
    job: &'a str,
    task: &'a str,
    instances: &'a str,
    status: &'a str,
    start: &'a str,
    end: &'a str,
    cpu: &'a str,
    memory: &'a str,
    /// The memory of one machine in the table's normalised unit.
    memory_of_machine: f64,
}

#[derive(Default)]
struct Table {
    /// In the order of their first rows in the file.
    jobs: Vec<Draft>,
    by_name: BTreeMap<String, usize>,
    /// Number of rows that were left out, by status.
    unfinished: BTreeMap<String, u64>,
}

fn read_2017(reading: &mut Reading) -> Result<(), WorkloadError> {
    read_table(reading, "create_time", |line| {
        let [start, end, job, task, instances, status, cpu, memory] = fields::columns(line)?;
        Ok(Row { job, task, instances, status, start, end, cpu, memory, memory_of_machine: 1.0 })
    })?
    .finish(reading, false);
    Ok(())
}

fn read_2018(reading: &mut Reading) -> Result<(), WorkloadError> {
    let complete = reading.options.own("complete", flag)?;
    let table = read_table(reading, "task_name", |line| {
        let [task, instances, job, _type, status, start, end, cpu, memory] = fields::columns(line)?;
        Ok(Row { job, task, instances, status, start, end, cpu, memory, memory_of_machine: 100.0 })
    })?;
    table.connected(reading, complete).finish(reading, true);
    Ok(())
}

/// Reads all rows. A first line that contains `heading` is skipped.
fn read_table(
    reading: &mut Reading,
    heading: &str,
    parse: impl Fn(&str) -> Result<Row, String>,
) -> Result<Table, WorkloadError> {
    let machine_mib = f64::from(reading.options.own("machine-memory", parse_memory_mib)?);
    let mut table = Table::default();
    for file in reading.files(&[".csv"])? {
        let mut is_first = true;
        reading.lines(&file, |_, line| {
            let is_heading = std::mem::take(&mut is_first) && line.contains(heading);
            if is_heading { Ok(()) } else { table.add(&parse(line)?, machine_mib) }
        })?;
    }
    Ok(table)
}

impl Table {
    fn add(&mut self, row: &Row, machine_mib: f64) -> Result<(), String> {
        if row.status != "Terminated" {
            *self.unfinished.entry(row.status.to_owned()).or_default() += 1;
            return Ok(());
        }
        let start = fields::seconds(row.start, "the start")?;
        let run_time = fields::between(start, fields::seconds(row.end, "the end")?)?;
        let mut stage = DraftStage::new(row.task, fields::tasks(row.instances)?, RunTimes::Same(run_time));
        stage.demand = demand(row, machine_mib)?;
        let next = self.jobs.len();
        let index = *self.by_name.entry(row.job.to_owned()).or_insert(next);
        if index == next {
            self.jobs.push(Draft { name: row.job.to_owned(), arrival: Some(start), ..Draft::default() });
        }
        let job = &mut self.jobs[index];
        job.arrival = job.arrival.min(Some(start));
        job.stages.push(stage);
        Ok(())
    }

    /// Reads the dependencies from the names of the tasks: `R3_1_2` is task 3, after tasks 1 and 2.
    fn connected(mut self, reading: &mut Reading, complete: bool) -> Table {
        let before = self.jobs.len();
        let mut incomplete = 0;
        self.jobs.retain_mut(|job| {
            let is_complete = connect(job);
            incomplete += usize::from(!is_complete);
            is_complete || !complete
        });
        if incomplete > 0 {
            let consequence = if complete { "they were left out" } else { "those dependencies were left out" };
            reading.note(format!(
                "{incomplete} of {before} jobs depend on tasks that the file does not have: {consequence}"
            ));
        }
        self
    }

    fn finish(self, reading: &mut Reading, has_dags: bool) {
        let path = Path::new(reading.path);
        for (number, job) in (1..).zip(self.jobs) {
            if reading.is_full() {
                break;
            }
            let name = job.name.clone();
            if let Err(problem) = reading.add(job) {
                reading.malformed(path, number, format!("job {name}: {problem}"));
            }
        }
        for (status, count) in self.unfinished {
            reading.note(format!("{count} rows of tasks that are {status} were left out: they have no run time"));
        }
        reading.note("an instance runs as long as its task, an upper bound: the table does not list instances");
        if !has_dags {
            reading.note("the trace has no dependencies: the stages of a job may run at the same time");
        }
    }
}

fn demand(row: &Row, machine_mib: f64) -> Result<Option<ResourceSpec>, String> {
    if row.cpu.is_empty() || row.memory.is_empty() {
        return Ok(None);
    }
    let cores = fields::amount(row.cpu, "the CPU")? / 100.0;
    let share = fields::amount(row.memory, "the memory")? / row.memory_of_machine;
    if share > 1.0 {
        return Err(format!("the memory `{}` is more than one machine's", row.memory));
    }
    Ok(Some(resources(cores, share * machine_mib)))
}

/// Sets the dependencies of a job's stages. Returns false if a stage depends on a task that the job does not have.
fn connect(job: &mut Draft) -> bool {
    let numbers = |name: &str| -> Option<(u64, Vec<u64>)> {
        let mut parts = name.trim_start_matches(|c: char| c.is_ascii_alphabetic()).split('_');
        let own = parts.next()?.parse().ok()?;
        // Parts such as `Stg8` are not dependencies.
        Some((own, parts.filter_map(|part| part.parse().ok()).collect()))
    };
    let parsed: Vec<Option<(u64, Vec<u64>)>> = job.stages.iter().map(|stage| numbers(&stage.name)).collect();
    let index_of: BTreeMap<u64, usize> =
        parsed.iter().enumerate().filter_map(|(index, parsed)| Some((parsed.as_ref()?.0, index))).collect();
    let mut is_complete = true;
    for (stage, parsed) in job.stages.iter_mut().zip(&parsed) {
        let Some((_, befores)) = parsed else { continue };
        let found = befores.iter().filter_map(|before| index_of.get(before).copied());
        stage.after = found.collect();
        is_complete &= stage.after.len() == befores.len();
    }
    is_complete
}
