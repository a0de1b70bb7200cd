//! The whole command line: the flags of every verb, and the verbs.

use crate::connection::Connection;
use crate::verbs;
use clap::{Parser, Subcommand};

/// A cluster scheduler in one program.
#[derive(Parser)]
#[command(name = "amalgam", version, propagate_version = true, disable_help_subcommand = true)]
#[command(after_help = "Examples:
  amalgam run -- make -j4                   run a command and exit with its code
  amalgam run examples/wordcount.toml       run a job file and show its progress
  amalgam submit --array 0-99 -- ./step     submit 100 tasks and return at once
  amalgam list; amalgam logs -f last        see how they are doing")]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Run a job, show its output, exit with its code
    Run(verbs::run::RunArgs),
    /// Submit a job and return at once
    Submit(verbs::submit::SubmitArgs),
    /// List jobs
    List(verbs::list::ListArgs),
    /// Show a job, its stages and what it waits for
    Info(verbs::info::InfoArgs),
    /// Print what tasks wrote
    Logs(verbs::logs::LogsArgs),
    /// Fetch the files that tasks declare as outputs
    Outputs(verbs::outputs::OutputsArgs),
    /// Copy files that tasks declare as outputs to this machine, by name
    Cp(verbs::cp::CpArgs),
    /// Wait until jobs have ended
    Wait(verbs::wait::WaitArgs),
    /// Cancel jobs
    Cancel(verbs::act::CancelArgs),
    /// Keep jobs from starting tasks; running tasks continue
    Hold(verbs::act::ActArgs),
    /// Let held jobs start
    Release(verbs::act::ActArgs),
    /// Run the failed and cancelled tasks of jobs again
    RerunFailed(verbs::act::ActArgs),
    /// Change the priority, the timeout or the queue of jobs that have not ended
    Update(verbs::update::UpdateArgs),
    /// Watch the cluster
    Top(verbs::top::TopArgs),
    /// Print the story of a job or a task
    Story(verbs::story::StoryArgs),
    /// List, show, drain, label and remove nodes
    Node(verbs::node::NodeArgs),
    /// List queues, and change their limits
    Queue(verbs::queue::QueueArgs),
    /// Show what queues and jobs use, donated and received
    Usage(verbs::usage::UsageArgs),
    /// Show what users and queues asked for, used and lost, by day
    Report(verbs::report::ReportArgs),
    /// Make the server read its configuration again
    Reload(verbs::reload::ReloadArgs),
    /// List jobs that have ended
    History(verbs::list::HistoryArgs),
    /// Store a server, its certificate authority and your token as a context, which further commands use
    ///
    /// The context is stored in $XDG_CONFIG_HOME/amalgam/contexts.toml (~/.config/amalgam), which only you can read. The server of a
    /// command is, in this order, that of --server or --context, of AMALGAM_SERVER, of AMALGAM_CONTEXT, of --state-dir or AMALGAM_STATE,
    /// of the current context, and the one that runs on this machine.
    #[command(after_help = "Examples:
  amalgam login https://head:7433                           compare the fingerprint, then type the token
  amalgam login https://head:7433 --fingerprint 0e5b... --token-file grace.token
  amalgam login https://head:7433 --join head:7434/0e5b...  a join string without its secret
  amalgam login unix:/run/amalgam/socket --name here        a server of this machine")]
    Login(verbs::login::LoginArgs),
    /// Remove a context, and the token in it, from this machine
    Logout(verbs::login::LogoutArgs),
    /// List, choose, show and remove contexts, which `amalgam login` stores
    Context(verbs::context::ContextArgs),
    /// Manage access tokens of users and agents
    Token(verbs::token::TokenArgs),
    /// List and replace the certificate authority that clients and daemons trust
    Ca(verbs::ca::CaArgs),
    /// Write the state of a server, global master or job host to an archive, while it runs
    ///
    /// Run it on the daemon's machine; --state-dir names its directory (a job host's --work-dir). The archive has everything that
    /// was acknowledged before: jobs, nodes, tokens, the certificate authority, stories and audit logs. It contains secrets, and only
    /// its owner can read it. Output and directories of tasks are on the nodes and not in it.
    Backup(verbs::backup::BackupArgs),
    /// Restore a state directory from an archive of `amalgam backup`
    ///
    /// The directory must be missing or empty. All checksums are verified before anything is put there.
    Restore(verbs::backup::RestoreArgs),
    /// Show what fills the directories of daemons on this machine
    Du(verbs::du::DuArgs),
    /// Examine this machine: clocks, limits, disks, ports, certificates, versions
    Doctor(verbs::doctor::DoctorArgs),
    /// Check job files, print their schema
    Config(verbs::config::ConfigArgs),
    /// Show, convert and sample traces and generated workloads
    Workload(verbs::workload::WorkloadArgs),
    /// Simulate a cluster of any size with the same policies
    Sim(verbs::sim::SimArgs),
    /// Print a shell's completions
    Completions(verbs::shell::CompletionsArgs),
    /// Print the manual page, or write one per verb
    Man(verbs::shell::ManArgs),
    /// Start a whole cluster on this machine
    Dev(verbs::dev::DevArgs),
    /// Start a server
    Server(verbs::server::ServerArgs),
    /// Start a node's agent
    Agent(verbs::agent::AgentArgs),
    /// Start a global master of a federation of clusters
    Global(verbs::global::GlobalArgs),
    /// Start a process of job managers, whose jobs continue while the server is down
    Jobs(verbs::jobs::JobsArgs),
    #[command(hide = true)]
    Executor(verbs::executor::ExecutorArgs),
}

