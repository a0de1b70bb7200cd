//! Readers and generators of workloads, against small samples with known answers and, where they are present, against
//! public traces.

mod dags;
mod damage;
mod flat;
mod logs;
mod nodes;
mod options;
mod shapes;
mod support;
mod synthetic;
mod tables;
mod workflows;
