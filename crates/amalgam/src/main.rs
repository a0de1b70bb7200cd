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

use amalgam_daemon::inherited;
use arguments::{Arguments, Verb};
use clap::Parser;
use clap::error::ContextKind;
use failure::{Failure, Result};
use std::error::Error;
use std::num::{ParseFloatError, ParseIntError};
use std::process::{self, ExitCode};

fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| refuse(&error));
    if arguments.verb.is_client() {
        die_of_broken_pipes();
    } else {
        inherited::let_go(std::env::args_os());
    }
    outlive_full_files();
    match execute(arguments) {
        Ok(code) => code,
        Err(failure) => {
            show::note(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

/// Ends with what is wrong with the command line. Of numbers the standard library says what a programmer would know.
fn refuse(error: &clap::Error) -> ! {
    let source = error.source();
    let allowed = match source.map(|source| (source.is::<ParseIntError>(), source.is::<ParseFloatError>())) {
        Some((true, _)) => "write a whole number, such as 10",
        Some((_, true)) => "write a number, such as 0.5",
        _ => error.exit(),
    };
    let said = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, argument) = (said(ContextKind::InvalidValue), said(ContextKind::InvalidArg));
    let failure = Failure::usage(format!("`{value}` is not possible for {argument}"), allowed);
    show::note(&failure.to_string());
    process::exit(failure.code.into())
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
        Verb::Usage(args) => verbs::usage::execute(args, &connection),
        Verb::Token(args) => verbs::token::execute(args, &connection),
        Verb::Config(args) => verbs::config::execute(args),
        Verb::Workload(args) => verbs::workload::execute(args),
        Verb::Sim(args) => verbs::sim::execute(args),
        Verb::Paper(args) => verbs::paper::execute(&args).map(|()| ExitCode::SUCCESS),
        Verb::Completions(args) => verbs::shell::completions(args),
        Verb::Man(args) => verbs::shell::man(args),
        Verb::Dev(args) => verbs::dev::execute(args, &connection),
        Verb::Server(args) => verbs::server::execute(args, &connection),
        Verb::Agent(args) => verbs::agent::execute(args, &connection),
        Verb::Global(args) => verbs::global::execute(args, &connection),
        Verb::Jobs(args) => verbs::jobs::execute(args, &connection),
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

/// A write past the limit for files fails, with an error that names the file, rather than end the process without a word.
/// The executor gives tasks the default back.
fn outlive_full_files() {
    // SAFETY: no other thread runs yet, and to ignore needs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