impl Verb {
    /// Whether the verb only calls a server. Then a broken pipe may kill the process.
    pub fn is_client(&self) -> bool {
        !self.is_daemon() && !matches!(self, Verb::Run(_))
    }

    /// Whether the verb is a daemon, which does not report through its standard streams.
    pub fn is_daemon(&self) -> bool {
        matches!(
            self,
            Verb::Dev(_) | Verb::Server(_) | Verb::Agent(_) | Verb::Global(_) | Verb::Jobs(_) | Verb::Executor(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_cli::refusal::improved;
    use clap::CommandFactory;
    use std::ffi::OsString;

    fn output(arguments: &str) -> String {
        let arguments: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
        let Err(error) = Arguments::try_parse_from(&arguments) else { panic!("{arguments:?} are right") };
        improved(error, Arguments::command(), &arguments).render().to_string()
    }

    #[test]
    fn suggestions_are_similar_and_of_the_same_verb() {
        for (arguments, tip) in [
            ("amalgam list --reason", None),
            ("amalgam exec", None),
            ("amalgam executer", None),
            ("amalgam lsit", Some("a similar subcommand exists: 'list'")),
            ("amalgam node lst", Some("a similar subcommand exists: 'list'")),
            ("amalgam list --stat failed", Some("a similar argument exists: '--state'")),
            ("amalgam --stat failed list", None),
            ("amalgam list --sever x", Some("a similar argument exists: '--server'")),
            ("amalgam submit --timout 1s -- x", Some("a similar argument exists: '--timeout'")),
            ("amalgam list --state faild", Some("a similar value exists: 'failed'")),
            ("amalgam list --state bogus", None),
        ] {
            let output = output(arguments);
            match tip {
                Some(tip) => assert!(output.contains(tip), "{arguments}: {output}"),
                None => assert!(!output.contains("similar") && !output.contains("exists"), "{arguments}: {output}"),
            }
        }
    }

    #[test]
    fn usage_lines_are_those_of_the_verb() {
        let output = output("amalgam list --all --state-dir /x --state failed --state-dirr y");
        assert!(output.contains("Usage: amalgam list [OPTIONS]\n"), "{output}");
        let output = self::output("amalgam --state-dir /x node --json");
        assert!(output.contains("Usage: amalgam node [OPTIONS] <COMMAND>\n"), "{output}");
        let output = self::output("amalgam cancel --quiet --json 1");
        assert!(output.contains("Usage: amalgam cancel [OPTIONS] <JOBS>...\n"), "{output}");
    }

    #[test]
    fn the_verbs_are_consistent() {
        Arguments::command().debug_assert();
    }
}
