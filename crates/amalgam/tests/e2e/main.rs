//! The program as its users meet it: real processes, through the built binary, each test in a directory of its own.

mod access;
mod allocation;
mod beside;
mod conformance;
mod crashes;
mod examples;
mod federations;
mod files;
mod gangs;
mod guarantees;
mod hollow;
mod job_hosts;
mod jobs;
mod kill_loop;
mod misbehaviour;
mod namespaces;
mod running;
mod scheduling;
mod simulation;
mod standby;
mod store;
mod stragglers;
mod support;
mod surroundings;
mod workloads;
mod yielding;
