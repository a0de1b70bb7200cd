//! Readers and generators of workloads, checked with small samples and, if they are present, with public traces.

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
