//! `amalgam config`

use crate::failure::{Failure, Result};
use crate::job_arguments::read_file;
use crate::show;
use amalgam_core::why::counted;
use amalgam_workload::Context;
use clap::{Args, Subcommand};
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Subcommand)]
enum ConfigVerb {
    /// Check job files without submitting them, or a server's configuration
    Check {
        #[arg(required_unless_present = "server_config")]
        files: Vec<PathBuf>,
        /// A configuration for `amalgam server --config`
        #[arg(long, value_name = "FILE")]
        server_config: Option<PathBuf>,
    },
    /// Print the JSON Schema of job files
    Schema,
}

pub fn execute(args: ConfigArgs) -> Result<ExitCode> {
    match args.verb {
        ConfigVerb::Schema => show::print(&amalgam_workload::json_schema())?,
        ConfigVerb::Check { files, server_config } => {
            if let Some(path) = server_config {
                let config = crate::cluster::read_config(&path, None)?;
                show::print(&format!(
                    "{}: ok (preset {}, {})\n",
                    path.display(),
                    config.preset.name(),
                    counted(config.queues.len() as u64, "queue")
                ))?;
            }
            let submit_dir = env::current_dir().map_err(|error| {
                Failure::new(format!("the working directory is gone: {error}"), "change to one that exists")
            })?;
            let context = Context { submit_dir };
            let mut code = ExitCode::SUCCESS;
            for file in files {
                match read_file(&file, &context) {
                    Ok(job) => {
                        let stages = counted(job.stages.len() as u64, "stage");
                        let tasks = counted(job.task_count(), "task");
                        show::print(&format!("{}: ok ({stages}, {tasks})\n", file.display()))?;
                    }
                    Err(failure) => {
                        show::note(&failure.to_string());
                        code = ExitCode::from(failure.code);
                    }
                }
            }
            return Ok(code);
        }
    }
    Ok(ExitCode::SUCCESS)
}
