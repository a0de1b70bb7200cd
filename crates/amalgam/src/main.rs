//! The one program: a command line over the daemons.

mod arguments;
mod client;
mod cluster;
mod discovery;
mod embedded;
mod failure;
mod following;
mod job_arguments;
mod progress;
mod selectors;
mod show;
mod verbs;

use arguments::{Arguments, Verb};
use clap::Parser;
use failure::Result;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.verb.is_client() {
        die_of_broken_pipes();
    }
    match execute(arguments) {
        Ok(code) => code,
        Err(failure) => {
            show::note(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

fn execute(Arguments { connection, verb }: Arguments) -> Result<ExitCode> {
    match verb {
        Verb::Run(args) => verbs::run::execute(args, &connection),
        Verb::Submit(args) => verbs::submit::execute(args, &connection),
        Verb::List(args) => verbs::list::execute(args, &connection),
        Verb::History(args) => verbs::list::execute_history(args, &connection),
        Verb::Info(args) => verbs::info::execute(args, &connection),
        Verb::Logs(args) => verbs::logs::execute(args, &connection),
        Verb::Story(args) => verbs::story::execute(args, &connection),
        Verb::Wait(args) => verbs::wait::execute(args, &connection),
        Verb::Cancel(args) => verbs::act::cancel(args, &connection),
        Verb::Hold(args) => verbs::act::hold(args, &connection),
        Verb::Release(args) => verbs::act::release(args, &connection),
        Verb::RerunFailed(args) => verbs::act::rerun_failed(args, &connection),
        Verb::Top(args) => verbs::top::execute(args, &connection),
        Verb::Node(args) => verbs::node::execute(args, &connection),
        Verb::Queue(args) => verbs::queue::execute(args, &connection),
        Verb::Token(args) => verbs::token::execute(args, &connection),
        Verb::Config(args) => verbs::config::execute(args),
        Verb::Workload(args) => verbs::workload::execute(args),
        Verb::Sim(args) => verbs::sim::execute(args),
        Verb::Completions(args) => verbs::shell::completions(args),
        Verb::Man(args) => verbs::shell::man(args),
        Verb::Dev(args) => verbs::dev::execute(args, &connection),
        Verb::Server(args) => verbs::server::execute(args, &connection),
        Verb::Agent(args) => verbs::agent::execute(args, &connection),
        Verb::Executor(args) => verbs::executor::execute(args),
        Verb::Bench(args) => verbs::bench::execute(args),
    }
}

/// `amalgam list | head` must end like any other filter. Rust's runtime ignores the signal unless told otherwise.
fn die_of_broken_pipes() {
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}
