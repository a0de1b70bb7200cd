//! `hive-explain`: the plans that Hive on Tez prints for queries, for instance for TPC-DS. A plan has vertices, edges
//! and the optimizer's estimates of bytes, but no tasks and no run times. These are computed from the bytes, see
//! `bytes.rs`.
//!
//! A map vertex reads the estimated bytes of its table scans. The output of a vertex is the sum of its output
//! operators, and is divided equally among the vertices that read it. Members of a union are inputs of the vertices
//! that read the union. A broadcast is counted once, not once for each task. Estimates are limited to `most-bytes`, by
//! default the size of the database: for a chain of joins, the optimizer's estimate can be a thousand times larger.

use super::TraceFormat;
use super::bytes::{MOST_TASKS, MOST_WRITTEN, OVERHEAD, RATE, REDUCE_INPUT, Rates, SPLIT};
use crate::quantities::parse_size;
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::options::{Key, scale};
use crate::trace::reading::{Draft, DraftStage, Reading};
use std::collections::BTreeMap;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "hive-explain", about: "plans of Hive on Tez, such as TPC-DS (.q.out)", keys: &KEYS, read };

const KEYS: [Key; 8] = [
    SPLIT,
    REDUCE_INPUT,
    RATE,
    OVERHEAD,
    MOST_WRITTEN,
    MOST_TASKS,
    Key { name: "data-scale", default: "1", meaning: "multiply all bytes, for a smaller database" },
    Key { name: "most-bytes", default: "30TB", meaning: "maximum of one estimate; larger ones are cut to it" },
];

#[derive(Default)]
struct Plan {
    /// In the order of the plan.
    vertices: Vec<Vertex>,
    /// For each vertex and each union, the vertices and unions from which it reads.
    reads_from: BTreeMap<String, Vec<String>>,
    capped: u64,
}

#[derive(Default)]
struct Vertex {
    name: String,
    scanned: f64,
    written: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Other,
    Edges,
    Vertices,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    reading.repeats();
    let rates = Rates::of(reading.options)?;
    let data_scale = reading.options.own("data-scale", scale)?;
    let most_bytes = reading.options.own("most-bytes", parse_size)? as f64;
    let mut capped = 0;
    for file in reading.files(&[".q.out", ".explain"])? {
        if reading.is_full() {
            break;
        }
        let mut parser = Parser { plan: Plan::default(), part: Section::Other, operator: String::new(), most_bytes };
        reading.lines(&file, |_, line| {
            parser.line(line);
            Ok(())
        })?;
        let plan = parser.plan;
        capped += plan.capped;
        let name = input::plain_name(&file).trim_end_matches(".q.out").to_owned();
        let stages = plan.stages(&rates, data_scale);
        let added = stages.and_then(|stages| reading.add(Draft { name, stages, ..Draft::default() }));
        if let Err(problem) = added {
            reading.malformed(&file, 1, problem);
        }
    }
    if capped > 0 {
        reading.note(format!("{capped} estimates above {} were cut to it", reading.options.own_text("most-bytes")));
    }
    reading.note(
        "plans have estimated bytes only: tasks follow from `split` and `reduce-input`, run times from `overhead` and \
         `rate`",
    );
    Ok(())
}

struct Parser {
    plan: Plan,
    part: Section,
    /// The operator to which the next statistics belong.
    operator: String,
    most_bytes: f64,
}

impl Parser {
    fn line(&mut self, line: &str) {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        match text {
            "Edges:" => self.part = Section::Edges,
            "Vertices:" => self.part = Section::Vertices,
            _ if indent <= 4 && !text.is_empty() && !text.starts_with('#') => self.part = Section::Other,
            _ => match self.part {
                Section::Other => {}
                Section::Edges => self.edge(text),
                Section::Vertices if indent == 8 => self.vertex(text),
                Section::Vertices => self.operator(text),
            },
        }
    }

    /// Parses `Reducer 2 <- Map 1 (SIMPLE_EDGE), Union 3 (CONTAINS)`. A union contains the vertex on the left.
    fn edge(&mut self, text: &str) {
        let Some((reader, sources)) = text.split_once(" <- ") else { return };
        for source in sources.split(", ") {
            let (name, kind) = source.split_once(" (").unwrap_or((source, ""));
            let (reader, source) = if kind.starts_with("CONTAINS") { (name, reader) } else { (reader, name) };
            self.plan.reads_from.entry(reader.to_owned()).or_default().push(source.to_owned());
        }
    }

    fn vertex(&mut self, text: &str) {
        if text.starts_with("Map ") || text.starts_with("Reducer ") {
            self.plan.vertices.push(Vertex { name: text.to_owned(), ..Vertex::default() });
        }
    }

    fn operator(&mut self, text: &str) {
        let Some(statistics) = text.strip_prefix("Statistics: ") else {
            if text == "TableScan" || text.ends_with("Operator") {
                text.clone_into(&mut self.operator);
            }
            return;
        };
        let size = statistics.split("Data size: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        let (Some(vertex), Some(bytes)) = (self.plan.vertices.last_mut(), size) else { return };
        let counted = bytes.min(self.most_bytes);
        match self.operator.as_str() {
            "TableScan" => vertex.scanned += counted,
            "Reduce Output Operator" | "File Output Operator" => vertex.written += counted,
            _ => return,
        }
        self.plan.capped += u64::from(counted < bytes);
    }
}

impl Plan {
    fn stages(&self, rates: &Rates, data_scale: f64) -> Result<Vec<DraftStage>, String> {
        if self.vertices.is_empty() {
            return Err("the file has no vertices: it is not the full plan of a query on Tez".to_owned());
        }
        let index_of: BTreeMap<&str, usize> =
            self.vertices.iter().enumerate().map(|(index, vertex)| (vertex.name.as_str(), index)).collect();
        let befores: Vec<Vec<usize>> =
            self.vertices.iter().map(|vertex| self.inputs(&vertex.name, &index_of)).collect::<Result<_, _>>()?;
        let mut readers = vec![0u32; self.vertices.len()];
        for before in befores.iter().flatten() {
            readers[*before] += 1;
        }
        let share = |before: &usize| self.vertices[*before].written / f64::from(readers[*before].max(1));
        let stages = self.vertices.iter().zip(&befores).map(|(vertex, befores)| {
            let received: f64 = befores.iter().map(share).sum();
            let (read, written) = ((vertex.scanned + received) * data_scale, vertex.written * data_scale);
            let stage = if vertex.name.starts_with("Map ") {
                rates.map(&vertex.name, read, written)
            } else {
                rates.reduce(&vertex.name, read, written)
            };
            stage.after(befores.clone())
        });
        Ok(stages.collect())
    }

    /// The vertices from which a vertex reads. Unions are replaced by their members.
    fn inputs(&self, reader: &str, index_of: &BTreeMap<&str, usize>) -> Result<Vec<usize>, String> {
        let mut found = Vec::new();
        for source in self.reads_from.get(reader).into_iter().flatten() {
            match index_of.get(source.as_str()) {
                Some(index) => found.push(*index),
                // Unions contain no unions, so the recursion ends.
                None if source.starts_with("Union ") && !reader.starts_with("Union ") => {
                    found.extend(self.inputs(source, index_of)?);
                }
                None => return Err(format!("{reader} reads from {source}, which the plan does not have")),
            }
        }
        Ok(found)
    }
}
