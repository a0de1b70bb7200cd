//! `amalgam completions` and `amalgam man`

use crate::failure::{Failure, Result};
use crate::show;
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Example:
  amalgam completions bash > ~/.local/share/bash-completion/completions/amalgam")]
pub struct CompletionsArgs {
    shell: Shell,
}

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam man | man -l -
  amalgam man --directory ~/.local/share/man/man1")]
pub struct ManArgs {
    /// Write one page per verb into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints the completions of this program.
pub fn completions(args: CompletionsArgs, mut program: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "amalgam", &mut script);
    show::print_raw(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes the manual pages of this program.
pub fn man(args: ManArgs, program: Command) -> Result<ExitCode> {
    match args.directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page)?;
            show::print_raw(&page)?;
        }
        Some(directory) => {
            let written =
                std::fs::create_dir_all(&directory).and_then(|()| clap_mangen::generate_to(program, &directory));
            written.map_err(|error| {
                Failure::new(
                    format!("cannot write to {}: {error}", directory.display()),
                    "choose a directory of your own",
                )
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
