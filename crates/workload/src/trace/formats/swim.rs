//! `swim`: jobs of Hadoop at Facebook, `job submit_s gap_s map_input_bytes shuffle_bytes reduce_output_bytes`. Tasks
//! and run times are computed from the bytes, see `bytes.rs`. A job without shuffle has only maps, which write its
//! output.

use super::bytes::{MOST_TASKS, MOST_WRITTEN, OVERHEAD, RATE, REDUCE_INPUT, Rates, SPLIT};
use super::{TraceFormat, fields};
use crate::trace::error::WorkloadError;
use crate::trace::options::Key;
use crate::trace::reading::{Draft, Reading};

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "swim", about: "SWIM's samples of Hadoop at Facebook (.tsv)", keys: &KEYS, read };

const KEYS: [Key; 6] = [SPLIT, REDUCE_INPUT, RATE, OVERHEAD, MOST_WRITTEN, MOST_TASKS];

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let rates = Rates::of(reading.options)?;
    for file in reading.files(&[".tsv"])? {
        reading.lines(&file, |reading, line| reading.add(job(line, &rates)?))?;
    }
    reading.note(
        "the trace states bytes only: tasks follow from `split` and `reduce-input`, run times from `overhead` and \
         `rate`",
    );
    Ok(())
}

fn job(line: &str, rates: &Rates) -> Result<Draft, String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, submit, _gap, read, shuffled, written] = words[..] else {
        return Err(format!("the line has {} columns, not 6", words.len()));
    };
    let arrival = fields::seconds(submit, "the submit time")?;
    let read = fields::amount(read, "the map input")?;
    let shuffled = fields::amount(shuffled, "the shuffled data")?;
    let written = fields::amount(written, "the reduce output")?;
    let stages = if shuffled == 0.0 {
        vec![rates.map("map", read, written)]
    } else {
        vec![rates.map("map", read, shuffled), rates.reduce("reduce", shuffled, written).after([0])]
    };
    Ok(Draft { name: name.to_owned(), arrival: Some(arrival), stages, ..Draft::default() })
}
