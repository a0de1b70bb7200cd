//! `amalgam config`

use crate::failure::Result;
use crate::job_arguments::{FileFormat, context, read_text, submitter};
use crate::show;
use amalgam_core::why::counted;
use amalgam_workload::read_job_of;
use clap::{Args, Subcommand};
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
        /// Job files; `-` is standard input
        #[arg(required_unless_present = "server_config")]
        files: Vec<PathBuf>,
        /// Format of the job files, if the extensions of their names do not show it
        #[arg(long, value_enum, requires = "files")]
        format: Option<FileFormat>,
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
        ConfigVerb::Check { files, format, server_config } => {
            if let Some(path) = server_config {
                let config = crate::cluster::read_config(&path, None)?;
                crate::cluster::check_for_server(&config)?;
                // `root` is there whether it is configured or not.
                let queues = config.queues.len().saturating_sub(1);
                show::print(&format!(
                    "{}: ok (preset {}, {})\n",
                    path.display(),
                    config.preset.name(),
                    counted(queues as u64, "queue")
                ))?;
            }
            let (context, submitter) = (context()?, submitter());
            let mut code = ExitCode::SUCCESS;
            for file in files {
                let job = read_text(&file, format)
                    .and_then(|(file, text, format)| Ok(read_job_of(&submitter, &text, format, &file, &context)?));
                match job {
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
