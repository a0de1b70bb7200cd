//! The `amalgam` program: the command line of all daemons and clients.

mod arguments;
mod cluster;
mod connection;
mod contexts;
mod discovery;
mod embedded;
mod following;
mod input;
mod interrupts;
mod job_arguments;
mod joining;
mod output_archive;
mod output_files;
mod progress;
mod selectors;
mod show;
mod task_targets;
mod verbs;

use amalgam_cli::process::{die_of_broken_pipes, outlive_full_files};
use amalgam_cli::{client, environment, failure, output, refusal};
use amalgam_daemon::{inherited, service_manager};
use arguments::{Arguments, Verb};
use clap::{CommandFactory, Parser};
use failure::{Failure, Result};
use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    environment::drop_empty();
    let written: Vec<OsString> = env::args_os().collect();
    let arguments = Arguments::try_parse_from(&written)
        .unwrap_or_else(|error| refusal::refuse(error, Arguments::command(), &written));
    if arguments.verb.is_client() {
        die_of_broken_pipes();
    } else {
        inherited::let_go(std::env::args_os());
        service_manager::meet();
    }
    outlive_full_files();
    let is_daemon = arguments.verb.is_daemon();
    let code = execute(arguments).unwrap_or_else(|failure| {
        show::note(&failure.to_string());
        ExitCode::from(failure.code)
    });
    // A note that could not be written was lost.
    if code == ExitCode::SUCCESS && !is_daemon && output::has_lost_notes() { ExitCode::FAILURE } else { code }
}

fn execute(Arguments { connection, verb }: Arguments) -> Result<ExitCode> {
    environment::check()?;
    if verb.is_daemon() && connection.context.is_some() {
        let what = "--context is for clients, and this starts a daemon";
        return Err(Failure::usage(what, "leave --context out"));
    }
    match verb {
        Verb::Run(args) => verbs::run::execute(args, &connection),
        Verb::Submit(args) => verbs::submit::execute(args, &connection),
        Verb::List(args) => verbs::list::execute(args, &connection),
        Verb::History(args) => verbs::list::execute_history(args, &connection),
        Verb::Info(args) => verbs::info::execute(args, &connection),
        Verb::Outputs(args) => verbs::outputs::execute(args, &connection),
        Verb::Cp(args) => verbs::cp::execute(args, &connection),
        Verb::Logs(args) => verbs::logs::execute(args, &connection),
        Verb::Story(args) => verbs::story::execute(args, &connection),
        Verb::Wait(args) => verbs::wait::execute(args, &connection),
        Verb::Cancel(args) => verbs::act::cancel(args, &connection),
        Verb::Hold(args) => verbs::act::hold(args, &connection),
        Verb::Release(args) => verbs::act::release(args, &connection),
        Verb::Update(args) => verbs::update::execute(args, &connection),
        Verb::RerunFailed(args) => verbs::act::rerun_failed(args, &connection),
        Verb::Top(args) => verbs::top::execute(args, &connection),
        Verb::Node(args) => verbs::node::execute(args, &connection),
        Verb::Queue(args) => verbs::queue::execute(args, &connection),
        Verb::Usage(args) => verbs::usage::execute(args, &connection),
        Verb::Report(args) => verbs::report::execute(&args, &connection),
        Verb::Reload(args) => verbs::reload::execute(&args, &connection),
        Verb::Token(args) => verbs::token::execute(args, &connection),
        Verb::Ca(args) => verbs::ca::execute(args, &connection),
        Verb::Login(args) => verbs::login::execute(args, &connection),
        Verb::Logout(args) => verbs::login::logout(args, &connection),
        Verb::Context(args) => verbs::context::execute(args, &connection),
        Verb::Backup(args) => verbs::backup::execute(args, &connection),
        Verb::Restore(args) => verbs::backup::restore(args, &connection),
        Verb::Du(args) => verbs::du::execute(args, &connection),
        Verb::Doctor(args) => verbs::doctor::execute(args, &connection),
        Verb::Config(args) => verbs::config::execute(args),
        Verb::Workload(args) => verbs::workload::execute(args),
        Verb::Sim(args) => verbs::sim::execute(args),
        Verb::Completions(args) => verbs::shell::completions(args, Arguments::command()),
        Verb::Man(args) => verbs::shell::man(args, Arguments::command()),
        Verb::Dev(args) => verbs::dev::execute(args, &connection),
        Verb::Server(args) => verbs::server::execute(args, &connection),
        Verb::Agent(args) => verbs::agent::execute(args, &connection),
        Verb::Global(args) => verbs::global::execute(args, &connection),
        Verb::Jobs(args) => verbs::jobs::execute(args, &connection),
        Verb::Executor(args) => verbs::executor::execute(args),
    }
}
